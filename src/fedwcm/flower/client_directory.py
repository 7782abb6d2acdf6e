"""The clients behind Flower's nodes, and how to send them requests.

Flower's node ids are random and may change when a node is restarted. Clients have their own numbers, from
the node's config, which address all randomness.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedwcm.core.types import Ints
from fedwcm.flower.checks import Fault, UnusableError, refuse_error
from fedwcm.flower.client_info import ClientInfo
from fedwcm.flower.run_config import FlowerOptions

LOG = logging.getLogger("flwr.fedwcm")

INFO = "query.info"
POLL_INTERVAL = 1.0
"""Seconds between checks of who is connected, before the first round."""
RETRY_AFTER = 10.0
"""Seconds until a node that did not send its info is asked again; doubled each time."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Replies by client, and the clients that sent none."""

    replies: dict[int, Message]
    faults: list[Fault]


class ClientDirectory:
    """The clients of a run, as they connect, disconnect and reconnect."""

    def __init__(self, grid: Grid, options: FlowerOptions) -> None:
        self._grid, self._options, self._limit = grid, options, options.clients
        self._nodes: dict[int, int] = {}
        self._misses: Counter[int] = Counter()
        self._retry_at: dict[int, float] = {}
        self.info: ClientInfo | None = None
        self.samples: Ints = np.zeros(options.clients, dtype=np.int64)

    @property
    def known(self) -> list[int]:
        """The clients that have sent their info, in ascending order."""
        return sorted(self._nodes)

    def wait(self) -> None:
        """Wait for the clients as long as the options say, then continue with those that are connected."""
        deadline = time.monotonic() + self._options.patience
        while True:
            self._identify(self._online())
            enough = len(self.known) >= max(self._options.clients, self._options.min_clients)
            if enough or time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL)
        self._limit = len(self.samples)
        if not self._options.clients and self.known != list(range(self._limit)):
            raise ValueError(f"clients {self.known} are connected: they must be numbered from 0 without a gap")
        if len(self.known) < self._options.min_clients:
            raise RuntimeError(
                f"{len(self.known)} clients connected within {self._options.patience:g} s, "
                f"flower.min_clients = {self._options.min_clients} are needed"
            )
        LOG.info("%d of %d clients are connected", len(self.known), len(self.samples))

    def ask(self, kind: str, contents: Mapping[int, RecordDict], round_: int = 0) -> Answers:
        """Send each client its question and wait for the answers, at most as long as the options say."""
        online = self._online()
        self._identify(online)
        nodes = {node: client for client in contents if (node := self._nodes.get(client)) in online}
        faults = [Fault(client, "it is not connected") for client in contents if client not in nodes.values()]
        replies = self._exchange({node: contents[client] for node, client in nodes.items()}, kind, round_)
        late = f"no answer within {self._options.timeout:g} s"
        faults += [Fault(client, late) for node, client in nodes.items() if node not in replies]
        by_client = {nodes[node]: reply for node, reply in replies.items()}
        return Answers(dict(sorted(by_client.items())), faults)

    def _online(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def _identify(self, online: set[int]) -> None:
        """Ask new nodes for their info; those that do not reply are asked again, at growing intervals."""
        now = time.monotonic()
        unknown = sorted(online - set(self._nodes.values()))
        unidentified = [node for node in unknown if self._retry_at.get(node, now) <= now]
        replies = self._exchange({node: RecordDict() for node in unidentified}, INFO, 0)
        seen: dict[int, int] = {}
        for node in unidentified:
            try:
                client = self._register(replies.get(node))
            except UnusableError as error:
                LOG.warning("node %d is not used: %s", node, error)
                self._misses[node] += 1
                self._retry_at[node] = time.monotonic() + RETRY_AFTER * 2 ** self._misses[node]
                continue
            if client in seen:
                raise ValueError(f"nodes {seen[client]} and {node} both say that they are client {client}")
            seen[client] = node
            self._nodes[client] = node

    def _register(self, reply: Message | None) -> int:
        """Record a client's info, and return its number."""
        if reply is None:
            raise UnusableError(f"no answer within {self._options.timeout:g} s")
        refuse_error(reply)
        about = ClientInfo.read(reply.content)
        if about.client < 0 or (self._limit and about.client >= self._limit):
            raise UnusableError(f"it says that it is client {about.client}: allowed are 0 to {self._limit - 1}")
        self.info = self.info or about
        about.require_same_task(self.info)
        if about.client >= len(self.samples):
            self.samples = np.pad(self.samples, (0, about.client + 1 - len(self.samples)))
        self.samples[about.client] = about.samples
        return about.client

    def _exchange(self, contents: Mapping[int, RecordDict], kind: str, round_: int) -> dict[int, Message]:
        """Replies by node, matched by the message they reply to: an error may come from the SuperLink."""
        timeout = self._options.timeout
        messages = [
            Message(content, node, kind, ttl=timeout, group_id=str(round_)) for node, content in contents.items()
        ]
        if not messages:
            return {}
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        known = [reply for reply in replies if reply.metadata.reply_to_message_id in asked]
        return {asked[reply.metadata.reply_to_message_id]: reply for reply in known}


def usable(answers: Answers, what: str) -> dict[int, Message]:
    """The replies without an error, by client; the others are logged."""
    faults, replies = list(answers.faults), {}
    for client, reply in answers.replies.items():
        try:
            refuse_error(reply)
            replies[client] = reply
        except UnusableError as error:
            faults.append(Fault(client, str(error)))
    for fault in faults:
        LOG.warning("%s: client %d is left out: %s", what, fault.client, fault.reason)
    return replies
