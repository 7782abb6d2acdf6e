"""Who is who: the clients behind Flower's nodes, and how to ask them.

Flower's node ids are random and may change when a node is restarted. Clients have numbers of their own, from the
node's config: all randomness goes by these.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedwcm.core.types import Ints
from fedwcm.flower.checks import Fault, UnusableError, refuse_error
from fedwcm.flower.introduction import Introduction
from fedwcm.flower.run_config import Federation

LOG = logging.getLogger("flwr.fedwcm")

GREETING = "query.hello"
LOOK_AGAIN = 1.0
"""Seconds between looks at who is connected, before the first round."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Replies by client, and the clients that gave none."""

    replies: dict[int, Message]
    faults: list[Fault]


class Roster:
    """The clients of a run, as they come, go and come back."""

    def __init__(self, grid: Grid, options: Federation) -> None:
        self._grid, self._options = grid, options
        self._nodes: dict[int, int] = {}
        self._silent: set[int] = set()
        self.introduction: Introduction | None = None
        self.samples: Ints = np.zeros(options.clients, dtype=np.int64)

    @property
    def met(self) -> list[int]:
        """The clients that have said who they are, by ascending number."""
        return sorted(self._nodes)

    def wait(self) -> None:
        """Meet the clients; wait for the missing as long as the options say, then go on with those that came."""
        deadline = time.monotonic() + self._options.patience
        while True:
            self._meet(self._online())
            enough = len(self.met) >= max(self._options.clients, self._options.min_clients)
            if enough or time.monotonic() > deadline:
                break
            time.sleep(LOOK_AGAIN)
        if not self._options.clients:
            self._number_those_met()
        if len(self.met) < self._options.min_clients:
            raise RuntimeError(
                f"{len(self.met)} clients came within {self._options.patience:g} s, "
                f"flower.min_clients = {self._options.min_clients} are needed"
            )
        LOG.info("%d of %d clients are here", len(self.met), len(self.samples))

    def ask(self, kind: str, contents: Mapping[int, RecordDict], round_: int = 0) -> Answers:
        """Send each client its question and wait for the answers, at most as long as the options say."""
        online = self._online()
        self._meet(online)
        nodes = {node: client for client in contents if (node := self._nodes.get(client)) in online}
        faults = [Fault(client, "it is not connected") for client in contents if client not in nodes.values()]
        replies = self._exchange({node: contents[client] for node, client in nodes.items()}, kind, round_)
        late = f"no answer within {self._options.timeout:g} s"
        faults += [Fault(client, late) for node, client in nodes.items() if node not in replies]
        by_client = {nodes[node]: reply for node, reply in replies.items()}
        return Answers(dict(sorted(by_client.items())), faults)

    def _online(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def _meet(self, online: set[int]) -> None:
        """Ask nodes that are new who they are. One that does not say is not asked again while it is connected."""
        self._silent &= online
        strangers = sorted(online - set(self._nodes.values()) - self._silent)
        replies = self._exchange({node: RecordDict() for node in strangers}, GREETING, 0)
        seen: dict[int, int] = {}
        for node in strangers:
            try:
                client = self._introduced(replies.get(node))
            except UnusableError as error:
                LOG.warning("node %d is not used: %s", node, error)
                self._silent.add(node)
                continue
            if client in seen:
                raise ValueError(f"nodes {seen[client]} and {node} both say that they are client {client}")
            seen[client] = node
            self._nodes[client] = node

    def _introduced(self, reply: Message | None) -> int:
        """Take note of a client; its number."""
        if reply is None:
            raise UnusableError(f"no answer within {self._options.timeout:g} s")
        refuse_error(reply)
        about = Introduction.read(reply.content)
        limit = self._options.clients
        if about.client < 0 or (limit and about.client >= limit):
            raise UnusableError(f"it says that it is client {about.client}: allowed are 0 to {limit - 1}")
        self.introduction = self.introduction or about
        about.require_same_task(self.introduction)
        if about.client >= len(self.samples):
            self.samples = np.pad(self.samples, (0, about.client + 1 - len(self.samples)))
        self.samples[about.client] = about.samples
        return about.client

    def _number_those_met(self) -> None:
        if self.met != list(range(len(self.met))):
            raise ValueError(f"clients {self.met} are connected: they must be numbered from 0 without a gap")

    def _exchange(self, contents: Mapping[int, RecordDict], kind: str, round_: int) -> dict[int, Message]:
        """Replies by node. They are told apart by what they reply to: an error may come from the SuperLink."""
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
    """The replies without an error, by client; what is wrong with the others is logged."""
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
