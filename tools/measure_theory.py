"""Write the tables of docs/results/theory.md: FedWCM on quadratics, where the minimum is known.

    python -m tools.measure_theory

Each client's objective is f_k(x) = ½‖x − c_k‖², c_k the client's class distribution, so L = 1, the minimum of the
mean is the overall class distribution, and that of Σ w_k f_k is the distribution that the weights make of it. The
hooks are those of the package's FedWCM; only the local loop is written here.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

import fedwcm
from fedwcm.balance import client_scores, client_weights, local_deviations, temperature
from fedwcm.core.types import Clients, Cohort, Context, Floats, Ints, Layout, Population, State
from fedwcm.data.longtail import class_counts
from fedwcm.data.partition import Equal, counts_of
from fedwcm.methods.fedwcm import FedWCM
from tools.generated import write_blocks

PAGE = Path(__file__).parents[1] / "docs" / "results" / "theory.md"
CLIENTS, SAMPLES, CLASSES, BATCH, LR = 20, 5000, 10, 50, 0.01
FACTORS = (1.0, 0.5, 0.1, 0.05, 0.01)


def main() -> None:
    """Write the tables."""
    write_blocks(
        PAGE,
        {"minimum": minimum(), "decay": decay(), "floor": floor(), "ordering": ordering(), "digits": digits()},
    )


def client_counts(imbalance: float, seed: int = 0) -> Ints:
    """A division of a long tail among clients of equal size, β 0.1."""
    labels = np.repeat(np.arange(CLASSES), class_counts(np.full(CLASSES, SAMPLES // CLASSES), imbalance))
    parts = Equal(clients=CLIENTS, beta=0.1)(labels, np.random.default_rng(seed))
    return counts_of(parts, labels, CLASSES)


@dataclass(frozen=True)
class Sums:
    """The server's view of the uploads."""

    delta: Tensor

    def sum(self, key: str, weights: Floats) -> Tensor:
        return torch.from_numpy(weights) @ self.delta

    def rows(self, key: str) -> Tensor:
        return self.delta


class Quadratics:
    """FedWCM on f_k(x) = ½‖x − c_k‖² with Gaussian noise on every gradient."""

    def __init__(self, counts: Ints, method: FedWCM, steps: int = 5, noise: float = 0.0, lr: float = LR) -> None:
        self.counts, self.method, self.steps, self.noise, self.lr = counts, method, steps, noise, lr
        sizes = counts.sum(axis=1)
        self.centres = torch.from_numpy(counts / sizes[:, None])
        self.mean = self.centres.mean(dim=0)
        totals = counts.sum(axis=0)
        self.population = Population(
            len(counts),
            counts.shape[1],
            float(sizes.mean()),
            totals / totals.sum(),
            1000,
            1,
            BATCH,
            deviation=float(local_deviations(counts).mean()),
        )
        self.clients = Clients(
            np.arange(len(counts)), sizes.astype(np.int64), counts.astype(np.int64), np.full(len(counts), steps)
        )

    def run(self, rounds: int, start: Tensor, seed: int = 0) -> list[Tensor]:
        """The global model before every round and after the last."""
        rng, x = torch.Generator().manual_seed(seed), start
        s = self.method.init(x, self.population)
        s = self.method.with_statistics(s, self.method.client_statistics(self.clients.counts, self.population))
        visited = [x]
        for r in range(rounds):
            x, s = self._round(r, x, s, rng)
            visited.append(x)
        return visited

    def _round(self, r: int, x: Tensor, s: State, rng: torch.Generator) -> tuple[Tensor, State]:
        rates = np.full(len(self.clients), self.lr)
        ctx = Context(0, r, x, self.method.broadcast(s), self.population, self.clients, rates, {})
        w = x.expand(len(self.clients), -1).clone()
        for _ in range(self.steps):
            noise = self.noise * torch.randn(w.shape, generator=rng, dtype=w.dtype) / w.shape[1] ** 0.5
            v, _ = self.method.direction(w, lambda y, e=noise: y - self.centres + e, {}, ctx)  # type: ignore[arg-type]
            w = w - self.lr * v
        upload, report, _ = self.method.finish(w, {}, ctx)
        report = {**report, **self.method.client_statistics(self.clients.counts, self.population)}
        cohort = Cohort(
            r,
            self.clients.ids,
            self.clients.samples,
            self.clients.steps,
            self.lr,
            rates,
            report,
            self.population,
            Layout.of([]),
            np.random.default_rng(r),
        )
        return self.method.update(x, s, Sums(upload["delta"]), cohort)


def weights_of(counts: Ints, scale: float) -> Floats:
    return client_weights(client_scores(counts), temperature(counts, scale=scale))


def minimum() -> list[str]:
    """Where FedWCM with everybody in every round ends."""
    head = ["IF", "temperature scale", "from the minimum of Σ w_k f_k", "from that of the mean"]
    head += ["the two apart", "rarest class: weighted, mean"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for imbalance in FACTORS:
        counts = client_counts(imbalance)
        for scale in (1.0, 0.25):
            task = Quadratics(counts, FedWCM(temperature_scale=scale))
            weighted = torch.from_numpy(weights_of(counts, scale)) @ task.centres
            end = task.run(600, torch.ones(CLASSES, dtype=torch.float64))[-1]
            far = [float((end - target).norm()) for target in (weighted, task.mean)]
            apart = float((weighted - task.mean).norm())
            shares = f"{float(weighted[-1]):.4f}, {float(task.mean[-1]):.4f}"
            lines.append(f"| {imbalance:g} | {scale:g} | {far[0]:.1e} | {far[1]:.4f} | {apart:.4f} | {shares} |")
    return lines


def decay() -> list[str]:
    """The mean of ‖∇f(x_r)‖² over R rounds beside the theorem's rate, with its α and step."""
    lines = [
        "| R | theorem's α | rate, constants left out | balanced, measured | IF 0.01, measured |",
        "|---|---|---|---|---|",
    ]
    noise, steps = 1.0, 5
    tasks = {imbalance: client_counts(imbalance) for imbalance in (1.0, 0.01)}
    start = torch.ones(CLASSES, dtype=torch.float64)
    for rounds in (10, 30, 100, 300, 1000, 3000):
        measured = {}
        for imbalance, counts in tasks.items():
            mean = torch.from_numpy(counts / counts.sum(axis=1, keepdims=True)).mean(dim=0)
            excess = 0.5 * float((start - mean).square().sum())
            alpha = min(1.0, float(np.sqrt(CLIENTS * steps * excess / (noise**2 * rounds))))
            gamma = min(1 / 24, alpha / 6)
            method = FedWCM(alpha=alpha, adaptive=False)
            task = Quadratics(counts, method, steps, noise, gamma / steps)
            path = task.run(rounds, start)[:-1]
            measured[imbalance] = float(np.mean([float((x - task.mean).square().sum()) for x in path]))
            rate = float(np.sqrt(excess * noise**2 / (CLIENTS * steps * rounds))) + excess / rounds
        lines.append(f"| {rounds} | {alpha:.3f} | {rate:.4f} | {measured[1.0]:.4f} | {measured[0.01]:.4f} |")
    return lines


def floor() -> list[str]:
    """From which R on the theorem's bound on α is below the method's floor of 0.1."""
    lines = ["| clients N | local steps K | σ² | bound below 0.1 from R | at R = 500 |", "|---|---|---|---|---|"]
    for clients, steps, variance in ((20, 5, 1.0), (20, 5, 100.0), (10, 20, 100.0), (10, 20, 1000.0)):
        excess = 0.5 * float(np.square(1 - 1 / CLASSES) * CLASSES)
        first = 100 * clients * steps * excess / variance
        bound = min(1.0, np.sqrt(clients * steps * excess / (variance * 500)))
        lines.append(f"| {clients} | {steps} | {variance:g} | {first:,.0f} | {bound:.3f} |")
    return lines


def ordering() -> list[str]:
    """How often the weighted mean of a cohort's gradients is closer to ∇f than the plain mean."""
    lines = [
        "| IF | scale | 5 of 20 clients | 10 of 20 | 20 of 20 | rank correlation |",
        "|---|---|---|---|---|---|",
    ]
    rng = np.random.default_rng(0)
    for imbalance in FACTORS[1:]:
        counts = client_counts(imbalance)
        centres = counts / counts.sum(axis=1, keepdims=True)
        mean = centres.mean(axis=0)
        apart = np.linalg.norm(centres - mean, axis=1)
        scores, t = client_scores(counts), temperature(counts, scale=0.25)
        closer = []
        for size in (5, 10, 20):
            draws = [rng.choice(CLIENTS, size, replace=False) for _ in range(2000 if size < CLIENTS else 1)]
            wins = [
                np.linalg.norm(client_weights(scores[k], t) @ centres[k] - mean)
                < np.linalg.norm(centres[k].mean(axis=0) - mean)
                for k in draws
            ]
            closer.append(f"{np.mean(wins):.0%}")
        rank = float(spearmanr(client_weights(scores, t), apart).statistic)
        lines.append(f"| {imbalance:g} | 0.25 | {' | '.join(closer)} | {rank:+.2f} |")
    return lines


def digits() -> list[str]:
    """‖∇f(x_r)‖² of real runs, by the diagnostic."""
    lines = ["| method | round 1 | 10 | 25 | 50 | mean over the rounds |", "|---|---|---|---|---|---|"]
    for method in ("fedavg", "fedcm", "fedwcm"):
        result = fedwcm.run(
            method,
            dataset="digits",
            clients=20,
            rounds=50,
            batch_size=10,
            diagnostics=["train_set"],
            backend="vectorized",
        )
        norms = [record.number("gradient_norm_squared") or 0.0 for record in result.history]
        shown = " | ".join(f"{norms[r - 1]:.4f}" for r in (1, 10, 25, 50))
        lines.append(f"| {method} | {shown} | {np.mean(norms):.4f} |")
    return lines


if __name__ == "__main__":
    main()
