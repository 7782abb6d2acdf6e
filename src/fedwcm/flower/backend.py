"""Real clients as one more backend: it sends requests and returns the usable answers as rows."""

import logging
from dataclasses import replace

import numpy as np
import torch

from fedwcm.config.build import LabelledTensors
from fedwcm.core.batch import Shard
from fedwcm.core.types import Ints
from fedwcm.engine.backends.in_process import BlockCollector, nobody
from fedwcm.engine.client import Broadcast, ClientTrainer, ClientUpdates, Task
from fedwcm.engine.store import ClientStore
from fedwcm.flower.checks import Fault, UnusableError, checked
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.client_info import ClientInfo
from fedwcm.flower.records import RequestId, broadcast_records, request
from fedwcm.flower.samples import shard
from fedwcm.losses.cross_entropy import CrossEntropy

LOG = logging.getLogger("flwr.fedwcm")


class FlowerBackend:
    """Clients on the other side of Flower's grid.

    Their own state stays with them. The server's store holds, for each client, the last round for which its answer
    was used. It is part of every checkpoint, so that a client always continues from the state the server expects.
    """

    def __init__(self, directory: ClientDirectory, trainer: ClientTrainer, series: str, min_clients: int) -> None:
        self._directory, self._trainer = directory, trainer
        self._series, self._min_clients = series, min_clients
        self._like: dict[Task, ClientUpdates] = {}
        self.store = ClientStore(trainer.population.clients, {"counted": torch.zeros(1, dtype=torch.int64)})

    def run(self, task: Task, ids: Ints, sent: Broadcast) -> ClientUpdates:
        """Let these clients work; those without a usable answer are left out and recorded as faults."""
        like = self._example(task, sent)
        asked = {int(c): RequestId(task, sent.round + 1, int(c), self._series) for c in ids}
        counted = dict(zip(asked, self.store.read(ids, torch.device("cpu"))["counted"].tolist(), strict=True))
        shared = broadcast_records(sent, self._trainer.population)
        contents = {c: request(shared, question, sent.base_lr, counted[c]) for c, question in asked.items()}
        answers = self._directory.ask(f"train.{task}", contents, sent.round + 1)
        faults, results = list(answers.faults), []
        for client, reply in answers.replies.items():
            try:
                samples, result = checked(reply, asked[client], like, sent.x.device)
            except UnusableError as error:
                faults.append(Fault(client, str(error)))
            else:
                self._directory.samples[client] = samples
                results.append(result)
        for fault in faults:
            LOG.warning("round %d: client %d is left out: %s", sent.round + 1, fault.client, fault.reason)
        left_out = {fault.client: fault.reason for fault in faults}
        return replace(self._collected(task, sent.round + 1, results), left_out=left_out)

    def close(self) -> None:
        pass

    def _collected(self, task: Task, round_: int, results: list[ClientUpdates]) -> ClientUpdates:
        if len(results) < self._min_clients:
            LOG.warning("round %d: %d answers, %d are needed: no step", round_, len(results), self._min_clients)
            return nobody({})
        ids = np.concatenate([result.ids for result in results])
        collector = BlockCollector(ids)
        for result in results:
            collector.put(result)
        if task == "train":
            self.store.reserve(ids)
            self.store.stage(ids, {"counted": torch.full((len(ids),), round_)})
        return collector.result()

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


def _dummy_shard(like: ClientInfo | None, device: torch.device) -> Shard:
    """Two samples of zeros: BatchNorm needs more than one."""
    assert like is not None, "clients are asked after they have sent their info"
    inputs = torch.zeros(2, *like.input_shape, dtype=getattr(torch, like.input_dtype), device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    return shard(LabelledTensors(inputs, labels), like.classes)
