"""A client's part in counting under encryption. Its secret key stays on the node between messages."""

from typing import cast

from flwr.app import ConfigRecord, Context

from fedwcm.core.types import Ints

KEY = "fedwcm-key-holder"


def reply(request: bytes, client: int, counts: Ints, min_contributors: int, context: Context) -> bytes:
    """Answer one message of the protocol of `fedwcm.privacy`.

    A key that waits for its sum is kept in Flower's context: it never leaves the node, and is deleted once it is
    used or the SuperNode stops.
    """
    from fedwcm.privacy import Client, KeyHolder

    name, holder = str(client), None
    if KEY in context.state:
        kept = context.state.config_records.pop(KEY)
        holder = KeyHolder.from_secret_bytes(name, cast(bytes, kept["secret"]))
    participant = Client(name, counts, min_contributors=min_contributors, key_holder=holder)
    answer = participant.answer(request)
    if participant.key_holder is not None:
        context.state[KEY] = ConfigRecord({"secret": participant.key_holder.secret_bytes()})
    return answer
