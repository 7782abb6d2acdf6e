"""Who takes part in which job, and how each is started."""

from dataclasses import dataclass, replace

from benchmarks.environments import OWN, python
from benchmarks.jobs import DRAWN_CLIENTS, JOBS, Job

METHODS = ("fedavg", "fedcm", "fedwcm", "scaffold", "feddyn", "fedsam", "mofedsam")
RECIPE = "fedwcm+longtail"
CHECKPOINT_EVERY = 2
"""Rounds between checkpoints while their cost is measured: often, to have many of both kinds of rounds."""


@dataclass(frozen=True)
class Entry:
    """One contender. With several `processes` it is started by torchrun."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    environment: str = OWN
    processes: int = 1

    def command(self, job: Job, rounds: int) -> list[str]:
        """How it is started, to run so many rounds."""
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.processes)]
        script = ["-m", f"benchmarks.contenders.{self.script}", job.name, str(rounds), *self.arguments]
        return [str(python(self.environment)), *(launcher if self.processes > 1 else []), *script]


@dataclass(frozen=True)
class Group:
    """Contenders whose rounds are played alternately: first some to warm up, then the timed ones.

    `turn` is how many rounds one plays in a row: several if they are so short that caches, which the others have
    filled meanwhile, would be a good part of the time. In a run only the first round finds them so.
    """

    name: str
    title: str
    job: Job
    entries: tuple[Entry, ...]
    rounds: int
    warmup: int = 2
    turn: int = 1


PLAIN = (
    Entry("plain loop, 1 thread", "plain", ("threads", "1")),
    Entry("plain loop, 2 threads", "plain", ("threads", "2")),
    Entry("plain loop, 2 processes", "plain", ("processes", "2")),
)
FLOOR = "matrix products alone"
PEERS = (
    Entry("pfl, 2 processes", "on_pfl", ("ordered", "1"), "pfl", 2),
    Entry("pfl, 2 processes, reshuffling", "on_pfl", ("shuffled", "1"), "pfl", 2),
    Entry("pfl, 1 process of 2 threads", "on_pfl", ("ordered", "2"), "pfl"),
    Entry("Flower, 2 workers", "on_flower", ("lean",), "flower"),
    Entry("Flower, 2 workers, client as in its tutorials", "on_flower", ("tutorial",), "flower"),
    Entry("FedLab, 2 threads", "on_fedlab", ("2",), "fedlab"),
)
LONG_JOB_PEERS = tuple(
    entry for entry in PEERS if entry.name in ("pfl, 2 processes", "Flower, 2 workers", "FedLab, 2 threads")
)
"""One of each peer, where a round takes long and variants differ little."""
OURS = Entry("fedwcm", "ours")


def _backends(*names: str) -> tuple[Entry, ...]:
    return tuple(Entry(f"fedwcm, {name}", "ours", ("--backend", name)) for name in names)


def _methods() -> tuple[Entry, ...]:
    return tuple(Entry(name, "ours", ("--method", name)) for name in METHODS)


def _floor(*how: str) -> Entry:
    return Entry(FLOOR, "products", how)


EVALUATION_FLOOR = "matrix products of an evaluation"
EXTRAS = (
    Entry(RECIPE, "ours", ("--method", RECIPE)),
    Entry("fedavg, evaluated", "ours", ("--evaluate",)),
    Entry(EVALUATION_FLOOR, "products", ("evaluation", "2")),
    Entry("fedavg, checkpointed", "ours", ("--checkpoint-every", str(CHECKPOINT_EVERY))),
)
FORKED, ON_RAY = "fedwcm, parallel", "fedwcm, ray"
FLOWER = next(entry for entry in PEERS if entry.name == "Flower, 2 workers")
CLUSTER = (
    FLOWER,
    *(
        Entry(name, "ours", ("--backend", backend, "--workers", "2"))
        for name, backend in ((FORKED, "parallel"), (ON_RAY, "ray"))
    ),
)
CLUSTER_OF_MANY = (replace(FLOWER, name=f"{FLOWER.name}, {DRAWN_CLIENTS:,} clients"), *CLUSTER[1:])
PRECISIONS = tuple(Entry(f"fedwcm, {name}", "ours", ("--precision", name)) for name in ("fp32", "bf16"))
MANY = tuple(Entry(f"{count:,} clients", "ours", ("--clients", str(count))) for count in (1000, 1_000_000))

GROUPS = {
    group.name: group
    for group in (
        Group(
            "J1",
            "J1 against the peers",
            JOBS["J1"],
            (*PLAIN, *PEERS, OURS, *_backends("sequential", "vectorized", "parallel"), _floor("processes", "2")),
            30,
        ),
        Group("J1-methods", "J1: methods, evaluation and checkpoints", JOBS["J1"], _methods() + EXTRAS, 40),
        Group(
            "J2",
            "J2 against the peers",
            JOBS["J2"],
            (PLAIN[0], PLAIN[2], *LONG_JOB_PEERS, OURS),
            2,
            1,
        ),
        Group("J2-methods", "J2: methods", JOBS["J2"], _methods(), 2, 1),
        Group(
            "J3",
            "J3 against the plain loop",
            JOBS["J3"],
            (*PLAIN, OURS, *_backends("sequential", "vectorized", "parallel"), _floor("threads", "1")),
            20,
            turn=10,
        ),
        Group("J4", "J4: a million clients", JOBS["J4"], MANY, 60),
        Group(
            "J1-cluster",
            "J1 on a Ray cluster of two workers",
            JOBS["J1"],
            (*CLUSTER, _floor("processes", "2")),
            20,
        ),
        Group("J2-cluster", "J2 on a Ray cluster of two workers", JOBS["J2"], CLUSTER, 2, 1),
        Group("J2-precision", "J2 in 32 and in 16 bits", JOBS["J2"], PRECISIONS, 2, 1),
        Group("J4-cluster", "J4 on a Ray cluster of two workers", JOBS["J4"], CLUSTER_OF_MANY, 20),
    )
}
