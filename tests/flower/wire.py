"""A grid in memory on which every message, and every client's context, goes through bytes as on the wire."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN, SERVER = 7, 1
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, 1


@dataclass(frozen=True)
class Delayed:
    """An answer that arrives so much later."""

    reply: Message
    seconds: float


Answer = Message | Delayed | None
Mischief = Callable[[int, Message, Message], Answer]
"""`(client, request, reply) -> reply`: what becomes of an answer on its way; None is silence."""
Act = Callable[[Message, Message], Answer]
"""`(request, reply) -> reply`."""


class FakeTime:
    """A clock that nobody has to wait for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = FakeTime()


def honest(client: int, request: Message, reply: Message) -> Message:
    """Nothing happens to the answer."""
    return reply


def strike(
    act: Act,
    clients: Container[int] | None = None,
    kind: str | None = None,
    rounds: Container[int] | None = None,
) -> Mischief:
    """Act upon answers of these clients (or all), to messages of this kind, in these rounds."""

    def mischief(client: int, request: Message, reply: Message) -> Answer:
        hit = kind in (None, request.metadata.message_type) and (clients is None or client in clients)
        hit = hit and (rounds is None or int(request.metadata.group_id) in rounds)
        return act(request, reply) if hit else reply

    return mischief


def edit(change: Callable[[RecordDict], Any], *where: Any, **named: Any) -> Mischief:
    """Change the content of answers in place; the other arguments are those of `strike`."""

    def act(_: Message, reply: Message) -> Message:
        if reply.has_content():
            change(reply.content)
        return reply

    return strike(act, *where, **named)


def fail(request: Message, _: Message) -> Message:
    """An error in the place of an answer."""
    return Message(Error(2, "disk full"), reply_to=request)


def fall_silent(_: Message, __: Message) -> None:
    """No answer."""


def delay(seconds: float) -> Act:
    """An answer that comes so much later."""
    return lambda _, reply: Delayed(reply, seconds)


@dataclass(eq=False)
class Node:
    """A SuperNode: an app, and a context that is bytes between messages."""

    client: int
    app: ClientApp
    context: bytes
    online: bool = True

    def handle(self, request: Message) -> Message:
        context = context_from_proto(ProtoContext.FromString(self.context))
        try:
            reply = self.app(request, context)
        except Exception as error:  # as Flower does: whatever an app raises becomes an error reply
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=request)
        self.context = context_to_proto(context).SerializeToString()
        return reply


class WireGrid(Grid):
    """Delivers at once, in bytes; counts them; lets answers come to harm."""

    def __init__(
        self,
        app: ClientApp,
        run_config: Mapping[str, Any],
        clients: int,
        node_config: Mapping[str, Any] | None = None,
        mischief: Mischief = honest,
    ) -> None:
        self._app, self.run_config, self._node_config = app, dict(run_config), dict(node_config or {})
        self.nodes: dict[int, Node] = {}
        self.mischief = mischief
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()
        self.log: list[tuple[int, str, str]] = []
        self._answers: dict[str, bytes] = {}
        self._belated: list[tuple[float, str, bytes]] = []
        self._sent = 0
        for client in range(clients):
            self.start(client)

    def start(self, client: int) -> int:
        """Start a SuperNode for this client, with an id that says nothing about the client."""
        node = 10**15 + 7919 * (len(self.nodes) + 3) % 1000 * 10**9
        config = {"partition-id": client, **self._node_config}
        context = Context(RUN, node, config, RecordDict(), self.run_config)
        self.nodes[node] = Node(client, self._app, context_to_proto(context).SerializeToString())
        return node

    def replace(self, client: int) -> None:
        """Stop this client's node, and start another one in its place."""
        self.node_of(client).online = False
        self.start(client)

    def ask_again(self, request: Message, **records: Any) -> Message:
        """Send a client's node another message like this one, with other records; its reply reaches no server."""
        node, kind = request.metadata.dst_node_id, request.metadata.message_type
        return self.nodes[node].handle(Message(RecordDict({**request.content, **records}), node, kind))

    def kinds(self) -> set[str]:
        """The kinds of messages that were sent."""
        return {kind for _, kind, _ in self.log}

    def node_of(self, client: int) -> Node:
        """The node that runs this client now."""
        return next(node for node in reversed(self.nodes.values()) if node.client == client)

    def get_node_ids(self) -> list[int]:
        CLOCK.sleep(1.0)  # so that time passes between one exchange and the next
        return [node for node, running in self.nodes.items() if running.online]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._answers |= {name: data for due, name, data in self._belated if due <= CLOCK.now}
        found = [self._answers.pop(one) for one in message_ids if one in self._answers]
        return [message_from_proto(ProtoMessage.FromString(data)) for data in found]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def _deliver(self, message: Message) -> str:
        self._sent += 1
        message.metadata.__dict__["_message_id"] = name = f"message-{self._sent}"
        data = _pack(message)
        kind, round_ = message.metadata.message_type, message.metadata.group_id
        node = self.nodes[message.metadata.dst_node_id]
        self.down[f"{kind} {round_}"] += len(data)
        self.log.append((node.client, kind, round_))
        request = message_from_proto(ProtoMessage.FromString(data))
        reply = self.mischief(node.client, request, node.handle(request))
        if isinstance(reply, Delayed):
            self._belated.append((CLOCK.now + reply.seconds, name, _pack(reply.reply)))
        elif reply is not None:
            self._answers[name] = _pack(reply)
            self.up[f"{kind} {round_}"] += len(self._answers[name])
        return name

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError


def _pack(message: Message) -> bytes:
    return message_to_proto(message).SerializeToString()
