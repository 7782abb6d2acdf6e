"""Send messages to nodes and hand on their replies one by one; a late node is not asked anything meanwhile."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Thread

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from fedwcm.core.types import Fault, LeftOut
from fedwcm.flower.untrusted import UnusableError, refuse_error

Receive = Callable[[int, RecordDict], None]
"""Takes the reply of a node; raises an UnusableError if it cannot be used."""

MALFORMED = (DecodeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What Flower raises when it cannot unpack the objects of a reply; a lost connection raises none of these."""
LARGE = 2**24
"""Reply size in bytes above which memory is freed immediately, and which is refused where no model is expected."""
SHORTEST_PULL = 5.0
"""Seconds that a reply which has begun to arrive has at least, also at the end of the time for answers."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 3.0
"""Seconds between polls for replies: short at first, for quick answers, and longer when they take long."""
STRAGGLER_LIMIT = 3
"""Timeouts after which a node that still has not replied is asked again, as if its message were lost."""


@dataclass(frozen=True)
class Wait:
    """How long to wait for replies.

    Args:
        timeout: seconds for every reply.
        enough: usable replies after which the others have only `grace` seconds; 0 waits for all of them.
        grace: see `enough`.
        most_bytes: size of a reply beyond which it is refused.
    """

    timeout: float
    enough: int = 0
    grace: float = 0.0
    most_bytes: int = LARGE


@dataclass(frozen=True)
class Late:
    """A message whose reply did not arrive in time."""

    message_id: str
    round: int
    until: float


class NodeExchange:
    """Sends messages to nodes and collects their replies."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._late: dict[int, Late] = {}
        self._dripping: dict[str, Thread] = {}
        """Replies that were still arriving when their time was over, by the message that they answer."""

    def online(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def busy(self, online: set[int]) -> dict[int, LeftOut]:
        """Return the nodes that still work on a message that has expired, with the reason not to ask them."""
        waiting = [late.message_id for late in self._late.values()]
        answered = {name for name, _ in self._pull(waiting, time.monotonic() + SHORTEST_PULL)}
        now = time.monotonic()
        self._late = {
            node: late
            for node, late in self._late.items()
            if node in online and late.message_id not in answered and now < late.until
        }
        return {
            node: LeftOut(Fault.ABSENT, f"it is still busy with round {late.round}")
            for node, late in self._late.items()
        }

    def ask(
        self, kind: str, contents: Mapping[int, RecordDict], receive: Receive, wait: Wait, round_: int = 0
    ) -> dict[int, LeftOut]:
        """Send each node its message and hand on the replies; return the nodes without a usable one, and why."""
        lasting = wait.timeout * STRAGGLER_LIMIT
        messages = [Message(c, node, kind, ttl=lasting, group_id=str(round_)) for node, c in contents.items()]
        if not messages:
            return {}
        pushed = set(self._grid.push_messages(messages))
        ids = {message.metadata.dst_node_id: message.metadata.message_id for message in messages}
        del messages
        waiting = {message_id: node for node, message_id in ids.items() if message_id in pushed}
        unsent = LeftOut(Fault.ABSENT, "its message could not be sent")
        reasons = {node: unsent for node, message in ids.items() if message not in pushed}
        start = time.monotonic()
        reasons |= self._collect(waiting, receive, wait)
        seconds = time.monotonic() - start
        for message_id, node in waiting.items():
            self._late[node] = Late(message_id, round_, start + lasting)
            limit = wait.timeout if seconds >= wait.timeout else seconds
            reasons[node] = LeftOut(Fault.LATE, f"no answer within {limit:.3g} s")
        return reasons

    def _collect(self, waiting: dict[str, int], receive: Receive, wait: Wait) -> dict[int, LeftOut]:
        """Hand on replies until all are there, enough are, or time is up; who replied leaves `waiting`."""
        reasons: dict[int, LeftOut] = {}
        usable, start = 0, time.monotonic()
        end = start + wait.timeout
        while waiting:
            for message_id, reply in self._pull(list(waiting), end):
                node = waiting.pop(message_id)
                self._late.pop(node, None)
                try:
                    if reply is None:
                        raise UnusableError("its answer cannot be unpacked")
                    refuse_error(reply)
                    if (size := _bytes_of(reply)) > wait.most_bytes:
                        raise UnusableError(f"its answer has {size:,} bytes, {wait.most_bytes:,} are allowed")
                    receive(node, reply.content)
                    usable += 1
                except UnusableError as error:
                    reasons[node] = error.reason
                if wait.enough and usable == wait.enough:
                    end = min(end, time.monotonic() + wait.grace)
            now = time.monotonic()
            if now >= end or not waiting:
                break
            time.sleep(min(LONGEST_PAUSE, SHORTEST_PAUSE + 0.2 * (now - start), end - now))
        return reasons

    def _pull(self, message_ids: list[str], end: float) -> Iterable[tuple[str, Message | None]]:
        """Return the replies that are there, with the ids of the messages; None for one that cannot be unpacked.

        They are fetched one by one: the SuperLink hands out a reply only once, so one that is malformed would
        cost all that were fetched with it. And the server holds but one at a time.
        """
        for message_id in message_ids:
            try:
                replies = self._fetch(message_id, max(end - time.monotonic(), SHORTEST_PULL))
                reply = next((r for r in replies if r.metadata.reply_to_message_id == message_id), None)
                del replies
            except MALFORMED:
                yield message_id, None
                continue
            if reply is None:
                continue
            large = _bytes_of(reply) > LARGE
            yield message_id, reply
            del reply
            if large:
                gc.collect()  # Flower's messages form reference cycles: without this they would stay in memory

    def _fetch(self, message_id: str, seconds: float) -> list[Message]:
        """Return the replies to a message that arrive in this time.

        Flower waits for the rest of a reply as long as parts of it come. So it waits in a thread of its own: a
        client that sends a byte now and then holds up nobody else.
        """
        if message_id in self._dripping and self._dripping[message_id].is_alive():
            return []
        outcome: list[list[Message] | Exception] = []

        def pull() -> None:
            try:
                outcome.append(list(self._grid.pull_messages([message_id])))
            except Exception as error:
                outcome.append(error)

        thread = Thread(target=pull, daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcome:
            self._dripping[message_id] = thread
            return []
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]


def _bytes_of(reply: Message) -> int:
    """Return the size of what a reply holds: arrays, texts, bytes, and 8 bytes for a number."""
    if not reply.has_content():
        return 0
    content = reply.content
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    records: list[ConfigRecord | MetricRecord] = list(content.config_records.values())
    records += list(content.metric_records.values())
    values = [value for record in records for value in record.values()]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return arrays + sum(len(item) if isinstance(item, str | bytes) else 8 for item in flat)
