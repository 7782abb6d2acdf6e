"""`fedwcm.doctor` and `fedwcm.bench`: whether this machine computes correctly, and how fast."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from fedwcm.core.checks import unknown
from fedwcm.diagnosis.facts import Check


@dataclass(frozen=True)
class Diagnosis:
    """What this machine is, and the result of every check."""

    facts: dict[str, str]
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check has failed."""
        return all(check.status != "FAIL" for check in self.checks)

    @property
    def conclusion(self) -> str:
        """What all of it means, in a sentence."""
        if self.healthy:
            return "This machine computes what it should: every check passed, was avoided or does not apply."
        failed = "; ".join(check.name for check in self.checks if check.status == "FAIL")
        return f"Failed: {failed}. Do not trust results of this machine until that is explained."

    def __str__(self) -> str:
        facts = [_line(name, value) for name, value in self.facts.items()]
        return "\n".join([*facts, *map(_check, self.checks), "", self.conclusion])


def doctor(progress: Callable[[str], object] | None = None) -> Diagnosis:
    """Say what this machine is, and compare convolutions and small runs with references.

    Args:
        progress: called with a line for each fact and for each check as soon as it has ended.
    """
    from fedwcm.diagnosis.backends import backend_checks
    from fedwcm.diagnosis.facts import convolution_checks, facts

    tell, known, checks = progress or (lambda _: None), facts(), []
    for name, value in known.items():
        tell(_line(name, value))
    for check in chain(convolution_checks(), backend_checks()):
        checks.append(check)
        tell(_check(check))
    return Diagnosis(known, tuple(checks))


def bench(
    what: str,
    *,
    classes: Sequence[int] = (10, 20, 50, 100, 1000),
    clients: int = 100,
    more_clients: int = 10_000,
) -> str:
    """Measure the cost of a component on this machine, and return it as tables.

    Args:
        what: the component: `privacy`, the sum of class counts under homomorphic encryption.
        classes: numbers of classes.
        clients: clients that are measured.
        more_clients: clients that the measurement is scaled up to.
    """
    if what != "privacy":
        raise unknown("benchmark", what, ["privacy"])
    from fedwcm.privacy import benchmark, format_benchmark

    return format_benchmark(benchmark(classes, clients), more_clients)


def _check(check: Check) -> str:
    return _line(check.status, f"{check.name}: {check.detail}")


def _line(name: str, value: str) -> str:
    return f"{name:>20}  {value}"
