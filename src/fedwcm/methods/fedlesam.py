"""FedLESAM: sharpness-aware local steps with a perturbation estimated from the received global models.

Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang. Locally Estimated Global Perturbations are Better than Local
Perturbations for Federated Sharpness-aware Minimization. ICML 2024. Sources: MediaBrain-SJTU/FedLESAM (the
authors' code).

    e = rho · (x_prev − x) / ‖x_prev − x‖        uphill is the direction back to the earlier global model
    w ← w − lr · g(w + e)                        one gradient per step; e is the same for the whole round

x_prev is the global model of the client's previous active round, as in the paper (`memory="client"`, one model
kept on each client), or the global model before the last server step, for all clients (`memory="server"`, one more
vector sent to the clients, as in the authors' code). The default follows the paper: it is the method that was
analysed, and it keeps a client that was inactive for long from following a single noisy round. Prefer `"server"`
if clients cannot store a model or rarely participate twice. There is no perturbation at a client's first
participation (`"client"`) or in the first round (`"server"`).

Pitfalls avoided: the authors' code indexes its flat update vector with the index of a parameter tensor, so that a
whole tensor is shifted by one number from the start of the vector, and it sums the norms of these numbers instead
of taking the norm of the vector. An x_prev of zero at the first participation would shrink the weights.
BatchNorm's statistics and the training loss are those at w + e, the only point where the batch is evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedwcm.core.checks import Needs
from fedwcm.core.perturbation import perturbation
from fedwcm.core.ranges import NonNegative
from fedwcm.core.types import Clients, Cohort, Context, GradientOracle, Population, Report, State, Uploads, Vec
from fedwcm.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedwcm.core.method import Method as Base
else:
    Base = object  # as `SharpnessAware` in `sam.py`: the defaults are those of the method after it


@dataclass(frozen=True, kw_only=True)
class LESAM(Base):
    """Mix-in that takes the gradients of the method after it at the estimated global ascent.

    Args:
        rho: ρ, the length of the perturbation; 0 is the method without it.
        memory: where the earlier global model is kept: on each `client`, or on the `server` for all.
    """

    needs: ClassVar[Mapping[str, Needs]] = {"memory": Needs(lambda method: method.rho > 0, "rho > 0")}

    rho: NonNegative = 0.1
    memory: Literal["client", "server"] = "client"

    def init(self, x: Vec, population: Population) -> State:
        return {**super().init(x, population), **self._server_memory(x.new_zeros(x.shape))}

    def init_client(self, x: Vec, clients: Clients) -> State:
        return {**super().init_client(x, clients), **self._client_memory(x, len(clients))}

    def broadcast(self, s: State) -> State:
        own = {"perturbation": s["perturbation"]} if self.memory == "server" else {}
        return {**super().broadcast(s), **own}

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        if self.memory == "server":
            e = ctx.message["perturbation"]
        else:
            e = perturbation(c["previous"] - ctx.x, self.rho)
        return super().direction(w, grad.shifted(e), c, ctx)

    def finish(self, w: Vec, c: State, ctx: Context) -> tuple[State, Report, State]:
        upload, report, c = super().finish(w, c, ctx)
        return upload, report, {**c, **self._client_memory(ctx.x, len(w))}

    def update(self, x: Vec, s: State, uploads: Uploads, cohort: Cohort) -> tuple[Vec, State]:
        x_next, s = super().update(x, s, uploads, cohort)
        return x_next, {**s, **self._server_memory(perturbation(x - x_next, self.rho))}

    def _client_memory(self, x: Vec, clients: int) -> State:
        return {"previous": x.repeat(clients, 1)} if self.memory == "client" else {}

    def _server_memory(self, e: Vec) -> State:
        return {"perturbation": e} if self.memory == "server" else {}


@dataclass(frozen=True, kw_only=True)
class FedLESAM(LESAM, FedAvg):
    """FedAvg with gradients at the estimated global ascent."""

    name: ClassVar[str] = "fedlesam"
