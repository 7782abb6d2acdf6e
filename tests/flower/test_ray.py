"""Flower's own simulation, on Ray, with the same app: the same model as in our simulator."""

from pathlib import Path

import pytest

from fedwcm.experiment.folder import RunFolder

from .processes import Site, wait_until
from .template import CLIENTS, assert_model_of, cohorts_of, in_simulator

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedwcm[flower]'")

ROUNDS = 2


def run_federation(site: Site, method: str) -> Path:
    """A run on Ray, to its end; its folder."""
    out = site.folder / method
    options = f'method.name="{method}" run.rounds={ROUNDS} flower.clients={CLIENTS} flower.out="{out}"'
    simulation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus=2"
    app = str(site.folder / "app")
    site.flwr("run", app, "site", "--run-config", options, "--federation-config", simulation)
    wait_until(lambda: RunFolder(out).finished, "the end of the run", 600)
    return out


@pytest.mark.parametrize("site", [False], indirect=True, ids=["insecure"])
def test_ray_simulation_gives_the_simulator_s_model(site: Site) -> None:
    """SCAFFOLD keeps state on the clients, here in Flower's context; FedWCM counts classes and asks for scores."""
    site.superlink("--simulation")
    for method in ("scaffold", "fedwcm"):
        out = run_federation(site, method)
        history = RunFolder(out).metrics()
        assert [record.participants for record in history] == [CLIENTS] * ROUNDS
        assert_model_of(out, in_simulator(method, cohorts_of(history)))
