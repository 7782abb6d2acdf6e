"""Registries of named classes, discovered from the files of a package: adding a file registers its class."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from fedwcm.core.checks import unknown

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """The subclasses of `base` by their `name`: those in the files of a package, and entry points of its group."""

    def __init__(self, kind: str, base: type[Any], package: str) -> None:
        self._kind, self._base, self._package = kind, base, package

    @cached_property
    def _classes(self) -> dict[str, type[T]]:
        classes: dict[str, Any] = {}
        package = importlib.import_module(self._package)
        for file in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{self._package}.{file.name}")
            for _, member in inspect.getmembers(module, inspect.isclass):
                if issubclass(member, self._base) and member.__module__ == module.__name__:
                    classes[member.__dict__.get("name", "")] = member
        for point in entry_points(group=self._package):
            classes[point.name] = point.load()
        classes.pop("", None)  # building blocks such as mix-ins have no name
        return dict(sorted(classes.items()))

    def __getitem__(self, name: str) -> type[T]:
        try:
            return self._classes[name]
        except KeyError:
            raise unknown(self._kind, name, self._classes) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __contains__(self, name: object) -> bool:
        return name in self._classes
