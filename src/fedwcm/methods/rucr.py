"""RUCR's server: class means of all clients unify the features, and a head re-trained on mixtures is evaluated.

RUCR: Representation Unified Classifier Re-training for Class-Imbalanced Federated Learning. Sources:
gzhu-hcai/LongTailLib (2026, a copy of the authors' code).

In a first phase, clients send class sums of their features f at the received model x, and the server makes

    m_c = Σ_k Σ_{i of class c} f(i) / Σ_k n_kc                       for the loss `rucr`
    q_c = Σ_k n_kc · (mean of client k's class c, normalised) / Σ_k n_kc

In the last `last` rounds each client, after training, trains its head for `retrain_epochs` on `mixtures` features
of every class, and the mean of these heads, weighted by samples, takes the place of the head for evaluation:

    λ q_c + (1 − λ) f(i)/‖f(i)‖        λ ~ U(0.35, 0.95), i any of the client's samples, c the label

A rare class thus has as many features as another, on every client. `--method rucr` selects this method with the
loss `rucr`. Clients upload 2 C d + C numbers in the first phase, and a head in the last rounds; the server sees
only sums.

Departures: their code asks all clients for means in the last rounds; here those of the round are used.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from fedwcm.core.batch import LocalData
from fedwcm.core.method import LocalPass, TwoPhase, mean_weights
from fedwcm.core.ranges import Count, Positive
from fedwcm.core.rng import Purpose
from fedwcm.core.types import Cohort, Context, Report, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import CLASS_COUNTS, features_of, head_of, train_head, with_head

LEAST_SHARE, MOST_SHARE = 0.35, 0.95
"""Of the class mean in a mixture."""


@dataclass(frozen=True, kw_only=True)
class RUCR(TwoPhase, LocalPass, FedAvg):
    """FedAvg with unified class means and a head re-trained on mixtures.

    Args:
        last: rounds at the end in which heads are re-trained.
        mixtures: mixed features per class.
        retrain_epochs: passes over the mixed features.
        retrain_lr: learning rate of the re-training.
        retrain_batch: mixed features per mini-batch.
    """

    name: ClassVar[str] = "rucr"
    replaces_head: ClassVar[bool] = True
    discloses: ClassVar[str] = CLASS_COUNTS

    last: Count = 20
    mixtures: Count = 100
    retrain_epochs: Count = 50
    retrain_lr: Positive = 0.01
    retrain_batch: Count = 256

    @property
    def depends_on_rounds(self) -> bool:
        return True

    def retrains(self, round_: int, rounds: int) -> bool:
        """Return whether heads are re-trained in this round."""
        return round_ >= rounds - self.last

    def probe(self, local: LocalData, ctx: Context) -> State:
        sums: Tensor | float = 0.0
        for features, members in features_of(local, ctx):
            sums = sums + members.mT @ features
        counts = torch.as_tensor(ctx.clients.counts, dtype=ctx.x.dtype, device=ctx.x.device)
        assert isinstance(sums, Tensor)
        return {"sums": sums, "directions": counts[..., None] * normalize(sums, dim=-1), "counts": counts}

    def after_probe(self, s: State, uploads: Uploads, cohort: Cohort) -> State:
        sums, directions, counts = (
            uploads.sum(key, np.ones(len(cohort))) for key in ("sums", "directions", "counts")
        )
        divisor = counts.clamp(min=1.0)[:, None]
        return {**s, "means": sums / divisor, "directions": directions / divisor}

    def broadcast(self, s: State) -> State:
        return {key: s[key] for key in ("means", "directions") if key in s}

    def prepare(self, local: LocalData, ctx: Context) -> State:
        if not self.retrains(ctx.round, ctx.population.rounds):
            return {}
        parts = [features for features, _ in features_of(local, ctx)]
        units, directions, mixed = normalize(torch.cat(parts, dim=1), dim=-1), ctx.message["directions"], []
        for k, (samples, rng) in enumerate(zip(ctx.clients.samples, ctx.generators(Purpose.METHOD), strict=True)):
            rows = torch.from_numpy(rng.integers(samples, size=(len(directions), self.mixtures)))
            share = torch.from_numpy(rng.uniform(LEAST_SHARE, MOST_SHARE, size=rows.shape)).to(units)[..., None]
            mixed.append(share * directions[:, None] + (1.0 - share) * units[k][rows.to(units.device)])
        return {"mixed": torch.stack(mixed)}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        if "mixed" not in ctx.prepared:
            return upload, report, c
        heads = [
            self.retrain_head(row, mixed, ctx, rng)
            for row, mixed, rng in zip(w, ctx.prepared["mixed"], ctx.generators(Purpose.METHOD), strict=True)
        ]
        return {**upload, "head": torch.stack(heads)}, report, c

    def retrain_head(self, w: Vec, mixed: Tensor, ctx: Context, rng: np.random.Generator) -> Tensor:
        """Return a client's head `(C, columns)` after training on its mixed features `(C, mixtures, d)`."""
        head, width = head_of(w, ctx.layout)
        inputs = pad(mixed.reshape(-1, width), (0, head.shape[1] - width), value=1.0)
        targets = torch.eye(len(head), dtype=w.dtype, device=w.device).repeat_interleave(self.mixtures, dim=0)
        shuffles = torch.Generator().manual_seed(int(rng.integers(2**63)))
        passes = self.retrain_epochs, self.retrain_batch, self.retrain_lr
        return train_head(head, inputs, targets, *passes, shuffles)

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x, s = super().update(x, s, uploads, cohort)
        if not self.retrains(cohort.round, cohort.population.rounds):
            return x, s
        head = uploads.sum("head", mean_weights("samples", cohort))
        start = torch.tensor(cohort.layout.head_slices[0].start)
        return x, {**s, "head": head, "head_start": start}

    def eval_params(self, x: Vec, s: State) -> Vec:
        return with_head(x, int(s["head_start"]), s["head"], s["means"].shape[-1]) if "head" in s else x
