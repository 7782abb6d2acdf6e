"""A real deployment on 127.0.0.1: TLS, node authentication, a database, five SuperNodes; and what may go wrong."""

import time
from pathlib import Path

import pytest

from fedwcm.experiment.folder import RunFolder

from .processes import Program, Site, wait_until, write_node_key
from .template import CLIENTS, assert_model_of, cohorts_of, in_simulator

pytestmark = pytest.mark.slow

PHASE = 240.0
"""Seconds that one exchange with all clients may take on a busy machine: each answer is a new process."""


def start_nodes(site: Site) -> dict[int, Program]:
    return {client: site.client_node(client, CLIENTS) for client in range(CLIENTS)}


def restart_node(site: Site, client: int, old: Program) -> Program:
    """Kill a node and start it again, as a supervisor would: it is refused until its old heartbeat has run out."""
    old.kill()
    deadline = time.monotonic() + 3 * PHASE
    while time.monotonic() < deadline:
        node = site.client_node(client, CLIENTS)
        wait_until(lambda: node.joined or not node.running, "the node joins, or is refused", PHASE)  # noqa: B023
        if node.running:
            return node
        node.kill()
    raise TimeoutError("the restarted node was not let in again")


ROUNDS = 7
STRAGGLER = f"flower.enough={CLIENTS - 1} flower.grace=5.0"
"""A round does not wait for the last of the clients."""


def submit(site: Site, method: str, rounds: int, out: Path, more: str = "") -> None:
    """Start a run, or continue the one in the folder."""
    options = f'method.name="{method}" run.rounds={rounds} flower.clients={CLIENTS} flower.min_clients=2'
    options += f' flower.timeout={PHASE} flower.patience={PHASE} flower.out="{out}" {more}'
    site.flwr("run", str(site.folder / "app"), "site", "--run-config", options)


def wait_for_round(out: Path, number: int) -> None:
    wait_until(lambda: len(RunFolder(out).metrics()) >= number, f"round {number}", 3 * PHASE)


def wait_for_end(out: Path) -> None:
    wait_until(lambda: RunFolder(out).finished, "the end of the run", 6 * PHASE)


def assert_refuses_a_stranger(site: Site) -> None:
    write_node_key(site.folder / "stranger")
    stranger = site.supernode("stranger", "partition-id=0")
    wait_until(lambda: not stranger.running, "the stranger is refused", PHASE)
    assert stranger.code
    assert "SuperNode could not establish a connection" in stranger.log.read_text()


def test_a_deployment_trains_as_the_simulator_and_survives_restarts(site: Site) -> None:
    superlink = site.superlink()
    for client in range(CLIENTS):
        site.register(f"node{client}")
    assert_refuses_a_stranger(site)

    nodes = start_nodes(site)
    out, second = site.folder / "scaffold", site.folder / "fedwcm"
    submit(site, "scaffold", ROUNDS, out, STRAGGLER)
    wait_for_round(out, 1)
    nodes[2] = restart_node(site, 2, nodes[2])
    wait_for_round(out, 2)

    nodes[3].stop()  # it answers too late for its round, and is not asked again before it has answered
    wait_until(
        lambda: any("3" in (r.left_out or {}) for r in RunFolder(out).metrics()), "it is left out", 6 * PHASE
    )
    nodes[3].resume()

    time.sleep(5)  # into the middle of a round
    done = RunFolder(out).metrics()
    superlink.kill()
    site.superlink()
    submit(site, "scaffold", ROUNDS, out, STRAGGLER)
    wait_for_end(out)
    history = RunFolder(out).metrics()
    assert history[: len(done)] == done
    assert [record.round for record in history] == list(range(1, ROUNDS + 1))
    assert len(list((site.folder / "state").glob("client-*.safetensors"))) == CLIENTS
    assert_model_of(out, in_simulator("scaffold", cohorts_of(history)))

    submit(site, "fedwcm", 2, second)
    wait_for_end(second)
    history = RunFolder(second).metrics()
    assert all(record.participants == CLIENTS for record in history)
    assert_model_of(second, in_simulator("fedwcm", cohorts_of(history)))
