"""The clients behind Flower's nodes, and how to send them requests.

A client's number comes from its node's config and addresses all its randomness. Flower's node ids are random: with
node authentication a node keeps its id as long as it keeps its key, without it each start brings a new one.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid

from fedwcm.core.types import Fault, Floats, Ints, LeftOut
from fedwcm.experiment.files import write_json
from fedwcm.flower.app.options import AppOptions
from fedwcm.flower.info import Admission, ClientInfo
from fedwcm.flower.records import RUN, config_record
from fedwcm.flower.server.answers import check_samples
from fedwcm.flower.server.exchange import LARGE, NodeExchange, Wait
from fedwcm.flower.untrusted import UnusableError

LOG = logging.getLogger("flwr.fedwcm")

INFO, EVALUATE = "query.info", "evaluate"
INFO_TIMEOUT = 60.0
"""Seconds that a node which joins during the run has to identify itself: the round waits for it."""
POLL_INTERVAL = 1.0
"""Seconds between checks of who is connected, before the first round."""
RETRY_AFTER = 10.0
"""Seconds until a node that was refused is asked again; doubled each time."""
MOST_CLIENTS = 100_000
"""Most clients if their number is not given, until it is known how many nodes are connected."""
MOST_SAMPLES = 10
"""Most samples of a client, as a multiple of the median of the others, if no bound is given."""
FEWEST_TO_COMPARE = 4
"""Clients from which on samples are compared: among fewer, one that lies could make the others look large."""


NAME = "nodes.json"


class NodeBinding:
    """Clients and the Flower nodes that they belong to.

    With node authentication a node's id stands for its key. Without it a restarted node has another id, and pairs
    that are kept would lock it out.

    Args:
        bound: whether a client belongs to the first node that claims it; otherwise nothing is kept.
        folder: where the pairs are kept, as `{"client": node}` in `nodes.json`; None for this process only.
    """

    def __init__(self, bound: bool, folder: Path | None) -> None:
        self._bound = bound
        self._path = folder / NAME if bound and folder is not None else None
        self._nodes: dict[int, int] = {}
        if self._path is not None and self._path.exists():
            self._nodes = _read(self._path)

        self._clients = {node: client for client, node in self._nodes.items()}
        self._saved = len(self._nodes)

    def claim(self, client: int, node: int) -> None:
        """Note that this node is this client; raises an UnusableError if the client belongs to another."""
        if not self._bound or self._nodes.get(client) == node:
            return
        if client in self._nodes:
            raise UnusableError(f"it claims to be client {client}, which belongs to node {self._nodes[client]}")
        if node in self._clients:
            mine = self._clients[node]
            raise UnusableError(f"it claims to be client {client}, but it is registered as client {mine}")
        self._nodes[client], self._clients[node] = node, client

    def save(self) -> None:
        """Write down the pairs that were claimed since the last time."""
        if self._path is not None and len(self._nodes) > self._saved:
            write_json(self._path, {str(client): node for client, node in sorted(self._nodes.items())})
            self._saved = len(self._nodes)


def _read(path: Path) -> dict[int, int]:
    try:
        pairs = {int(client): int(node) for client, node in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f'{path} cannot be read ({error}): it must hold {{"client": node id, …}}') from None
    if len(set(pairs.values())) < len(pairs):
        raise ValueError(f"{path} assigns one node to two clients")
    return pairs


LONGEST_LIST = 1000
"""Most characters of the reasons why nodes are not used."""


def usual_of_others(values: Floats) -> Floats:
    """Return, for each entry, the lower median of all others; 0 for a single one."""
    if len(values) < 2:
        return np.zeros(len(values))
    order, middle = np.argsort(values, kind="stable"), (len(values) - 2) // 2
    ranks = np.argsort(order, kind="stable")
    return values[order[np.where(ranks > middle, middle, middle + 1)]]


class ClientDirectory:
    """The clients of a run, as they connect, disconnect and reconnect."""

    def __init__(self, grid: Grid, options: AppOptions, admission: Admission, binding: NodeBinding) -> None:
        self._exchange, self._options = NodeExchange(grid), options.federation
        self._admission, self._binding = admission, binding
        secure, shared = self._options.secure_aggregation, self._options.share_metrics
        self._run = RecordDict({RUN: config_record(options.config, secure, shared)})
        self._clients = self._options.clients
        self._limit = self._clients or MOST_CLIENTS
        self._nodes: dict[int, int] = {}
        self._misses: Counter[int] = Counter()
        self._retry_at: dict[int, float] = {}
        self._refused: dict[int, LeftOut] = {}
        """The nodes that are connected and not used, and why."""
        self._infos: dict[int, ClientInfo] = {}
        """What the clients have told, by their numbers, until the run starts."""
        self.info: ClientInfo | None = None
        """The first of those with the inputs that most have, once the run has started."""
        self.samples: Ints = np.zeros(self._options.clients, dtype=np.int64)
        self.first_samples: dict[int, int] = {}
        """The number of samples that each client first reported."""
        self.counts: dict[int, Ints] = {}
        """The class counts that clients have shown; empty under encryption."""
        self.statistics: dict[int, dict[str, float]] = {}
        """What follows from these counts for the method's statistics."""

    @property
    def known(self) -> list[int]:
        """The clients that have sent their info and have not disconnected since, in ascending order."""
        return sorted(self._nodes)

    @property
    def _refusals(self) -> str:
        """A remark on connected nodes that are not used, of which one may be a client that is missing."""
        reasons = "; or ".join(dict.fromkeys(map(str, self._refused.values())))
        count = len(self._refused)
        return f"; nodes that are connected and not used: {count}, since {reasons[:LONGEST_LIST]}" if count else ""

    def continue_with(self, clients: int, first_samples: Mapping[int, int]) -> None:
        """Take the clients of a run that began before; not all of them need to be connected yet."""
        if self._clients not in (0, clients):
            raise ValueError(
                f"flower.clients = {self._clients} is not allowed: the run that is continued has {clients} clients"
            )
        self._clients = self._limit = clients
        self.samples = np.zeros(clients, dtype=np.int64)
        self.first_samples |= first_samples
        self.samples[list(first_samples)] = list(first_samples.values())

    def wait(self) -> None:
        """Wait for the clients as long as the options say, then continue with those that are connected."""
        deadline = time.monotonic() + self._options.patience
        needed = max(self._options.min_clients, self._options.min_available)
        while True:
            self._identify(self._exchange.online(), self._options.timeout)
            if not self._clients:
                self._forget_absent()
            enough = len(self.known) >= max(self._clients, needed)
            complete = self._clients or self.known == list(range(len(self.samples)))
            if (enough and complete) or time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL)
        self._settle()
        if len(self.known) < needed:
            option = "min_clients" if needed == self._options.min_clients else "min_available"
            raise RuntimeError(
                f"{len(self.known)} clients connected within {self._options.patience:g} s, "
                f"flower.{option} = {needed} are needed{self._refusals}"
            )
        LOG.info("%d of %d clients are connected", len(self.known), len(self.samples))

    def _settle(self) -> None:
        """Refuse the clients that do not fit the others, now that all are known; no single one decides."""
        self._infos = {client: self._infos[client] for client in self.known if client in self._infos}
        votes = Counter(info.inputs for info in self._infos.values())
        usual = max(votes, key=votes.__getitem__, default=None)
        self.info = next((info for info in self._infos.values() if info.inputs == usual), self.info)
        if not self._clients:
            self._limit = len(self._exchange.online())
        compared = dict(zip(self.first_samples, self._usual_samples(), strict=True))
        for client, node in list(self._nodes.items()):
            try:
                self._require_fitting(self._infos.get(client, self.info), client, compared[client])
            except UnusableError as error:
                self._refuse(node, error.reason)
                del self._nodes[client], self.first_samples[client]
                self.samples[client] = 0
        if not self._clients:
            self._forget_absent()
            self._limit = len(self.samples)

    def _usual_samples(self, *joining: float) -> Floats:
        """Return, for each client, the median of the others' first reports; infinite for too few to compare."""
        sizes = np.array([*self.first_samples.values(), *joining], dtype=np.float64)
        compared = len(sizes) >= FEWEST_TO_COMPARE and not self._options.max_samples
        return usual_of_others(sizes) if compared else np.full(len(sizes), np.inf)

    def _require_fitting(self, info: ClientInfo | None, client: int, usual: float) -> None:
        """Raise an UnusableError if a client's number, inputs or samples cannot be believed beside the others."""
        if client >= self._limit:
            allowed = (
                f"0 to {self._limit - 1} are allowed; set flower.clients if there are more than are connected"
            )
            raise UnusableError(f"it claims to be client {client}: {allowed}")
        if info is None or self.info is None:
            return
        self._admission.require_inputs_of(info, self.info)
        if info.samples > MOST_SAMPLES * usual:
            reason = f"it claims {info.samples:,} samples, more than {MOST_SAMPLES} times the median of the others"
            raise UnusableError(f"{reason}: if that is true, set flower.max_samples")

    def _forget_absent(self) -> None:
        """Forget clients that have left: one may have had a wrong number, which would leave a gap for good."""
        self.first_samples = {client: self.first_samples[client] for client in self.known}
        self.samples = self.samples[: max(self.known, default=-1) + 1]

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        receive: Callable[[int, RecordDict], None],
        round_: int = 0,
        *,
        all_needed: bool = False,
        most_bytes: int = LARGE,
    ) -> dict[int, LeftOut]:
        """Send each client its question and hand on the answers as they arrive; return who is left out, and why.

        Args:
            kind: Flower's type of the messages.
            contents: the question for each client.
            receive: takes a client's answer; an UnusableError leaves the client out.
            round_: the round, 0 before the first.
            all_needed: wait for all of them, even if `flower.enough` have answered.
            most_bytes: size of an answer beyond which it is refused.
        """
        online = self._exchange.online()
        self._identify(online, min(self._options.timeout, INFO_TIMEOUT))
        busy = self._exchange.busy(online)
        nodes = {node: client for client in contents if (node := self._nodes.get(client)) in online}
        absent = LeftOut(Fault.ABSENT, f"it is not connected{self._refusals}")
        reached = set(nodes.values())
        left_out = {client: absent for client in contents if client not in reached}
        left_out |= {client: busy[node] for node, client in nodes.items() if node in busy}
        requests = {n: RecordDict({**contents[c], **self._run}) for n, c in nodes.items() if n not in busy}
        enough = 0 if all_needed or not round_ else self._options.enough
        wait = Wait(self._options.timeout, enough, self._options.grace, most_bytes)
        missing = self._exchange.ask(kind, requests, lambda n, content: receive(nodes[n], content), wait, round_)
        left_out |= {nodes[node]: reason for node, reason in missing.items()}
        for client in [nodes[node] for node, reason in missing.items() if reason.fault is Fault.MISADDRESSED]:
            del self._nodes[client]  # so that its node is asked again who it is
        for client, reason in left_out.items():
            where = f"round {round_}{', evaluation' * (kind == EVALUATE)}" if round_ else kind
            LOG.warning("%s: client %d is left out: %s", where, client, reason)
        return left_out

    def _identify(self, online: set[int], timeout: float) -> None:
        """Ask new nodes for their info; those that are refused are asked again at growing intervals.

        A node that was away is new as well: with node authentication it keeps its id, and may be another client.
        """
        now = time.monotonic()
        self._nodes = {client: node for client, node in self._nodes.items() if node in online}
        unknown = sorted(online - set(self._nodes.values()))
        unidentified = [node for node in unknown if self._retry_at.get(node, now) <= now]
        replies: dict[int, RecordDict] = {}
        refused = self._exchange.ask(
            INFO, dict.fromkeys(unidentified, self._run), replies.__setitem__, Wait(timeout)
        )
        usual = float(self._usual_samples(np.inf)[-1])
        for node, content in sorted(replies.items()):
            try:
                self._register(node, content, online, usual)
            except UnusableError as error:
                refused[node] = error.reason
        self._binding.save()
        for node, reason in refused.items():
            self._refuse(node, reason)
        unused = online - set(self._nodes.values())
        self._refused = {node: why for node, why in self._refused.items() if node in unused}

    def _refuse(self, node: int, reason: LeftOut) -> None:
        """Do not use a node, and ask it again at growing intervals."""
        LOG.warning("node %d is not used: %s", node, reason)
        self._refused[node] = reason
        self._misses[node] += 1
        self._retry_at[node] = time.monotonic() + RETRY_AFTER * 2 ** self._misses[node]

    def _register(self, node: int, content: RecordDict, online: set[int], usual: float) -> None:
        """Record a client's info, and which node it is."""
        about = self._admission.read(content)
        client = about.client
        self._require_fitting(about, client, usual)
        before = self._nodes.get(client)
        if before in online:
            raise UnusableError(f"it claims to be client {client}, but that is node {before}")
        first = self.first_samples.get(client, about.samples)
        check_samples({"samples": about.samples}, first)
        self._binding.claim(client, node)
        self.first_samples[client] = first
        self._infos[client] = about
        if client >= len(self.samples):
            self.samples = np.pad(self.samples, (0, client + 1 - len(self.samples)))
        self.samples[client] = about.samples
        self._nodes[client] = node
