"""Real clients as one more backend: it sends requests and returns the usable answers as rows."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedwcm.core.batch import Shard
from fedwcm.core.types import Fault, Floats, Ints, LeftOut, State, bytes_of
from fedwcm.engine.backends.in_process import BlockCollector, no_updates
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.rounds import CLIPPED
from fedwcm.engine.store import ClientStore
from fedwcm.engine.uploads import CohortUpdates
from fedwcm.flower.app.model import shard
from fedwcm.flower.app.options import AppOptions
from fedwcm.flower.info import ClientInfo
from fedwcm.flower.records import RequestId, bounds_itself, broadcast_records, request
from fedwcm.flower.secure.protocol import SecureSum
from fedwcm.flower.secure.uploads import SecureUploads, SumLedger
from fedwcm.flower.server.answers import AnswerReader
from fedwcm.flower.server.directory import ClientDirectory, usual_of_others
from fedwcm.flower.server.exchange import LARGE
from fedwcm.losses.cross_entropy import CrossEntropy
from fedwcm.utils.temporary_pages import temporary_pages

LOG = logging.getLogger("flwr.fedwcm")

ROOM = 2
"""How many times the size of an upload an answer may have."""
MOST_REFUSED = 5
"""Requests in a row without a usable answer, though clients answered, after which a run ends as failed."""


class FlowerBackend:
    """Clients on the other side of Flower's grid.

    Their own state stays with them. The server's store holds, for each client, the last round for which its answer
    was used. It is part of every checkpoint, so that a client always continues from the state the server expects.
    """

    def __init__(
        self,
        directory: ClientDirectory,
        trainer: ClientTrainer,
        run_id: str,
        options: AppOptions,
        statistics: Mapping[int, dict[str, float]],
    ) -> None:
        self._directory, self._trainer = directory, trainer
        self._run_id, self._options = run_id, options.federation
        self._hiding = options.hiding
        self._bounded = bounds_itself(options.config, self._options.secure_aggregation)
        self._folder = Path(self._options.out) if self._options.out else None
        self._ledger = SumLedger(self._folder)
        self._like: dict[Task, ClientUpdates] = {}
        self._statistics = dict(statistics)
        self._refused_rounds = 0
        self.store = ClientStore(trainer.population.clients, {"last_used": torch.zeros(1, dtype=torch.int64)})

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        """Let these clients work; those without a usable answer are left out, with the reason."""
        if len(self._ledger.failures) >= MOST_REFUSED:
            last = self._ledger.failures[-1]
            raise RuntimeError(f"no sum by secure aggregation, {MOST_REFUSED} times in a row; the last: {last}")
        directory, example, round_ = self._directory, self._example(task, sent), sent.round + 1
        secure = self._options.secure_aggregation
        like = replace(example, upload={}) if secure else example
        if self._bounded and task == "train":
            like = replace(like, report={**like.report, CLIPPED: np.zeros(1)})
        reader = AnswerReader(self._trainer, sent, like, self._statistics)
        table = UploadTable(ids, like.upload, self._folder)
        requests = {int(client): RequestId(task, round_, int(client), self._run_id) for client in ids}

        def receive(client: int, content: RecordDict) -> None:
            samples, result = reader.read(content, requests[client], directory.first_samples[client])
            table.put(result)
            directory.samples[client] = samples

        most = LARGE + ROOM * bytes_of(example.upload)
        left_out = directory.ask(f"train.{task}", self._requests(requests, sent), receive, round_, most_bytes=most)
        outliers = table.drop_outliers(_scale(sent))
        for client, reason in outliers.items():
            LOG.warning("round %d: client %d is left out: %s", round_, client, reason)
        result, left_out = table.result(), {**left_out, **outliers}
        self._require_usable(len(result.ids), left_out)
        kept = replace(self._require_enough(task, round_, result), left_out=left_out)
        uploads = self._kept_uploads(RequestId(task, round_, 0, self._run_id), example.upload, kept.ids)
        return CohortUpdates.of(kept, uploads if secure else None)

    def _require_usable(self, usable: int, left_out: Mapping[int, LeftOut]) -> None:
        """Raise if all answers of several rounds were refused: the model that was sent may be what is wrong."""
        answered = [why for why in left_out.values() if why.fault not in (Fault.ABSENT, Fault.LATE)]
        self._refused_rounds = 0 if usable else self._refused_rounds + bool(answered)
        if self._refused_rounds >= MOST_REFUSED:
            raise RuntimeError(
                f"every answer was refused, {MOST_REFUSED} rounds in a row; the last: {answered[-1]}"
            )

    def close(self) -> None:
        pass

    def _kept_uploads(self, request: RequestId, like: State, ids: Ints) -> SecureUploads:
        """Return the uploads of clients that keep them for secure aggregation."""

        def ask(
            contents: Mapping[int, RecordDict], receive: Callable[[int, RecordDict], None]
        ) -> dict[int, LeftOut]:
            most = LARGE + 10 * ROOM * bytes_of(like)  # several sums, and twice as many bytes a number
            return self._directory.ask(
                "train.secure", contents, receive, request.round, all_needed=True, most_bytes=most
            )

        limit = self._options.secure_range
        needed, ledger, hiding = self._options.min_clients, self._ledger, self._hiding
        return SecureUploads(
            lambda clients: SecureSum(ask, clients, limit), request, like, ids, needed, ledger, hiding
        )

    def _requests(self, requests: dict[int, RequestId], sent: Broadcast) -> dict[int, RecordDict]:
        last_used = self.store.read(np.array(list(requests)), torch.device("cpu"))["last_used"].tolist()
        shared = broadcast_records(sent, self._trainer.population)
        return {
            client: request(shared, question, sent, last)
            for (client, question), last in zip(requests.items(), last_used, strict=True)
        }

    def _require_enough(self, task: Task, round_: int, result: ClientUpdates) -> ClientUpdates:
        """Return the result if there are enough answers; the store notes that each client's was used."""
        needed = self._options.min_clients
        if len(result.ids) < needed:
            LOG.warning("round %d: %d answers, %d are needed: no step", round_, len(result.ids), needed)
            return no_updates({})
        if task == "train":
            self.store.reserve(result.ids)
            self.store.stage(result.ids, {"last_used": torch.full((len(result.ids),), round_)})
        return result

    def _example(self, task: Task, sent: Broadcast) -> ClientUpdates:
        """Return an example of an answer, made by running a client here once on dummy samples.

        The form of an upload depends on the method only, so any loss will do; the run's own may need more than the
        server has, such as a teacher's logits for a client's samples.
        """
        if task not in self._like:
            trainer = replace(self._trainer, loss=CrossEntropy(), augmentation=None)
            ids, shards = np.array([0]), [_dummy_shard(self._directory.info, sent.x.device)]
            state = trainer.initial_state(trainer.clients(ids, shards), sent.x, sent.buffers)
            self._like[task] = trainer.run(task, ids, shards, state, sent)
        return self._like[task]


def _scale(sent: Broadcast) -> float:
    """Return the size of the model that was sent; at least 1, for models that start from zeros."""
    parts = (sent.x, sent.buffers)
    return 1.0 + sum(float(torch.linalg.vector_norm(part.double())) for part in parts)


def _dummy_shard(like: ClientInfo | None, device: torch.device) -> Shard:
    """Return two samples of zeros: BatchNorm needs more than one."""
    assert like is not None, "clients are asked after they have sent their info"
    inputs = torch.zeros(2, *like.input_shape, dtype=getattr(torch, like.input_dtype), device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    return shard(LabelledTensors(inputs, labels), like.classes)


class RemoteFederation:
    """A federation whose data is with its clients: the server knows how many samples each has."""

    def __init__(self, samples: Ints, classes: int) -> None:
        self.samples = samples
        self.counts: Ints = np.zeros((0, classes), dtype=np.int64)

    def shard(self, client: int) -> NoReturn:
        raise LookupError(f"the data of client {client} is with the client")


IN_MEMORY = 2**28
"""Size in bytes up to which uploads stay in memory."""
TOO_LONG = 1000.0
"""How many times longer an upload may be than the model and the usual upload of the others together."""


class UploadTable(BlockCollector):
    """Rows of uploads and numbers, one for each client that was asked.

    Args:
        ids: the clients that were asked, ascending.
        like: an example of an upload.
        folder: where a file for the rows is made, if they need one; None for the system's temporary folder.
    """

    def __init__(self, ids: Ints, like: State, folder: Path | None) -> None:
        super().__init__(ids)
        self._upload = {key: _rows(len(ids), value[0], folder) for key, value in like.items()}
        self._norms: dict[str, Floats] = {key: np.zeros(len(ids)) for key in like}

    def put(self, result: ClientUpdates) -> None:
        """Store one client's answer."""
        super().put(result)
        row = int(np.searchsorted(self._ids, result.ids[0]))
        for key, value in result.upload.items():
            self._norms[key][row] = float(torch.linalg.vector_norm(value.double()))

    def drop_outliers(self, scale: float) -> dict[int, LeftOut]:
        """Drop the answers that only a faulty client would give; return the clients with the reason.

        An upload is too long if it is out of all proportion to the model, whose norm is `scale`, and to what the
        others sent. Where a whole federation diverges, all uploads are long, and none is dropped.
        """
        rows = np.flatnonzero(self._answered)
        left_out: dict[int, LeftOut] = {}
        for key, norms in self._norms.items():
            usual = usual_of_others(norms[rows])
            for place in np.flatnonzero(norms[rows] > TOO_LONG * (scale + usual)):
                norm, other = norms[rows[place]], usual[place]
                reason = f"its upload {key!r} has norm {norm:.3g}, that of others is {other:.3g}"
                left_out[int(self._ids[rows[place]])] = LeftOut(Fault.REFUSED, reason)
        self._answered &= ~np.isin(self._ids, list(left_out))
        return left_out

    def result(self) -> ClientUpdates:
        """Return the rows of those that answered, by ascending number. The table cannot be used afterwards.

        Rows move up in their place: a copy might not fit into memory.
        """
        rows = np.flatnonzero(self._answered)
        for place, row in enumerate(rows.tolist()):
            for column in self._upload.values() if place != row else ():
                column[place] = column[row]
        self._upload = {key: column[: len(rows)] for key, column in self._upload.items()}
        self._numbers = {key: values[rows] for key, values in self._numbers.items()}
        self._ids, self._answered = self._ids[rows], self._answered[rows]
        return super().result()


def _rows(count: int, row: Tensor, folder: Path | None) -> Tensor:
    """Return space for this many rows: in memory, or in an unnamed file that is freed with the tensor."""
    size = count * row.numel() * row.element_size()
    if size <= IN_MEMORY or row.device.type != "cpu":
        return row.new_empty(count, *row.shape)
    pages = temporary_pages(size, "the uploads of a round", folder)
    return torch.frombuffer(pages, dtype=torch.uint8).view(row.dtype).view(count, *row.shape)
