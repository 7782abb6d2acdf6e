"""Secure aggregation between Flower's real programs: uploads wait on the nodes, from one process to the next."""

import pytest

from fedwcm.experiment.folder import RunFolder

from .processes import Site, wait_until
from .template import assert_model_of, cohorts_of, in_simulator

pytestmark = pytest.mark.slow

CLIENTS, ROUNDS = 4, 2


def test_a_deployment_learns_the_simulator_s_model_from_sums_alone(site: Site) -> None:
    app = site.folder / "app" / "app" / "client_app.py"
    code = app.read_text().replace("data=client_data", "data=client_data, mods=[secaggplus_mod]")
    app.write_text(f"from flwr.client.mod import secaggplus_mod\n\n{code}")
    out = site.folder / "out"
    options = f'method.name="fedwcm" run.rounds={ROUNDS} flower.clients={CLIENTS} flower.timeout=240.0'
    options += f' flower.patience=240.0 flower.secure_aggregation=true flower.out="{out}"'
    site.superlink()
    for client in range(CLIENTS):
        site.register(f"node{client}")
        site.client_node(client, CLIENTS)
    site.flwr("run", str(site.folder / "app"), "site", "--run-config", options)
    wait_until(lambda: RunFolder(out).finished, "the end of the run", 1800)
    history = RunFolder(out).metrics()
    assert [record.participants for record in history] == [CLIENTS] * ROUNDS
    assert_model_of(out, in_simulator("fedwcm", cohorts_of(history, CLIENTS), clients=CLIENTS))
