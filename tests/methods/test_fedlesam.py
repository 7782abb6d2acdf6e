"""FedLESAM takes its gradients a step from the model, along the whole vector, from the right earlier model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedwcm.core.batch import Outputs
from fedwcm.core.method import Method
from fedwcm.core.types import Vec
from fedwcm.engine.forward import SequentialForward
from fedwcm.methods import METHODS
from fedwcm.methods.fedlesam import FedLESAM

from ..factories import Scripted, clusters, make_rounds, make_trainer, mlp, run_rounds


class Recording(SequentialForward):
    """Notes down every model that it is asked about, with the first one of each client's round in front."""

    def start(self, x: Vec, buffers: Vec) -> None:
        super().start(x, buffers)
        self.rounds: list[list[Tensor]] = [*getattr(self, "rounds", []), []]

    def __call__(self, w: Vec, inputs: Tensor, track: bool) -> Outputs:
        self.rounds[-1].append(w[0].clone())
        return super().__call__(w, inputs, track)


def first_points(method: Method, cohorts: list[list[int]]) -> tuple[list[Tensor], list[Tensor]]:
    """The model sent in each round, and where its only client took its first gradient."""
    data = clusters()
    training = make_trainer(method, data.federation, mlp())
    forward = Recording(training.forward.network)
    simulated = make_rounds(replace(training, forward=forward), data.federation, participation=Scripted(cohorts))
    sent = [forward.network.initial()[0], *(state.x for state, _ in run_rounds(simulated, len(cohorts)))]
    return sent, [points[0] for points in forward.rounds]


@pytest.mark.parametrize("name", ["fedlesam", "fedlesam-s", "fedlesam-d"])
def test_the_perturbation_is_the_whole_difference_of_global_models_scaled_to_rho(name: str) -> None:
    x, at = first_points(METHODS[name](rho=0.2), [[0], [0]])  # type: ignore[call-arg]
    assert torch.equal(at[0], x[0])  # no earlier model, no perturbation
    e = at[1] - x[1]
    assert torch.allclose(e, 0.2 * (x[0] - x[1]) / (x[0] - x[1]).norm(), rtol=1e-4)
    tensors = torch.split(e, [24, 6, 18, 3])  # weights and biases of the two layers
    # A flat vector that is read with a tensor's index shifts all of the tensor by one number.
    assert all(piece.std() > 1e-3 for piece in tensors)


def test_a_client_remembers_its_own_last_model_and_the_server_its_last_step() -> None:
    def unit(v: Tensor) -> Tensor:
        return v.div(v.norm())

    x, at = first_points(FedLESAM(rho=0.2, memory="client"), [[0], [1], [0]])
    assert torch.equal(at[1], x[1])  # client 1 has not been here before
    assert torch.allclose(at[2] - x[2], 0.2 * unit(x[0] - x[2]), rtol=1e-4)
    x, at = first_points(FedLESAM(rho=0.2, memory="server"), [[0], [1], [0]])
    assert torch.equal(at[0], x[0])
    assert torch.allclose(at[1] - x[1], 0.2 * unit(x[0] - x[1]), rtol=1e-4)
    assert torch.allclose(at[2] - x[2], 0.2 * unit(x[1] - x[2]), rtol=1e-4)
