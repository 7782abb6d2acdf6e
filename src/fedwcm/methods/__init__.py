"""Federated methods, one per file. Files are discovered automatically; a class is registered under its `name`.

Other packages register methods through the entry point group `fedwcm.methods`. FedWCM's two parts can be added to
any method with FedCM's momentum: `mofedsam+wcm` is MoFedSAM with both, and `fedcm+wcm` is another name for FedWCM.
"""

from dataclasses import dataclass

from fedwcm.core.method import Method
from fedwcm.core.registry import Registry
from fedwcm.methods.fedcm import FedCM
from fedwcm.methods.fedwcm import WCM

SUFFIX = "+wcm"


class MethodRegistry(Registry[Method]):
    """The methods by name; a name that ends in `+wcm` is composed on demand."""

    def __getitem__(self, name: str) -> type[Method]:
        if not name.endswith(SUFFIX):
            return super().__getitem__(name)
        return with_wcm(super().__getitem__(name.removesuffix(SUFFIX)))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).removesuffix(SUFFIX))


def with_wcm(base: type[Method]) -> type[Method]:
    """Compose a momentum method with FedWCM's client weights and adaptive alpha."""
    if not issubclass(base, FedCM):
        raise ValueError(f"{base.name}{SUFFIX} does not exist: {base.name} has no FedCM-style momentum to adapt")
    if issubclass(base, WCM):
        raise ValueError(f"{base.name}{SUFFIX} does not exist: {base.name} already has FedWCM's two parts")
    if base.next_alpha is not FedCM.next_alpha:
        raise ValueError(f"{base.name}{SUFFIX} does not exist: {base.name} has its own rule for alpha")
    members = {
        "__doc__": f"{base.__name__} with FedWCM's two parts.",
        "__module__": base.__module__,
        "name": base.name + SUFFIX,
    }
    composed: type[Method] = dataclass(frozen=True, kw_only=True)(
        type(f"{base.__name__}WCM", (WCM, base), members)
    )
    return composed


METHODS = MethodRegistry("method", Method, __name__)
