"""Replies whose objects Flower itself cannot unpack: the client that sent them is left out, and nobody else."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Array, ConfigRecord, Message
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedwcm.flower import client_app

from .federation import CLIENTS, FULL, OTHERS, VICTIM, data, finish, model, run_config
from .wire import Mischief, WireGrid, delay, honest, strike


def packed(kind: str, body: bytes) -> bytes:
    return f"{kind}  {len(body)}".encode() + b"\0" + body


def unpack(content: bytes) -> None:
    """Unpack an object as Flower's grid does, and take it for a message."""
    message = inflate_object_from_contents(get_object_id(content), {get_object_id(content): content})
    message.metadata.__dict__["_message_id"] = "some id"  # type: ignore[attr-defined]


def lose_connection() -> None:
    raise ConnectionError("the SuperLink is gone")


MALFORMED: dict[str, Callable[[], None]] = {
    "no protobuf": lambda: unpack(packed("ConfigRecord", b"\xff\xff\xff")),
    "no such kind": lambda: unpack(packed("Nothing", b"")),
    "no message": lambda: unpack(ConfigRecord({"a": 1}).deflate()),
    "no array": lambda: unpack(Array("float32", (1,), "x", b"").deflate()[:-1]),
}


class HarmedGrid(WireGrid):
    """Something happens when the answers of one client to a round are fetched. They are given away only once."""

    harm: Callable[[], None]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            answers = reply.content.config_records.get("answers") if reply.has_content() else None
            if answers is not None and answers["client"] == VICTIM:
                self.harm()
        return replies


def nodes_with(harm: Callable[[], None], mischief: Mischief = honest, **changes: Any) -> WireGrid:
    nodes = HarmedGrid(client_app(model=model, data=data), run_config("fedavg", **FULL, **changes), CLIENTS)
    nodes.harm, nodes.mischief = harm, mischief
    return nodes


@pytest.mark.parametrize("harm", MALFORMED.values(), ids=MALFORMED)
def test_a_reply_that_cannot_be_unpacked_leaves_out_its_client_alone(harm: Callable[[], None]) -> None:
    finished = finish(nodes_with(harm))
    assert [record.clients for record in finished.history] == [tuple(OTHERS)] * 3
    assert [record.left_out for record in finished.history] == [{str(VICTIM): "its answer cannot be unpacked"}] * 3


def test_a_lost_connection_is_no_fault_of_a_client() -> None:
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        finish(nodes_with(lose_connection))


def test_a_late_reply_that_cannot_be_unpacked_is_an_answer_all_the_same() -> None:
    """The client is asked again in the next round."""
    late = strike(delay(10.5), {VICTIM}, rounds={1})
    finished = finish(nodes_with(MALFORMED["no protobuf"], late, **{"flower.timeout": 10.0}))
    reasons = [(record.left_out or {})[str(VICTIM)] for record in finished.history]
    assert reasons == ["no answer within 10 s", *["its answer cannot be unpacked"] * 2]
