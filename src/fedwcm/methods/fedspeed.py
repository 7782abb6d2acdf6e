"""FedSpeed: FedDyn's penalty and dual, with the gradient taken at the ascended point.

Sun, Shen, Huang, Ding, Tao. FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy. ICLR 2023. Sources: woodenchild95/FL-Simulator (the authors' code).

    v = g(w + rho · g(w)/‖g(w)‖) + λ (h_k + w − x)        direction of each local step
    h_k⁺ = h_k + (w_k − x),   x⁺ = mean_S(w_k) + mean_N(h_k⁺)     as FedDyn (`feddyn.py`)

`lam` is the inverse of the paper's λ: the paper's 0.1 is 10 here. rho = 0 is FedDyn. The default follows the
authors' code where it departs from their algorithm box: the server adds the mean dual of all clients, whereas the
box averages the corrected models w_k + h_k⁺ of the round's clients alone (`printed`):

    x⁺ = mean_S(w_k + h_k⁺)

The box also mixes the ascended gradient with the plain one, by a share that its experiments set to 1, as here.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedwcm.core.checks import require
from fedwcm.core.types import Cohort, Context, Report, State, Uploads, Vec
from fedwcm.methods.feddyn import FedDyn
from fedwcm.methods.sam import SharpnessAware


@dataclass(frozen=True, kw_only=True)
class FedSpeed(SharpnessAware, FedDyn):
    """FedDyn with gradients at the ascended point.

    Args:
        rho: ρ, the length of the ascent step; 0 is FedDyn.
        printed: average the corrected models of the round's clients, as in the paper's algorithm box.
    """

    name: ClassVar[str] = "fedspeed"

    printed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        compatible = not (self.printed and self.eval_model == "average")
        require(compatible, "eval_model", self.eval_model, "server with printed = true, which keeps no mean dual")

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        corrected = self.printed and self.lam > 0  # without a penalty there is nothing to correct: FedAvg
        return ({"delta": upload["delta"] + c["dual"]} if corrected else upload), report, c

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        if not self.printed:
            return super().update(x, s, uploads, cohort)
        return x + self.server_lr * uploads.sum("delta", self.weights(s, cohort)), s
