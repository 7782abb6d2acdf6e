"""The two parts of FedWCM, for any method with FedCM's momentum: client weights and an adaptive alpha.

Li, Huang, Jiang, Xie, Liu, Du, Wang, Wu. FedWCM: Unleashing the Potential of Momentum-based Federated
Learning in Long-Tailed Scenarios. ICPP 2025. (Read: the paper.)

    s_k = Σ_c d_c n_kc / n_k                           Eq. 3: how much scarce data client k has
    w_k = softmax_k(s_k / T)                           Eq. 4, T = temperature_scale / (C · D)
    α⁺  = α₀ + (1 − α₀)(1 − e^(−D)) q,   q = ŝ_round/ŝ     Eq. 5, over the clients that answered

D is the distance of the class distribution from the target. Every client computes its own score from the
gathered distribution and reports that one number; the server never sees a client's counts.

Where the paper contradicts itself, the default is the reading that the text describes, and the printed form
is an option: d_c = max(p̂_c − p_c, 0) (`score="absolute"`: |p̂_c − p_c|, which favours head classes), exponent
D (`alpha_rule="temperature"`: T/C, under which more imbalance means more stale momentum), q as printed
(`q="inverse"`, `q="off"`).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fedwcm.balance import adaptive_alpha, client_scores, client_weights, discrepancy, temperature
from fedwcm.core.checks import require
from fedwcm.core.types import Cohort, Context, Floats, Ints, Population, Report, State, Vec
from fedwcm.methods.fedcm import FedCM


@dataclass(frozen=True, kw_only=True)
class WCM(FedCM):
    """Weights by scarcity and momentum by imbalance: mix in before a momentum method.

    Args:
        score: count only what is scarcer than the target (`scarcity`), or every deviation (`absolute`).
        temperature_scale: scale of the softmax temperature; smaller sets the clients further apart.
        alpha_rule: exponent of Eq. 5: the discrepancy D, or T/C as printed (`temperature`).
        q: the ratio of Eq. 5 as printed (`ratio`), upside down (`inverse`), or 1 (`off`).
        weighting: use the weights; `false` leaves the base method's (for an ablation).
        adaptive: adapt alpha; `false` keeps the base method's (for an ablation).
        target: the class distribution to steer towards, one share per class; uniform if not given.
    """

    score: Literal["scarcity", "absolute"] = "scarcity"
    temperature_scale: float = 0.25
    alpha_rule: Literal["discrepancy", "temperature"] = "discrepancy"
    q: Literal["ratio", "inverse", "off"] = "ratio"
    weighting: bool = True
    adaptive: bool = True
    target: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.temperature_scale > 0, "temperature_scale", self.temperature_scale, "positive")

    def survey(self, counts: Ints, population: Population) -> Report:
        return {"score": self._scores(counts, population)}

    def init(self, x: Vec, population: Population, survey: Report) -> State:
        mean = torch.tensor(float(np.mean(survey["score"])), dtype=torch.float64)
        return {**super().init(x, population, survey), "mean_score": mean}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return upload, {**report, "score": self._scores(ctx.clients.counts, ctx.population)}, c

    def weights(self, s: State, cohort: Cohort) -> Floats:
        if not self.weighting:
            return super().weights(s, cohort)
        return client_weights(cohort.report["score"], self._temperature(cohort.population))

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        if not self.adaptive:
            return super().next_alpha(s, cohort)
        overall, this_round = float(s["mean_score"]), float(np.mean(cohort.report["score"]))
        if self.q == "off":
            this_round, overall = 1.0, 1.0
        elif self.q == "inverse":
            this_round, overall = overall, this_round
        return adaptive_alpha(self._exponent(cohort.population), this_round, overall, self.alpha)

    def _scores(self, counts: Ints, population: Population) -> Floats:
        return client_scores(counts, self.target, self.score, prior=population.prior)

    def _temperature(self, population: Population) -> float:
        return temperature(population.prior[None], self.target, self.temperature_scale)

    def _exponent(self, population: Population) -> float:
        if self.alpha_rule == "temperature":
            return self._temperature(population) / population.classes
        return discrepancy(population.prior[None], self.target)
