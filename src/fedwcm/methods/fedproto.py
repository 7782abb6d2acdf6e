"""FedProto: clients share class means of their features, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI
2022. Sources: yuetan031/FedProto (the authors' code).

After its last step, client k adds up the features f of its trained model by class, and the server makes

    m_c = Σ_k Σ_{i of class c} f_k(i) / Σ_k n_kc                     the loss `fedproto` pulls features towards m_c

Models stay with the clients: their accuracies are those of their own models (`client_mean`), x never moves, and
its test accuracy says nothing. `--method fedproto` selects this method with its loss. A class that nobody of the
round has keeps its mean. The server sees only sums.

Departures: the authors' server averages the means of the clients equally, where the paper weights them by samples,
as here; their clients may have models of different widths; clients send zeros in place of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedwcm.core.batch import LocalData
from fedwcm.core.checks import Needs
from fedwcm.core.method import FinalPass
from fedwcm.core.types import Cohort, Context, Layout, ParamSlice, Report, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg
from fedwcm.methods.head import CLASS_COUNTS, features_of
from fedwcm.methods.own_parts import OwnParts

AVERAGED = Needs(lambda method: False, "a model that the server averages, which fedproto does not have")


@dataclass(frozen=True, kw_only=True)
class FedProto(FinalPass, OwnParts, FedAvg):
    """Clients that train alone, with class means in common."""

    name: ClassVar[str] = "fedproto"
    own_buffers: ClassVar[bool] = True
    discloses: ClassVar[str] = CLASS_COUNTS
    needs: ClassVar[Mapping[str, Needs]] = {"server_lr": AVERAGED, "average": AVERAGED}

    def own_slices(self, layout: Layout) -> Sequence[ParamSlice]:
        return layout.slices

    def conclude(self, w: Vec, local: LocalData, ctx: Context) -> State:
        parts = [(members.mT @ features, members.sum(dim=1)) for features, members in features_of(local, ctx, w)]
        sums, counts = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
        return {"class_sums": sums, "class_counts": counts}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        sums = {key: ctx.prepared[key] for key in ("class_sums", "class_counts")}
        return {**upload, **sums}, report, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        ones = np.ones(len(cohort))
        sums, counts = (uploads.sum(key, ones) for key in ("class_sums", "class_counts"))
        means = sums / counts.clamp(min=1.0)[:, None]
        known = counts > 0
        if "means" in s:
            means, known = torch.where(known[:, None], means, s["means"]), known | s["known"].bool()
        return x, {"means": means, "known": known.to(x.dtype)}

    def broadcast(self, s: State) -> State:
        return s
