"""Write the table of docs/privacy.md: what single updates tell a server of a client's class counts.

    python -m tools.measure_update_attack

The server knows the model that it sent, a client's number of samples and the class distribution of all, has some
data of its own (the test samples), and sees the client's update of round 1. It trains shadow clients of that size,
whose class counts it chooses, and learns by ridge regression what their updates say of these counts.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedwcm.config.settings import from_settings, method_settings, overlay
from fedwcm.core.batch import SampleStore, Shard
from fedwcm.core.types import Floats, Ints, Layout
from fedwcm.engine.client import Broadcast
from fedwcm.engine.rounds import ServerState
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.progress import Silent
from fedwcm.experiment.runner import Runner
from tools.generated import write_blocks
from tools.measure_one_client import CLIENTS, RUN

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
SEEDS, SHADOWS = range(5), 1500
PENALTIES = np.logspace(-6, 2, 17)
"""Of the ridge, as shares of the mean squared norm of an update; the one that predicts held-out shadows best."""

SMALL = {"model.name": "mlp", "model.hidden": [32], "run.backend": "vectorized"}

PAIRS = [("fedavg", 2), ("fedavg", 10), ("fedwcm", 2), ("fedwcm", 10)]
"""Methods and rounds whose sums are compared with those of the next round."""

View = Callable[[Floats, Layout], Floats]
"""What the server sees of increments, one row each."""


def _whole(delta: Floats, _: Layout) -> Floats:
    return delta


def _without_head(delta: Floats, layout: Layout) -> Floats:
    return delta[:, : min(part.start for part in layout.head_slices)]


def _clipped_head(delta: Floats, layout: Layout) -> Floats:
    head = delta[:, min(part.start for part in layout.head_slices) :]
    return np.hstack([_without_head(delta, layout), head / np.linalg.norm(head, axis=1, keepdims=True)])


@dataclass(frozen=True)
class Setting:
    """How clients train, and what the server sees of their updates."""

    name: str
    method: str = "fedwcm"
    options: tuple[tuple[str, object], ...] = ()
    view: View = _whole


SETTINGS = (
    Setting("FedWCM"),
    Setting("FedWCM, α = 0.5", "fedwcm[alpha=0.5]"),
    Setting("FedWCM, five epochs", options=(("local.epochs", 5),)),
    Setting("FedWCM, the head's update clipped to one norm", view=_clipped_head),
    Setting("FedWCM, the head summed securely", view=_without_head),
    Setting("FedWCM, balanced batches", options=(("sampler.name", "balanced"),)),
    Setting("`fedwcm+longtail`, which has balanced batches", "fedwcm+longtail"),
    Setting("FedAvg", "fedavg"),
    Setting("FedAvg, five epochs", "fedavg", (("local.epochs", 5),)),
    Setting("FedAvg, balanced batches", "fedavg", (("sampler.name", "balanced"),)),
)


def experiment_of(setting: Setting, seed: int) -> Experiment:
    """Return the federation of a setting."""
    chosen = method_settings(setting.method)
    below = {**RUN, **SMALL, "run.seed": seed, "method.name": chosen["method.name"], **dict(setting.options)}
    return build(from_settings(overlay(below, chosen)))


def increments(experiment: Experiment, shards: list[Shard], state: ServerState | None = None) -> Floats:
    """Return the updates of clients with this data, all of one size, one row each; of round 1 without a state."""
    rounds = experiment.rounds
    state, trainer = state or rounds.start(experiment.x, experiment.buffers), rounds.trainer
    message = trainer.method.broadcast(state.method)
    rate = rounds.learning_rate.at(state.round, trainer.population.rounds)
    sent = Broadcast(state.round, state.x, state.buffers, message, rate)
    ids = np.arange(len(shards)) + 10**6
    fresh = trainer.initial_state(trainer.clients(ids, shards), state.x, state.buffers)
    delta: Floats = trainer.run("train", ids, shards, fresh, sent).upload["delta"].double().numpy()
    return delta


def shadow_counts(prior: Floats, samples: int, rng: np.random.Generator) -> Ints:
    """Return class counts that a client of so many samples may have, one row for each shadow client."""
    spread = 10.0 ** rng.uniform(-0.5, 1.5, SHADOWS)
    mixes = np.stack([rng.dirichlet(np.maximum(width * prior, 0.02)) for width in spread])
    return np.stack([rng.multinomial(samples, mix / mix.sum()) for mix in mixes])


def shadow_shards(counts: Ints, experiment: Experiment, rng: np.random.Generator) -> list[Shard]:
    """Return data of the server's own with these counts."""
    test = experiment.test
    assert test is not None
    labels = test.labels.numpy()
    store = SampleStore(test.inputs, test.labels, torch.arange(len(labels)), labels)
    members = [np.flatnonzero(labels == c) for c in range(counts.shape[1])]
    return [
        Shard(store, np.concatenate([rng.choice(members[c], n) for c, n in enumerate(row) if n])) for row in counts
    ]


def ridge(seen: Floats, counts: Floats, victim: Floats) -> Floats:
    """Return the counts that a victim's update suggests, by those of the shadow clients."""
    mean, middle = seen.mean(axis=0), counts.mean(axis=0)
    rows, targets = seen - mean, counts - middle
    learn, held = slice(0, 3 * len(rows) // 4), slice(3 * len(rows) // 4, None)
    scale = float((rows**2).sum(axis=1).mean())

    def fit(train: slice, where: Floats, penalties: Floats) -> list[Floats]:
        values, vectors = np.linalg.eigh(rows[train] @ rows[train].T)
        seen_as, wanted = where @ rows[train].T @ vectors, vectors.T @ targets[train]
        return [seen_as @ (wanted / (np.maximum(values, 0.0) + p * scale)[:, None]) for p in penalties]

    errors = [np.abs(guess - targets[held]).mean() for guess in fit(learn, rows[held], PENALTIES)]
    best = PENALTIES[[int(np.argmin(errors))]]
    guess: Floats = fit(slice(None), (victim - mean)[None], best)[0][0] + middle
    return guess


def whole_counts(guess: Floats, samples: int) -> Ints:
    """Return whole numbers near a guess that add up to the client's samples."""
    positive = np.maximum(guess, 0.0)
    scaled = positive * samples / positive.sum()
    counts: Ints = np.floor(scaled).astype(np.int64)
    counts[np.argsort(counts - scaled)[: samples - counts.sum()]] += 1
    return counts


@dataclass(frozen=True)
class Outcome:
    """Per client and class: the true counts, the attack's, those that the totals alone suggest; the bias's."""

    true: Ints
    attacked: Ints
    from_totals: Ints
    bias: Floats

    @property
    def cells(self) -> list[str]:
        """How much was found, and how far off it is."""
        exact, error = (self.attacked == self.true).mean(), np.abs(self.attacked - self.true).mean()
        correlation = np.mean([np.corrcoef(b, t)[0, 1] for b, t in zip(self.bias, self.true, strict=True)])
        return [f"{exact:.0%}", f"{error:.2f}", f"{correlation:.2f}"]


def attack(setting: Setting, seeds: range = SEEDS) -> Outcome:
    """Attack every client of some federations."""
    true, attacked, totals, bias = [], [], [], []
    for seed in seeds:
        experiment, rng = experiment_of(setting, seed), np.random.default_rng(seed)
        prior = experiment.rounds.trainer.population.prior
        layout = experiment.rounds.trainer.forward.network.layout
        head_bias = layout.head_slices[-1]
        for client in range(CLIENTS):
            shard = experiment.rounds.federation.shard(client)
            counts = shadow_counts(prior, len(shard), rng)
            rows = increments(experiment, shadow_shards(counts, experiment, rng))
            own = increments(experiment, [shard])
            guess = ridge(setting.view(rows, layout), counts.astype(float), setting.view(own, layout)[0])
            true.append(np.bincount(shard.labels, minlength=len(prior)))
            attacked.append(whole_counts(guess, len(shard)))
            totals.append(whole_counts(prior, len(shard)))
            bias.append(own[0, head_bias.start : head_bias.stop])
    return Outcome(np.stack(true), np.stack(attacked), np.stack(totals), np.stack(bias))


def sums_of_two_rounds(setting: Setting, after: int) -> str:
    """Return the cosine between the difference of two rounds' sums and the update of a client that left."""
    cosines = []
    for seed in SEEDS:
        experiment = experiment_of(setting, seed)
        rounds = experiment.rounds
        states = [rounds.start(experiment.x, experiment.buffers)]
        for _ in range(after):
            states.append(rounds.step(states[-1])[0])
        shards = [rounds.federation.shard(client) for client in range(CLIENTS)]
        first, second = (
            np.vstack([increments(experiment, [shard], state) for shard in shards]) for state in states[-2:]
        )
        for lost in range(CLIENTS):
            difference = first.sum(axis=0) - (second.sum(axis=0) - second[lost])
            lengths = np.linalg.norm(difference) * np.linalg.norm(first[lost])
            cosines.append(float(difference @ first[lost]) / lengths)
    return f"{np.mean(cosines):.2f} ± {np.std(cosines, ddof=1):.2f}"


def accuracy(setting: Setting) -> str:
    """Return the balanced accuracy after the last round."""
    values = [Runner(experiment_of(setting, s), None, Silent()).run().history[-1].balanced_accuracy for s in SEEDS]
    return f"{np.mean(np.array(values, dtype=float)):.2f} ± {np.std(np.array(values, dtype=float), ddof=1):.2f}"


def main() -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [
        "| training | counts found exactly | mean error | correlation of the bias increment | accuracy |",
        "|---|---|---|---|---|",
    ]
    outcome = None
    for setting in SETTINGS:
        outcome = attack(setting)
        lines.append(f"| {setting.name} | {' | '.join([*outcome.cells, accuracy(setting)])} |")
        print(lines[-1], flush=True)
    assert outcome is not None
    exact = (outcome.from_totals == outcome.true).mean()
    error = np.abs(outcome.from_totals - outcome.true).mean()
    mean = outcome.true.mean()
    lines.append(f"| secure aggregation: the totals alone | {exact:.0%} | {error:.2f} | | as without |")
    print(lines[-1], f"mean count {mean:.1f}")
    cosines = {f"{name}, rounds {r} and {r + 1}": sums_of_two_rounds(Setting("", name), r) for name, r in PAIRS}
    pairs = ["| sums of | cosine |", "|---|---|", *(f"| {name} | {value} |" for name, value in cosines.items())]
    write_blocks(PAGE, {"updates": lines, "two rounds": pairs})


if __name__ == "__main__":
    main()
