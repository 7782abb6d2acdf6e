"""FedWCM (Algorithm 1) and FedWCM-X (Algorithm 2): FedCM with weights and momentum adapted to a long tail.

Li, Huang, Jiang, Xie, Liu, Du, Wang, Wu. FedWCM: Unleashing the Potential of Momentum-based Federated
Learning in Long-Tailed Scenarios. ICPP 2025. Sources: the paper.

    s_k = Σ_c d_c n_kc / n_k                                Eq. 3: how much scarce data client k holds
    v   = α_r g + (1 − α_r) Δ_r                             each local step, x_k ← x_k − η_l v
    w_k = softmax_k(s_k / T),   T = temperature_scale / (C · D)        Eq. 4
    α_{r+1} = α₀ + (1 − α₀)(1 − e^(−L)) q_r,   q_r = ŝ_round / ŝ       Eq. 5
    Δ_{r+1} = Σ_k w_k (x_r − x_k) / (η_l B_k)
    x_{r+1} = x_r + η_g Σ_k w_k (x_k − x_r)

D is the distance of the class distribution p from the target p̂ (`run.target`, uniform by default), L the mean
over all clients of their own distance, ‖p̂ − p_k‖₁; p and L are gathered before round 1, as sums over all clients
(`core/disclosure.py`). Every client then computes its own score and reports only that number; the server needs no
client's counts. Scores, weights and q_r are computed over the clients that answered. Where every client's data is
balanced, and all have the same size, FedWCM is FedCM.

Where the paper contradicts itself, the default follows the intent stated in the text or what measurement
recommends, and the printed form is an option: d_c = max(p̂_c − p_c, 0) (`score="absolute"`: |p̂_c − p_c|, which
favours head classes; `"local"`: the client's own distance, as in the prose), exponent L
(`alpha_rule="temperature"`: T/C, under which more imbalance means more stale momentum; `"temperature-clients"`: T
over the number of clients; `"discrepancy"`: D, which vanishes on balanced data however much the clients differ;
`"heterogeneity"`: H, the mean distance ‖p − p_k‖₁ from the distribution of all data, which vanishes where all
clients are alike however long the tail, as Appendix E argues: every client then reports a second number),
q as printed (`q="inverse"`, `q="off"`). The server step and the normaliser are FedCM's options (`fedcm.py`).

FedWCM-X is for clients of unequal size:

    η'_l = η_l · B̂ / B_k           B̂ = E·⌈n̄/b⌉, the steps of a client of mean size
    w'_k ∝ w_k · n_k               renormalised to sum to 1; `normalize=false` is as printed, w_k n_k / Σ n_j

Every client's path then has the length η_l·B̂, and with `momentum_norm="exact"` the normaliser is the 1/(η_l B̂) of
the algorithm box and the gain is exactly 1 − α. The printed weights sum to about 1/m for m clients, which divides
the step by the number of sampled clients. A client far below the mean size trains at a multiple of the learning
rate, which can make it diverge; `rate_limit=1` only lowers rates, for which alone the text gives a reason (large
clients take too many steps). The gain is 1 − α with any rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch

from fedwcm.balance import (
    adaptive_alpha,
    client_scores,
    client_weights,
    discrepancy,
    local_deviations,
    temperature,
)
from fedwcm.core.checks import Needs
from fedwcm.core.method import ClientStatistics, LocalRates, mean_weights
from fedwcm.core.ranges import Positive
from fedwcm.core.types import (
    Cohort,
    Context,
    Floats,
    GradientOracle,
    Ints,
    Population,
    Report,
    State,
    Uploads,
    Vec,
)
from fedwcm.methods.fedcm import FedCM

if TYPE_CHECKING:
    Base = FedCM
else:
    Base = object  # as `SharpnessAware` in `sam.py`: the defaults are those of the method after it


@dataclass(frozen=True, kw_only=True)
class WCM(ClientStatistics, Base):
    """FedWCM's two parts, client weights and an adaptive alpha: mix in before a method with FedCM's momentum.

    Args:
        score: count only what is scarcer than the target (`scarcity`), or every deviation (`absolute`), or
            the distance of the client's own distribution from the target (`local`).
        temperature_scale: scale of the softmax temperature; a smaller one makes the weights less even.
        alpha_rule: exponent of Eq. 5: the clients' mean distance from the target (`local`) or from the
            distribution of all data (`heterogeneity`), the distance of all data from the target
            (`discrepancy`), or T/K as printed with K the classes (`temperature`) or the clients
            (`temperature-clients`).
        q: the ratio of Eq. 5 as printed (`ratio`), inverted (`inverse`), or 1 (`off`).
        weighting: use the client weights; `false` keeps the base method's (for an ablation).
        adaptive: adapt alpha; `false` keeps the base method's (for an ablation).
    """

    needs: ClassVar[Mapping[str, Needs]] = {
        "average": Needs(
            lambda method: not method.weighting, "weighting = false: FedWCM's weights take its place"
        ),
        "score": Needs(
            lambda method: method.weighting or (method.adaptive and method.q != "off"),
            "weighting = true, or adaptive = true with q = ratio or inverse",
        ),
        "temperature_scale": Needs(
            lambda method: method.weighting or (method.adaptive and method.alpha_rule.startswith("temperature")),
            "weighting = true, or adaptive = true with an alpha_rule of the temperature",
        ),
        "alpha_rule": Needs(lambda method: method.adaptive, "adaptive = true"),
        "q": Needs(lambda method: method.adaptive, "adaptive = true"),
    }

    score: Literal["scarcity", "absolute", "local"] = "scarcity"
    temperature_scale: Positive = 0.25
    alpha_rule: Literal["local", "heterogeneity", "discrepancy", "temperature", "temperature-clients"] = "local"
    q: Literal["ratio", "inverse", "off"] = "ratio"
    weighting: bool = True
    adaptive: bool = True

    def client_statistics(self, counts: Ints, population: Population) -> Report:
        """Return s_k (Eq. 3), and ‖p − p_k‖₁ where alpha follows it."""
        report = {"score": client_scores(counts, population.target, self.score, prior=population.prior)}
        if self._follows_heterogeneity:
            report["distance"] = local_deviations(counts, population.prior)
        return report

    def statistics_range(self, population: Population) -> Mapping[str, tuple[float, float]]:
        """Return the bounds of the reported numbers; a distance may also be 0."""
        bounds = dict(super().statistics_range(population))
        distances = {"distance", "score"} if self.score == "local" else {"distance"}
        return bounds | {key: (0.0, bounds[key][1]) for key in distances & bounds.keys()}

    def with_statistics(self, s: State, statistics: Report) -> State:
        """Return the state with ŝ, the mean score of all clients, and H where alpha follows it."""
        s = {**s, "mean_score": torch.tensor(np.mean(statistics["score"]))}
        if self._follows_heterogeneity:
            s["heterogeneity"] = torch.tensor(np.mean(statistics["distance"]))
        return s

    def weights(self, s: State, cohort: Cohort) -> Floats:
        """Return w_k (Eq. 4)."""
        if not self.weighting:
            return super().weights(s, cohort)
        return cohort.limit_shares(client_weights(cohort.report["score"], self._temperature(cohort.population)))

    def usual_weights(self, samples: Ints) -> Floats:
        return np.ones(len(samples)) if self.weighting else super().usual_weights(samples)

    def next_alpha(self, s: State, cohort: Cohort) -> float:
        """Return α_{r+1} (Eq. 5)."""
        if not self.adaptive:
            return super().next_alpha(s, cohort)
        overall, this_round = float(s["mean_score"]), float(np.mean(cohort.report["score"]))
        if self.q == "off":
            this_round, overall = 1.0, 1.0
        elif self.q == "inverse":
            this_round, overall = overall, this_round
        return adaptive_alpha(self._exponent(s, cohort.population), this_round, overall, self.alpha)

    def _temperature(self, population: Population) -> float:
        return temperature(population.prior[None], population.target, self.temperature_scale)

    @property
    def _follows_heterogeneity(self) -> bool:
        return self.adaptive and self.alpha_rule == "heterogeneity"

    def _exponent(self, s: State, population: Population) -> float:
        if self.alpha_rule == "heterogeneity":
            return float(s["heterogeneity"])
        if self.alpha_rule == "temperature":
            return self._temperature(population) / population.classes
        if self.alpha_rule == "temperature-clients":
            return self._temperature(population) / population.clients
        if self.alpha_rule == "local":
            return population.deviation
        return discrepancy(population.prior[None], population.target)


@dataclass(frozen=True, kw_only=True)
class FedWCM(WCM, FedCM):
    """Algorithm 1. The loop is FedCM's, written out for comparison with the algorithm box; the rest is `WCM`."""

    name: ClassVar[str] = "fedwcm"

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        alpha = float(ctx.message["alpha"])
        return alpha * grad(w) + (1.0 - alpha) * ctx.message["momentum"], c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        weights = self.weights(s, cohort)
        alpha = self.next_alpha(s, cohort)
        delta, momentum = uploads.sum("delta", np.stack([weights, -weights / self.path_length(cohort)]))
        step = delta if self.server_step == "average" else -momentum
        s = {**s, "momentum": momentum, "alpha": torch.tensor(alpha, dtype=torch.float64)}
        return x + self.server_lr * step, s


@dataclass(frozen=True, kw_only=True)
class FedWCMX(LocalRates, FedWCM):
    """Algorithm 2: FedWCM with sample weights, and learning rates scaled to a common path length.

    Args:
        normalize: renormalise the weights to sum to 1; `false` is the printed form.
        rate_limit: largest learning rate of a client, as a multiple of `local.lr`; `none` is the printed form.
    """

    name: ClassVar[str] = "fedwcm-x"
    needs: ClassVar[Mapping[str, Needs]] = {
        "average": Needs(lambda method: False, "the method fedwcm: this one weights by samples"),
        "normalize": Needs(lambda method: method.weighting, "weighting = true"),
    }

    normalize: bool = True
    rate_limit: Positive | None = None

    def paths(self, population: Population, samples: Ints) -> Floats:
        path = super().paths(population, samples)
        return path * self._rate_factors(population, path)

    def usual_weights(self, samples: Ints) -> Floats:
        return samples.astype(float)

    def local_lr(self, ctx: Context) -> Floats:
        path = ctx.population.path(ctx.clients.steps)
        return ctx.learning_rates * self._rate_factors(ctx.population, path)

    def weights(self, s: State, cohort: Cohort) -> Floats:
        share = mean_weights("samples", cohort)
        if not self.weighting:
            return share
        weights = super().weights(s, cohort) * share
        return cohort.limit_shares(weights / weights.sum() if self.normalize else weights)

    def _rate_factors(self, population: Population, path: Floats) -> Floats:
        """Return B̂ / B_k, or with momentum the ratio of the paths, up to the limit."""
        factors: Floats = population.path(np.array(population.reference_steps)) / path
        return factors if self.rate_limit is None else np.minimum(factors, self.rate_limit)
