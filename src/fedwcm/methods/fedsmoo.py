"""FedSMOO: FedDyn's consensus on the model, and a second one on the sharpness-aware perturbation.

Sun, Shen, Chen, Ding, Tao. Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching
Global Consistency and Smooth Landscape. ICML 2023. Sources: woodenchild95/FL-Simulator (the authors' code).

    e = rho · u/‖u‖,   u = g(w) − μ_k − s                 the client's perturbation, pulled towards the global one
    μ_k ← μ_k + e − s                                     its dual, at every local step
    v = g(w + e) + λ (h_k + w − x)                        direction, with FedDyn's dual h_k (`feddyn.py`)
    s⁺ = rho · μ̄/‖μ̄‖,   μ̄ = mean_S(μ_k)                   the global perturbation, sent with x

h, μ and s all start at 0. A client keeps two vectors (h_k, μ_k) and uploads two (increment, μ_k). rho = 0 is
FedDyn. The default follows the authors' code where it departs from their algorithm box: μ̄ is the mean of μ_k,
whereas the box takes μ_k minus the client's last e (`printed`, for which a client keeps a third vector). The two
differ by less than rho, and only the direction is used. BatchNorm's statistics and the training loss are those at
`w`.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.perturbation import perturbation
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Clients, Cohort, Context, GradientOracle, Population, Report, State, Uploads, Vec
from fedwcm.methods.feddyn import FedDyn


@dataclass(frozen=True, kw_only=True)
class FedSMOO(FedDyn):
    """FedDyn with a consensus on the perturbation.

    Args:
        rho: ρ, the length of the perturbations; 0 is FedDyn.
        printed: upload μ_k minus the last perturbation, as in the paper's algorithm box.
    """

    name: ClassVar[str] = "fedsmoo"

    rho: NonNegative = 0.1
    printed: bool = False

    def init(self, x: Vec, population: Population) -> State:
        return {**super().init(x, population), "perturbation": x.new_zeros(x.shape)}

    def init_client(self, x: Vec, clients: Clients) -> State:
        vectors = ("mu", "last") if self.printed else ("mu",)
        return {**super().init_client(x, clients), **{key: x.new_zeros(len(clients), len(x)) for key in vectors}}

    def broadcast(self, s: State) -> State:
        return {**super().broadcast(s), "perturbation": s["perturbation"]}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        shared = ctx.message["perturbation"]
        e = perturbation(grad(w) - c["mu"] - shared, self.rho)
        v, c = super().direction(w, grad.shifted(e), c, ctx)
        kept = {"last": e} if self.printed else {}
        return v, {**c, **kept, "mu": c["mu"] + e - shared}

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return {**upload, "mu": c["mu"] - c["last"] if self.printed else c["mu"]}, report, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x_next, s_next = super().update(x, s, uploads, cohort)
        mean = uploads.sum("mu", self.weights(s, cohort))
        return x_next, {**s_next, "perturbation": perturbation(mean, self.rho)}
