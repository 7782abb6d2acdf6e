"""The bars: what was measured, against what it has to be. Arithmetic only, on the results as they are stored.

Contenders of a group were played alternately, so they are compared sweep by sweep: the ratio of two contenders is
the median of the ratios of their rounds in the same sweep, which a machine that gets slower hardly moves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from benchmarks.lineup import CHECKPOINT_EVERY, FLOWER, FORKED, ON_RAY, RECIPE

Results = dict[str, Any]
"""`{"groups": {name: {"contenders": {name: {"seconds": […], …}}, …}}, "commands": {…}, …}`, as on disk."""

VECTORS_IN_FLIGHT = 3
FREE_MEMORY = 400 * 10**6


class NotMeasuredError(LookupError):
    """The results lack what a bar needs."""


@dataclass(frozen=True)
class Bar:
    """A number that must be at least, or at most, a limit; `form` says how to write such a number."""

    text: str
    sense: Literal["at least", "at most"]
    limit: float
    form: str
    measure: Callable[[Results], float]

    def value(self, results: Results) -> float | None:
        """What was measured, or None."""
        try:
            return self.measure(results)
        except NotMeasuredError:
            return None

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.sense == "at least" else value <= self.limit

    def line(self, results: Results) -> tuple[str, str, str, str]:
        """The bar, its limit, the measured value and the verdict, as text."""
        value = self.value(results)
        limit = f"{self.sense} {self.form.format(self.limit)}"
        if value is None:
            return self.text, limit, "–", "not measured"
        return self.text, limit, self.form.format(value), "holds" if self.holds(value) else "**missed**"


def contender(results: Results, group: str, name: str) -> dict[str, Any]:
    """What is stored of a contender that came to the end."""
    found: dict[str, Any] | None = results["groups"].get(group, {}).get("contenders", {}).get(name)
    if found is None or "error" in found:
        raise NotMeasuredError(f"{name} in {group}")
    return found


def paired_ratio(slower: list[float], faster: list[float]) -> float:
    """How many times as long the first one's rounds took, compared within each sweep."""
    return median(a / b for a, b in zip(slower, faster, strict=True))


def speedup(group: str, other: str, faster: str = "fedwcm") -> Callable[[Results], float]:
    """How many times as long as this package, or one of its backends, another contender takes."""
    return lambda results: paired_ratio(
        contender(results, group, other)["seconds"], contender(results, group, faster)["seconds"]
    )


def speedup_over_best(group: str, prefix: str) -> Callable[[Results], float]:
    """The same for the fastest of the contenders whose name begins like this."""

    def measure(results: Results) -> float:
        known = results["groups"].get(group, {}).get("contenders", {})
        names = [name for name in known if name.startswith(prefix) and "error" not in known[name]]
        ratios = [speedup(group, name)(results) for name in names]
        if not ratios:
            raise NotMeasuredError(f"{prefix} in {group}")
        return min(ratios)

    return measure


def overhead(group: str, names: tuple[str, ...], base: str = "fedavg") -> Callable[[Results], float]:
    """The largest extra cost of these contenders' rounds, as a share of the base's."""
    return lambda results: max(speedup(group, name, base)(results) - 1 for name in names)


def checkpoint_overhead(group: str, every: int) -> Callable[[Results], float]:
    """What a checkpoint takes, spread over so many rounds, as a share of a round.

    Rounds are numbered from 1; those after warming up are timed; every second one ends with a checkpoint.
    """

    def measure(results: Results) -> float:
        seconds = contender(results, group, "fedavg, checkpointed")["seconds"]
        first = results["groups"][group]["warmup"] + 1
        kinds: dict[bool, list[float]] = {True: [], False: []}
        for number, value in enumerate(seconds, first):
            kinds[number % CHECKPOINT_EVERY == 0].append(value)
        if not all(kinds.values()):
            raise NotMeasuredError("rounds with and without a checkpoint")
        without = median(kinds[False])
        return (median(kinds[True]) - without) / every / without

    return measure


def allowed_memory(group: dict[str, Any]) -> float:
    """The data, the model, three vectors for each client in flight, and something for Python and torch."""
    model = 4 * group["parameters"]
    return float(group["data_bytes"] + model * (1 + VECTORS_IN_FLIGHT * group["cohort"]) + FREE_MEMORY)


def memory_share(group: str) -> Callable[[Results], float]:
    """Peak memory as a share of what is allowed."""
    return lambda results: (
        contender(results, group, "fedwcm")["memory_bytes"] / allowed_memory(results["groups"][group])
    )


def stored(*path: str) -> Callable[[Results], Any]:
    """What the results have at this place."""

    def read(results: Results) -> Any:
        value: Any = results
        for key in path:
            value = value.get(key) or {}
        if value == {}:
            raise NotMeasuredError(" ".join(path))
        return value

    return read


def field(group: str, name: str, key: str, scale: float = 1.0) -> Callable[[Results], float]:
    """A stored number of a contender."""
    return lambda results: contender(results, group, name)[key] * scale


def command(name: str) -> Callable[[Results], float]:
    """The median time of a command."""
    return lambda results: median(stored("commands", "seconds", name)(results))


def both_jobs(results: Results) -> float:
    """How many times as long as one run two side by side take."""
    times = [stored("commands", "seconds", name)(results) for name in ("two runs", "one run")]
    return paired_ratio(*times)


_TIMES, _SHARE, _SECONDS = "{:.2f} ×", "{:.1%}", "{:.2f} s"
_MANY, _FEW = "1,000,000 clients", "1,000 clients"

BARS = (
    Bar(
        "J1: faster than the plain loop on one thread",
        "at least",
        2.5,
        _TIMES,
        speedup("J1", "plain loop, 1 thread"),
    ),
    Bar("J1: faster than pfl at its best", "at least", 1.55, _TIMES, speedup_over_best("J1", "pfl")),
    Bar("J1: faster than Flower", "at least", 4.0, _TIMES, speedup("J1", "Flower, 2 workers")),
    Bar(
        "J2: against the plain loop in two processes",
        "at least",
        1.0,
        _TIMES,
        speedup("J2", "plain loop, 2 processes"),
    ),
    Bar(
        "J3: faster than the plain loop on one thread",
        "at least",
        25.0,
        _TIMES,
        speedup("J3", "plain loop, 1 thread"),
    ),
    Bar(
        "J4: extra cost of a round over that with 1,000 clients",
        "at most",
        0.10,
        _SHARE,
        overhead("J4", (_MANY,), _FEW),
    ),
    Bar("J4: peak memory", "at most", 600, "{:.0f} MB", field("J4", _MANY, "memory_bytes", 1e-6)),
    Bar("J4: from the start to the first round", "at most", 5.0, _SECONDS, field("J4", _MANY, "ready_seconds")),
    *(
        Bar(
            f"{job}: extra cost of {text} over FedAvg", "at most", limit, _SHARE, overhead(f"{job}-methods", names)
        )
        for job in ("J1", "J2")
        for text, names, limit in (
            ("FedCM and FedWCM", ("fedcm", "fedwcm"), 0.08),
            ("SCAFFOLD and FedDyn", ("scaffold", "feddyn"), 0.15),
            ("FedSAM and MoFedSAM, with two gradients a step", ("fedsam", "mofedsam"), 1.10),
        )
    ),
    Bar(
        "J1: extra cost of evaluating on 10,000 images every round",
        "at most",
        0.20,
        _SHARE,
        overhead("J1-methods", ("fedavg, evaluated",)),
    ),
    Bar(
        "J1: extra cost of the recipe fedwcm+longtail over FedAvg",
        "at most",
        0.10,
        _SHARE,
        overhead("J1-methods", (RECIPE,)),
    ),
    Bar(
        "J1: extra cost of a checkpoint every 10 rounds",
        "at most",
        0.03,
        _SHARE,
        checkpoint_overhead("J1-methods", 10),
    ),
    *(
        Bar(
            f"{job}: peak memory, as a share of data + model + 3 vectors a client in flight + 400 MB",
            "at most",
            1.0,
            _SHARE,
            memory_share(job),
        )
        for job in ("J1", "J2", "J3")
    ),
    Bar("`fedwcm --help`", "at most", 0.2, _SECONDS, command("help")),
    Bar("first round of the demo, from the command", "at most", 4.0, _SECONDS, command("demo")),
    Bar(
        "`compare --jobs 2`: two runs against one on one core",
        "at most",
        1.15,
        _TIMES,
        both_jobs,
    ),
    Bar(
        "J2: extra cost of a Ray cluster of two workers over two forked ones",
        "at most",
        0.15,
        _SHARE,
        overhead("J2-cluster", (ON_RAY,), FORKED),
    ),
    Bar(
        "J1: a Ray cluster of two workers, faster than Flower's simulation",
        "at least",
        3.5,
        _TIMES,
        speedup("J1-cluster", FLOWER.name, ON_RAY),
    ),
    Bar(
        "cluster: bytes of a round over broadcast to each node + workers × parameters × 8 × sums",
        "at most",
        1.1,
        _TIMES,
        stored("cluster", "traffic", "over_model"),
    ),
    Bar(
        "cluster: the server's peak memory with 1,000 clients a round, over that with 10",
        "at most",
        1.1,
        _TIMES,
        stored("cluster", "memory", "ray", "growth"),
    ),
    Bar(
        "large data, uint8 `.npz`: peak memory over the file",
        "at most",
        2.0,
        _TIMES,
        stored("large data", "memory", "npz"),
    ),
    Bar(
        "large data, mapped `.npy` files: peak memory over them",
        "at most",
        1.3,
        _TIMES,
        stored("large data", "memory", "npy"),
    ),
)
