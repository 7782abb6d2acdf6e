"""What a run writes down: a record per evaluated round, a summary, and the split of the data."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedwcm.config.schema import Config, SelectBy
from fedwcm.utils.json_record import JsonRecord, optional

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedwcm.core.types import Ints

LAST_EVALUATIONS = 10
"""Evaluations, not rounds, whose mean accuracy is reported beside the final one."""

VALIDATION_METRICS: dict[SelectBy, str] = {
    "accuracy": "val_accuracy",
    "balanced_accuracy": "val_balanced_accuracy",
}
"""The key of a record under which each metric of `run.select_by` is found."""

LISTED_CLIENTS, LISTED_COUNTS = 2_000, 400_000
"""Clients, and clients times classes, up to which the whole split is written; of more, every n-th client."""

LISTED_ROWS = 200_000
"""Test rows up to which a summary says which of them the model got right."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord(JsonRecord):
    """A round: a line of `metrics.jsonl` if the round was evaluated.

    The training metrics are None in a round without an answer, the test and validation metrics where there is no
    such data or the round was not evaluated, `clients` and `weights` in a large cohort; these two and
    `train_accuracy` also where the round was not evaluated. Diagnostics of the method
    and of `run.diagnostics`, and `phase_seconds` are in `extra`.

    Args:
        seconds: time spent since the run started, in rounds and evaluations.
        test_ece: expected calibration error on the test data, over 15 bins of the confidence.
        many, medium, few: mean accuracy of the classes with that many training samples; None if there are none, as
            on nearly balanced data (`fedwcm.metrics.classification.shot_groups`).
        per_class_accuracy: None for a class without test samples.
        client_mean, client_worst_decile, client_std: test accuracy of the clients: the mean in which each counts
            once, the mean of the worst tenth of them, the standard deviation.
        metrics: those of `run.metrics`, by name; None stands for a number that is not finite.
        last_round_accuracy, last_round_few: of the last round's model itself, where the tested one is an average
            over the rounds (`server.ema`).
        left_out: the clients whose answers were not used, and why; None if there were none.
    """

    round: int
    seconds: float
    test_loss: float | None = optional(given="test_accuracy")
    test_ece: float | None = optional()
    test_accuracy: float | None = optional()
    balanced_accuracy: float | None = optional(given="test_accuracy")
    macro_f1: float | None = optional(given="test_accuracy")
    many: float | None = optional()
    medium: float | None = optional()
    few: float | None = optional()
    per_class_accuracy: tuple[float | None, ...] | None = optional(given="test_accuracy")
    val_accuracy: float | None = optional()
    val_balanced_accuracy: float | None = optional(given="val_accuracy")
    val_loss: float | None = optional(given="val_accuracy")
    client_mean: float | None = optional()
    client_worst_decile: float | None = optional(given="client_mean")
    client_std: float | None = optional(given="client_mean")
    metrics: Mapping[str, float | None] | None = optional()
    last_round_accuracy: float | None = optional()
    last_round_few: float | None = optional(given="last_round_accuracy")
    participants: int
    left_out: Mapping[str, str] | None = optional()
    bytes_down: int
    bytes_up: int
    train_loss: float | None = optional(given="train_accuracy")
    train_accuracy: float | None = optional()
    weights_entropy: float | None = optional()
    clients: tuple[int, ...] | None = optional()
    weights: tuple[float, ...] | None = optional()


@dataclass(frozen=True, kw_only=True)
class Outcome(JsonRecord):
    """The headline numbers of a run, also of one in progress; None where there was no test data.

    The metrics beside the accuracies are those of the model that is kept: of the selected round where there is
    validation data, else of the last.

    Args:
        final_accuracy: test accuracy of the last evaluation.
        last_mean_accuracy: mean of the last ten evaluations.
        selected_round: the round that was best on the validation data (`run.select_by`), where there is any.
        selected_accuracy: test accuracy of that round.
        val_accuracy, val_balanced_accuracy: on the validation data, of that round: what sweeps choose by.
        train_set_accuracy: on the training samples of all clients, if it was measured (`run.diagnostics`).
        metrics: those of `run.metrics`.
    """

    rounds: int
    final_accuracy: float | None
    last_mean_accuracy: float | None = optional(given="final_accuracy")
    best_accuracy: float | None
    balanced_accuracy: float | None = optional(given="final_accuracy")
    macro_f1: float | None = optional(given="final_accuracy")
    many: float | None = optional()
    medium: float | None = optional()
    few: float | None = optional()
    test_loss: float | None = optional(given="final_accuracy")
    test_ece: float | None = optional()
    selected_round: int | None = optional()
    selected_accuracy: float | None = optional()
    val_accuracy: float | None = optional()
    val_balanced_accuracy: float | None = optional()
    client_mean: float | None = optional()
    client_worst_decile: float | None = optional()
    client_std: float | None = optional()
    train_set_accuracy: float | None = optional()
    metrics: Mapping[str, float | None] | None = optional()

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the model that is kept."""
        return self.final_accuracy if self.selected_accuracy is None else self.selected_accuracy


OF_KEPT_MODEL = (
    *("balanced_accuracy", "macro_f1", "many", "medium", "few", "test_loss", "test_ece"),
    *("client_mean", "client_worst_decile", "client_std", "train_set_accuracy"),
)
"""The numbers of an outcome that are those of the round whose model is kept."""


def selected_record(
    history: Sequence[RoundRecord], select_by: SelectBy = "balanced_accuracy"
) -> RoundRecord | None:
    """Return the round that was best on the validation data, the first of equals; None without such data."""
    key = VALIDATION_METRICS[select_by]
    validated = [record for record in history if record.number(key) is not None]
    return max(validated, key=lambda record: record.number(key) or 0.0, default=None)


def outcome_of(history: Sequence[RoundRecord], select_by: SelectBy = "balanced_accuracy") -> Outcome:
    """Return the headline numbers of a history; a round is selected on the validation data if there is any."""
    rounds = history[-1].round if history else 0
    tested = [record.test_accuracy for record in history if record.test_accuracy is not None]
    if not tested:
        return Outcome(rounds=rounds, final_accuracy=None, best_accuracy=None)
    selected = selected_record(history, select_by)
    kept = selected or history[-1]
    numbers: dict[str, Any] = {name: kept.number(name) for name in OF_KEPT_MODEL}
    if selected is not None:
        numbers |= {"selected_round": selected.round, "selected_accuracy": selected.test_accuracy}
        numbers |= {name: selected.number(name) for name in VALIDATION_METRICS.values()}
    return Outcome(
        rounds=rounds,
        final_accuracy=tested[-1],
        last_mean_accuracy=float(np.mean(tested[-LAST_EVALUATIONS:])),
        best_accuracy=max(tested),
        metrics=kept.metrics,
        **numbers,
    )


UNBALANCED = 1.5
"""A test set is called unbalanced if its largest class has this many times the samples of its smallest."""


@dataclass(frozen=True, kw_only=True)
class Summary(Outcome):
    """A run that has ended: `summary.json`.

    Args:
        name: what the user called the method; `method`, `loss` and `sampler` are what it resolved to.
        diverged: why the run broke off; None if it did not.
        stopped: why the run ended before its last round (`run.patience`); None if it did not.
        parameters: size of the model.
        train_counts: training samples of each class.
        encryption: what it cost to sum the class counts under homomorphic encryption (`privacy.mode`): `clients`,
            `bytes_up`, `bytes_down`, `seconds`; None if they were not encrypted, or elsewhere.
        client_accuracy: test accuracy of each client by its name, of the model that is kept; None where clients
            are not measured, or are more than `LISTED_CLIENTS`.
        confusion: of the model that is kept; `confusion[i][j]` test samples of class i were taken for class j.
        hits: which test rows that model got right, a bit each (`pack_hits`); None of more than `LISTED_ROWS`.
        reliability: of the model that is kept, over 15 bins of the confidence: `samples`, mean `confidence`,
            `accuracy`.
        trade_off: test accuracies of the model that is kept with t · log p added to its logits, p the class
            distribution of the training data: `strength` (t), `test_accuracy`, `balanced_accuracy`, `few`. None
            on nearly balanced data.
        chosen_strength: the t that is best on the validation data (`run.select_by`), where there is any.
    """

    name: str
    method: str
    loss: str
    sampler: str
    dataset: str
    seed: int
    diverged: str | None
    stopped: str | None = optional()
    seconds_per_round: float
    backend: str
    parameters: int
    train_counts: tuple[int, ...]
    encryption: Mapping[str, float] | None = optional()
    client_accuracy: Mapping[str, float] | None = optional()
    confusion: tuple[tuple[int, ...], ...] | None
    hits: str | None = optional()
    reliability: Mapping[str, tuple[float | None, ...]] | None = optional()
    trade_off: Mapping[str, tuple[float | None, ...]] | None = optional()
    chosen_strength: float | None = optional()

    @property
    def title(self) -> str:
        """The run's name as it was typed and, where that is something else, what it resolved to."""
        return title_of(self.name, self.method, self.loss, self.sampler)

    @property
    def test_counts(self) -> tuple[int, ...]:
        """Test samples of each class; none if the model was not tested."""
        return tuple(sum(row) for row in self.confusion or ())

    @property
    def row_hits(self) -> "Ints | None":
        """For each test row 1 if the model got it right, else 0; None if that was not kept."""
        if self.hits is None:
            return None
        packed = np.frombuffer(base64.b64decode(self.hits), np.uint8)
        return np.unpackbits(packed, count=sum(self.test_counts)).astype(int)

    @property
    def has_unbalanced_test_set(self) -> bool:
        """Whether the model was tested on classes of very different size, as SVHN's are."""
        counts = self.test_counts
        return bool(counts) and max(counts) > UNBALANCED * max(1, min(counts))


def pack_hits(correct: "NDArray[np.bool_]") -> str | None:
    """Return the bits of a summary's `hits`; None of more than `LISTED_ROWS` rows."""
    return base64.b64encode(np.packbits(correct).tobytes()).decode() if len(correct) <= LISTED_ROWS else None


def title_of(name: str, method: str, loss: str, sampler: str) -> str:
    """Return a run's name as it was typed and, where that is something else, what it resolved to."""
    if name.partition("[")[0] in (method, method.replace(":", ".").rpartition(".")[2]):
        return name
    default = Config()
    parts = [f"loss {loss}"] if loss != default.loss.name else []
    parts += [f"sampler {sampler}"] if sampler != default.sampler.name else []
    return f"{name} ({', '.join([method, *parts])})"


@dataclass(frozen=True, kw_only=True)
class PartitionRecord(JsonRecord):
    """Who holds how many samples of which class: `partition.json`.

    Args:
        totals: samples of each class over all clients.
        every: 1 if all clients are listed, n if every n-th client is.
        counts: one row per listed client, one column per class.
        names: of the listed clients, where they are the data's own.
        digest: digest of the file or folder that the data was read from (`Dataset.digest`).
        server: the server's own samples of each class, where it has any.
    """

    classes: tuple[str, ...]
    clients: int
    totals: tuple[int, ...]
    every: int
    counts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] | None = optional()
    digest: str | None = optional()
    server: tuple[int, ...] | None = optional()

    def client_name(self, client: int) -> str:
        """Return the name of a client, by its number; the number itself if it has none or is not listed."""
        if self.names is None or client % self.every:
            return str(client)
        return self.names[client // self.every]

    @classmethod
    def of(cls, counts: "Ints", classes: Sequence[str], names: Sequence[str] = (), digest: str = "") -> Self:
        """Return the record of these counts; of very many clients only every n-th is listed."""
        every = math.ceil(max(len(counts) / LISTED_CLIENTS, counts.size / LISTED_COUNTS, 1))
        return cls(
            classes=tuple(classes),
            clients=len(counts),
            totals=tuple(counts.sum(axis=0).tolist()),
            every=every,
            counts=tuple(map(tuple, counts[::every].tolist())),
            names=tuple(names)[::every] or None,
            digest=digest or None,
        )


@dataclass(frozen=True, kw_only=True)
class PersonalizationRecord(JsonRecord):
    """A trained model at each client, before and after the client has fine-tuned it: `personalized.json`.

    Args:
        epochs, layers, lr: how it was fine-tuned.
        before, after: mean over the clients, worst decile and standard deviation, as in a `RoundRecord`.
        client_accuracy_before, client_accuracy: accuracy of each client on its own test samples, by its name.
    """

    epochs: int
    layers: str
    lr: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    client_accuracy_before: Mapping[str, float]
    client_accuracy: Mapping[str, float]

    @property
    def gain(self) -> float:
        """What fine-tuning adds to the mean accuracy of these clients."""
        return self.after["client_mean"] - self.before["client_mean"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord(JsonRecord):
    """Who worked on a run: a line of `environment.json` for its start, and one each time it was resumed.

    Args:
        versions: of this package, Python and the libraries that are installed.
        commit: of this package's checkout, if it is one; `-dirty` if files were changed.
        system, cpu, instruction_set: the machine, and what torch uses of it.
        cores, threads, jobs: cores that the process may use, threads of torch, runs of the comparison at a time.
        command: as it was typed, or the name of the program.
        started, ended: in UTC; `ended` is missing while the run goes on, and where it was killed.
        data: digest of the data.
        sources: digest of each module with a method, loss, sampler, partition or model of the user's own.
    """

    versions: Mapping[str, str]
    commit: str | None = optional()
    system: str
    cpu: str
    instruction_set: str
    cores: int
    threads: int
    jobs: int | None = optional()
    command: str
    started: str
    ended: str | None = optional()
    data: str | None = optional()
    sources: Mapping[str, str]

    def differences(self, other: "EnvironmentRecord") -> list[str]:
        """Return what may make the same run round differently here than there."""
        pairs = {
            name: (self.versions.get(name), other.versions.get(name)) for name in ("fedwcm", "torch", "numpy")
        }
        pairs["processor"] = self.cpu, other.cpu
        pairs["instruction set"] = self.instruction_set, other.instruction_set
        pairs["threads of torch:"] = str(self.threads), str(other.threads)
        return [f"{name} {here}, not {there}" for name, (here, there) in pairs.items() if here != there]

    def describe(self) -> dict[str, str]:
        """Return lines for a reader."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        cores = f"{self.cores} cores, {self.threads} threads of torch, {self.jobs or 1} runs at a time"
        return {
            "made by": versions + (f"; commit {self.commit}" if self.commit else ""),
            "made on": f"{self.cpu}, {self.instruction_set}, {cores}",
            "made with": self.command,
            "made when": f"{self.started} to {self.ended or 'an end that is not known'}",
            "made from": ", ".join([f"data {self.data}", *map(" ".join, self.sources.items())]),
        }


@dataclass(frozen=True, kw_only=True)
class ComparisonIndex(JsonRecord):
    """The runs of a comparison: `comparison.json`.

    Args:
        labels: for each run's folder, in the order of the comparison, the name of what is compared.
        jobs: how many runs went on at a time.
        grid: the dotted options that were varied.
        outcomes: for each finished run's folder the numbers to choose by, `OUTCOMES`; None before the end.
        verdicts: every pair of methods on the same task; None before the end.
    """

    labels: Mapping[str, str]
    jobs: int | None = optional()
    grid: tuple[str, ...] | None = optional()
    outcomes: Mapping[str, Mapping[str, float]] | None = optional()
    verdicts: tuple[Mapping[str, object], ...] | None = optional()


OUTCOMES = ("final_accuracy", "selected_accuracy", "selected_round", "val_accuracy", "val_balanced_accuracy")
"""The numbers of a run's summary that `comparison.json` repeats, where the run has them."""
