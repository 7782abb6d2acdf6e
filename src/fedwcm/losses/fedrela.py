"""FedReLa's local loss: samples that look like a rarer class are given its label, once, late in training.

Hu, Menéndez, Liu, Gong, Wang, Peng. FedReLa: Imbalanced Federated Learning via Re-Labeling. ICML 2026. Sources:
guangzhengh/FedReLa (the authors' code).

p(i) are the probabilities of sample i under the model that the server has kept for it (`methods/fedrela.py`), y
its label, n_c the client's own samples of class c:

    z(i)    = (p(i) − mean over the class y of p) / their standard deviation          for each class c
    t_c     = the value that the share `threshold` of all z_c exceed
    rare_c  = 1 − (n_c − min n) / (max n − min n)
    flip_c  = tanh(z_c − t_c) · max(0, rare_c − rare_y)

Each class c takes the sample with probability flip_c; of those that do, the one with the largest flip_c becomes
the new label. Frequent classes thus give up samples near rarer ones, which moves the boundary. Before the server
sends that model, and with a method that sends none, this is cross-entropy.

Departures: the authors' code averages the probabilities of five augmented passes; here one pass without
augmentation. A client derives its labels anew in each round, from the same model and the same random numbers, so
that it need not keep them.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwcm.core.batch import Batch, LocalData, Outputs
from fedwcm.core.ranges import Share
from fedwcm.core.rng import Purpose, generator
from fedwcm.core.types import Context, Floats, Ints, State
from fedwcm.losses.cross_entropy import CrossEntropy

LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, kw_only=True)
class FedReLaLoss(CrossEntropy):
    """Cross-entropy with labels that were changed once.

    Args:
        threshold: share of the samples, for each class, that may be given its label.
    """

    name: ClassVar[str] = "fedrela"

    threshold: Share = 0.05

    def prepare(self, local: LocalData, ctx: Context) -> State:
        if "labeller" not in ctx.message:
            return {}
        rows, labels, posteriors = _predictions(local, ctx)
        changed = torch.zeros_like(labels)
        for k, (client, samples) in enumerate(zip(ctx.clients.ids, ctx.clients.samples, strict=True)):
            own = labels[k, :samples].cpu().numpy()
            rng = generator(ctx.seed, Purpose.LOSS, 0, int(client))
            new = relabel(posteriors[k, :samples].double().cpu().numpy(), own, self.threshold, rng)
            changed[k, :samples] = torch.from_numpy(new).to(changed.device)
        order = rows.argsort(dim=1)
        return {"rows": rows.gather(1, order), "labels": changed.gather(1, order)}

    def __call__(self, outputs: Outputs, batch: Batch, o: State, ctx: Context) -> tuple[Tensor, State]:
        if "labels" in ctx.prepared:
            place = torch.searchsorted(ctx.prepared["rows"], batch.rows.contiguous())
            place = place.clamp(max=ctx.prepared["rows"].shape[1] - 1)  # padding may be anybody's sample
            batch = replace(batch, labels=ctx.prepared["labels"].gather(1, place))
        return super().__call__(outputs, batch, o, ctx)


def relabel(p: Floats, y: Ints, threshold: float, rng: np.random.Generator) -> Ints:
    """Return the labels of a client's samples after some were changed, given probabilities `(n, C)`."""
    z = np.zeros_like(p)
    for c in np.unique(y):
        own = p[y == c]
        z[y == c] = (own - own.mean(axis=0)) / np.maximum(own.std(axis=0), LEAST_DEVIATION)
    exceeding = min(int(threshold * len(p)), len(p) - 1)
    limits = np.sort(z, axis=0)[len(p) - 1 - exceeding]
    counts = np.bincount(y, minlength=p.shape[1]).astype(np.float64)
    spread = counts.max() - counts.min()
    rarity = 1.0 - (counts - counts.min()) / spread if spread else np.ones(len(counts))
    flip = np.tanh(z - limits) * np.maximum(rarity - rarity[y][:, None], 0.0)
    hits = flip > rng.random(flip.shape)
    new: NDArray[np.int64] = np.where(hits.any(axis=1), np.where(hits, flip, -1.0).argmax(axis=1), y)
    return new


def _predictions(local: LocalData, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
    """Return each client's rows, labels and probabilities, with the largest number as row of what is padding."""
    model = ctx.message["labeller"].expand(len(ctx.clients), -1)
    parts = []
    for batch in local.batches():
        rows = batch.rows
        if batch.weight is not None:
            rows = rows.masked_fill(batch.weight == 0, torch.iinfo(torch.int64).max)
        parts.append((rows, batch.labels, local.outputs(model, batch).logits.softmax(dim=-1)))
    rows, labels, posteriors = (torch.cat(list(each), dim=1) for each in zip(*parts, strict=True))
    return rows, labels, posteriors
