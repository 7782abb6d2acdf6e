"""Who was left out, how much each client counted, and the bound in force: in the report and in `watch`."""

from pathlib import Path
from typing import Any

from rich.console import Console

from fedwcm.dashboard.follow import Snapshot, WatchedRun
from fedwcm.dashboard.frame import frame
from fedwcm.experiment.influence import describe_influence
from fedwcm.experiment.records import RoundRecord
from tests.records import round_record


def a_round(number: int, **more: Any) -> RoundRecord:
    return RoundRecord.from_json({**round_record(number).to_json(), **more}, "a test")


HISTORY = (
    a_round(1, clients=[0, 1, 2], weights=[0.2, 0.4, 0.4], left_out={"3": "no answer within 5 s"}, max_norm=2.0),
    a_round(
        2,
        clients=[0, 1],
        weights=[0.5, 0.5],
        left_out={"3": "its upload is long", "2": "error"},
        max_norm=1.5,
        per_client={"0": {"accuracy": 0.9}, "1": {"accuracy": 0.25}, "2": {"accuracy": 0.5, "loss": 1.0}},
    ),
)


def test_an_operator_reads_who_was_left_out_how_often_and_why() -> None:
    assert describe_influence(HISTORY, {}) == [
        "Client 3 was left out of 2 of 2 rounds; last reason: its upload is long.",
        "Client 2 was left out of 1 of 2 rounds; last reason: error.",
        "Client 1 had the largest share of a round's weight, 0.45 on average; no share was above 0.50.",
        "The bound on the norm of an increment was 1.5 in round 2; "
        "0 increments were scaled down to it in 2 rounds.",
        "Clients said in round 2 how the model does on their own data: the median accuracy of 3 is 0.500, "
        "lowest are 1 (0.250), 2 (0.500), 0 (0.900).",
    ]
    many = a_round(1, left_out={str(client): "gone" for client in range(9)})
    assert describe_influence([many], {})[-1] == "Also left out: 5, 6, 7, 8."
    plain = a_round(1, clients=[0, 1], weights=[0.5, 0.5])
    assert describe_influence([plain], {}) == []
    assert len(describe_influence([plain], {"aggregation.max_share": 0.2})) == 1


def test_watch_shows_it_while_the_run_goes_on() -> None:
    run = WatchedRun("site run", Path("run"), 10, HISTORY, None, 0.0)
    console = Console(width=100, record=True, force_terminal=False)
    console.print(frame(Snapshot([run], []), 100, None))
    text = console.export_text()
    assert "left out  3 (2×), 2 (1×)" in text
    assert "last: error" in text
    assert "0.500 median accuracy, 0.250 the lowest (1)" in text
    assert "1.500 on norms, 0 scaled down" in text
    assert "0.50 largest share of the round" in text
