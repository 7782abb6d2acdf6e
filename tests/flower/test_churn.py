"""A deployment whose clients come and go: no round is lost, and no update counts twice."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwcm.experiment.folder import RunFolder
from fedwcm.flower.app.init import flower_init

from .processes import Program, Site, running_site, wait_until
from .template import assert_model_of, cohorts_of, in_simulator

pytestmark = pytest.mark.slow

CLIENTS, ROUNDS, DYING = 8, 20, 0.2
TIMEOUT = 120.0


class Churn(threading.Thread):
    """Every so often kills a node, as likely as not in the middle of its work, and starts it again later."""

    def __init__(self, site: Site, nodes: dict[int, Program]) -> None:
        super().__init__(daemon=True)
        self._site, self._nodes, self._rng = site, nodes, random.Random(0)
        self._stop_asked = threading.Event()
        self.deaths = 0

    def run(self) -> None:
        while not self._stop_asked.wait(15.0):
            for client in range(CLIENTS):
                node = self._nodes[client]
                if node.running and self._rng.random() < DYING / 4:
                    node.kill()
                    self.deaths += 1
                elif not node.running:  # killed, or refused because its old heartbeat still counts
                    self._nodes[client] = self._site.client_node(client, CLIENTS)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(timeout=60)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    flower_init(tmp_path / "app")
    with running_site(tmp_path) as site:
        yield site


def test_clients_that_die_and_come_back_lose_no_round_and_count_no_update_twice(site: Site) -> None:
    """SCAFFOLD's control variates add up only if server and clients agree on every answer that was used."""
    site.superlink()
    for client in range(CLIENTS):
        site.register(f"node{client}")
    nodes = {client: site.client_node(client, CLIENTS) for client in range(CLIENTS)}
    out = site.folder / "out"
    options = f'method.name="scaffold" run.rounds={ROUNDS} flower.clients={CLIENTS} flower.min_clients=1'
    options += f" flower.timeout={TIMEOUT} flower.enough={CLIENTS // 2} flower.grace=30.0 flower.patience=240.0"
    options += f' local.epochs=1 flower.out="{out}"'
    site.flwr("run", str(site.folder / "app"), "site", "--run-config", options)
    wait_until(lambda: len(RunFolder(out).metrics()) >= 1, "round 1", 600)
    churn = Churn(site, nodes)
    churn.start()
    began = time.monotonic()
    wait_until(lambda: RunFolder(out).finished, "the end of the run", 3600)
    churn.finish()
    history = RunFolder(out).metrics()
    print(f"{churn.deaths} deaths in {time.monotonic() - began:.0f} s:", [r.participants for r in history])
    assert churn.deaths > 0
    assert [record.round for record in history] == list(range(1, ROUNDS + 1))
    assert all(record.participants > 0 for record in history)
    assert any(record.left_out for record in history)
    simulated = in_simulator("scaffold", cohorts_of(history, CLIENTS), clients=CLIENTS, epochs=1)
    assert_model_of(out, simulated)
