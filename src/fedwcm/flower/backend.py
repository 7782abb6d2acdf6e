"""Real clients as one more backend: it sends requests and returns the usable answers as rows."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import RecordDict

from fedwcm.core.batch import Shard
from fedwcm.core.types import Ints, State
from fedwcm.engine.backends.in_process import no_updates
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.cohort_updates import CohortUpdates
from fedwcm.engine.evaluate import LabelledTensors
from fedwcm.engine.rounds import CLIPPED
from fedwcm.engine.store import ClientStore
from fedwcm.flower.answers import AnswerReader
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.client_info import ClientInfo
from fedwcm.flower.records import RequestId, bounds_itself, broadcast_records, request
from fedwcm.flower.run_config import AppOptions
from fedwcm.flower.samples import shard
from fedwcm.flower.secure_sum import SecureSum
from fedwcm.flower.secure_uploads import SecureUploads
from fedwcm.flower.sum_ledger import SumLedger
from fedwcm.flower.upload_table import UploadTable
from fedwcm.losses.cross_entropy import CrossEntropy

LOG = logging.getLogger("flwr.fedwcm")


class FlowerBackend:
    """Clients on the other side of Flower's grid.

    Their own state stays with them. The server's store holds, for each client, the last round for which its answer
    was used. It is part of every checkpoint, so that a client always continues from the state the server expects.
    """

    def __init__(
        self,
        directory: ClientDirectory,
        trainer: ClientTrainer,
        series: str,
        options: AppOptions,
    ) -> None:
        self._directory, self._trainer = directory, trainer
        self._series, self._options = series, options.federation
        self._bounded = bounds_itself(options.config, self._options.secure_aggregation)
        self._folder = Path(self._options.out) if self._options.out else None
        self._ledger = SumLedger(self._folder)
        self._like: dict[Task, ClientUpdates] = {}
        self.store = ClientStore(trainer.population.clients, {"last_used": torch.zeros(1, dtype=torch.int64)})

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> CohortUpdates:
        """Let these clients work; those without a usable answer are left out, with the reason."""
        directory, example, round_ = self._directory, self._example(task, sent), sent.round + 1
        secure = self._options.secure_aggregation
        like = replace(example, upload={}) if secure else example
        if self._bounded and task == "train":
            like = replace(like, report={**like.report, CLIPPED: np.zeros(1)})
        reader, table = AnswerReader(self._trainer, sent, like), UploadTable(ids, like, self._folder)
        asked = {int(client): RequestId(task, round_, int(client), self._series) for client in ids}

        def receive(client: int, content: RecordDict) -> None:
            samples, result = reader.read(content, asked[client], directory.first_samples[client])
            table.put(result)
            directory.samples[client] = samples

        left_out = directory.ask(f"train.{task}", self._requests(asked, sent), receive, round_)
        outliers = table.drop_outliers(_scale(sent))
        for client, reason in outliers.items():
            LOG.warning("round %d: client %d is left out: %s", round_, client, reason)
        result = table.result()
        kept = replace(self._kept(task, round_, result), left_out={**left_out, **outliers})
        uploads = self._kept_uploads(RequestId(task, round_, 0, self._series), example.upload, kept.ids)
        return CohortUpdates.of(kept, uploads if secure else None)

    def close(self) -> None:
        pass

    def _kept_uploads(self, asked: RequestId, like: State, ids: Ints) -> SecureUploads:
        """The uploads of clients that keep them for secure aggregation."""

        def ask(contents: Mapping[int, RecordDict], receive: Callable[[int, RecordDict], None]) -> dict[int, str]:
            return self._directory.ask("train.secure", contents, receive, asked.round, all_needed=True)

        limit = self._options.secure_range
        needed, ledger = self._options.min_clients, self._ledger
        return SecureUploads(lambda clients: SecureSum(ask, clients, limit), asked, like, ids, needed, ledger)

    def _requests(self, asked: dict[int, RequestId], sent: Broadcast) -> dict[int, RecordDict]:
        last_used = self.store.read(np.array(list(asked)), torch.device("cpu"))["last_used"].tolist()
        shared = broadcast_records(sent, self._trainer.population)
        return {
            client: request(shared, question, sent, last)
            for (client, question), last in zip(asked.items(), last_used, strict=True)
        }

    def _kept(self, task: Task, round_: int, result: ClientUpdates) -> ClientUpdates:
        """The result if there are enough answers; the store notes for each client that this one was used."""
        needed = self._options.min_clients
        if len(result.ids) < needed:
            LOG.warning("round %d: %d answers, %d are needed: no step", round_, len(result.ids), needed)
            return no_updates({})
        if task == "train":
            self.store.reserve(result.ids)
            self.store.stage(result.ids, {"last_used": torch.full((len(result.ids),), round_)})
        return result

    def _example(self, task: Task, sent: Broadcast) -> ClientUpdates:
        """An example of an answer, made by running a client here once on dummy samples.

        The form of an upload depends on the method only, so any loss will do; the run's own may need more than the
        server has, such as a teacher's logits for a client's samples.
        """
        if task not in self._like:
            trainer = replace(self._trainer, loss=CrossEntropy(), augmentation=None)
            ids, shards = np.array([0]), [_dummy_shard(self._directory.info, sent.x.device)]
            state = trainer.initial_state(trainer.clients(ids, shards), sent.x)
            self._like[task] = trainer.run(task, ids, shards, state, sent)
        return self._like[task]


def _scale(sent: Broadcast) -> float:
    """The size of the model that was sent; at least 1, for models that start from zeros."""
    parts = (sent.x, sent.buffers)
    return 1.0 + sum(float(torch.linalg.vector_norm(part.double())) for part in parts)


def _dummy_shard(like: ClientInfo | None, device: torch.device) -> Shard:
    """Two samples of zeros: BatchNorm needs more than one."""
    assert like is not None, "clients are asked after they have sent their info"
    inputs = torch.zeros(2, *like.input_shape, dtype=getattr(torch, like.input_dtype), device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    return shard(LabelledTensors(inputs, labels), like.classes)
