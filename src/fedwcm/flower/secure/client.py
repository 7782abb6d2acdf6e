"""A client's part in secure aggregation: its upload stays on the node, and leaves it only weighted and masked.

Keys, shares and masks are made by Flower's own mod, which is led through its stages by the server's messages
(`protocol.py`). It is shown messages as Flower's own server would send them.
"""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from fedwcm.core.types import Floats
from fedwcm.engine.backends.in_process import NOT_FINITE
from fedwcm.flower.client.mods import TRAIN, Mod
from fedwcm.flower.records import FINITE

KEPT, KEPT_FOR = "fedwcm-upload", "fedwcm-upload-for"
SUM = "sum"
"""Name of the record that says which sum a client is asked for."""
REQUEST = ("run_id", "round", "task")
"""What identifies the request that an upload answers."""


def keep_upload(answer: RecordDict, context: Context) -> RecordDict:
    """Keep the upload in Flower's context until the next one; return the answer without it.

    If it is not finite, the answer says so: the server cannot see it, and must know when training has diverged.
    """
    upload = answer.array_records["upload"]
    if not all(np.isfinite(array.numpy()).all() for array in upload.values()):
        return RecordDict({"answers": ConfigRecord({**answer.config_records["answers"], FINITE: False})})
    context.state[KEPT] = upload
    context.state[KEPT_FOR] = ConfigRecord({name: answer.config_records["answers"][name] for name in REQUEST})
    return RecordDict({**answer, "upload": ArrayRecord()})


def answer_stage(mod: Mod, message: Message, context: Context, client: int) -> RecordDict:
    """Return the mod's answer to a stage of the protocol, which identifies clients by their own numbers."""
    metadata, content = message.metadata, message.content
    kind, address = metadata.message_type, metadata.dst_node_id

    def vectors(request: Message, _: Context) -> Message:
        return Message(_weigh(content.config_records[SUM], context), reply_to=request)

    metadata.message_type, metadata.dst_node_id = TRAIN, client
    try:
        reply = mod(message, context, vectors)
    finally:
        metadata.message_type, metadata.dst_node_id = kind, address
    return RecordDict({RECORD_KEY_CONFIGS: reply.content.config_records[RECORD_KEY_CONFIGS]})


def _weigh(question: ConfigRecord, context: Context) -> RecordDict:
    """Return the upload times each of the weights, as the result of training that Flower's mod expects."""
    facts: dict[str, Any] = dict(question)
    kept = dict(context.state.config_records[KEPT_FOR]) if KEPT_FOR in context.state else {}
    if any(kept.get(name) != facts[name] for name in REQUEST):
        raise ValueError(f"the upload of round {facts['round']} is no longer here")
    upload = context.state.array_records[KEPT][facts["key"]].numpy().astype(np.float64).reshape(-1)
    table: Floats = np.outer(facts["weights"], upload)
    largest = float(np.abs(table).max(initial=0.0))
    if not np.isfinite(largest):
        raise ValueError(f"its upload {facts['key']!r} {NOT_FINITE}")
    if largest > facts["limit"]:
        raise ValueError(
            f"its upload {facts['key']!r} has an entry of {largest:.3g}: flower.secure_range = {facts['limit']:g} "
            "is the largest that can be summed securely"
        )
    return RecordDict(
        {
            "fitres.parameters": ArrayRecord({"weighted": Array(table)}),
            "fitres.num_examples": MetricRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
