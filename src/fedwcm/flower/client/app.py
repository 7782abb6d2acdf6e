"""The client app: a model, the client's data, and the local loop that the simulator runs as well."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedwcm import __version__
from fedwcm.balance import bayes_shift, client_shares
from fedwcm.core.batch import Shard
from fedwcm.core.disclosure import Disclosure, as_counts, contributions
from fedwcm.core.method import ClientStatistics
from fedwcm.core.types import Floats, Ints, Layout, Population
from fedwcm.engine.client import Task
from fedwcm.engine.evaluate import measure, predict_chunks
from fedwcm.engine.forward import SequentialForward
from fedwcm.engine.network import Network
from fedwcm.experiment.components import Components
from fedwcm.experiment.rounds import chosen_precision
from fedwcm.flower import records
from fedwcm.flower.app import model as models
from fedwcm.flower.app.model import ModelFactory, Samples
from fedwcm.flower.app.options import require_discreet, with_run_config
from fedwcm.flower.client import privacy
from fedwcm.flower.client.mods import (
    Mod,
    Mods,
    clamp_variances,
    clip_upload,
    require_mods_allowed,
    require_usable,
    through_mods,
)
from fedwcm.flower.client.state import read_states, state_after, state_file, with_next, write_states
from fedwcm.flower.info import ClientInfo
from fedwcm.flower.secure.client import answer_stage, keep_upload
from fedwcm.privacy.options import noise_bound

DataLoader = Callable[..., Samples | tuple[Any, Any, Any]]
"""Loads this client's inputs and labels, given the node's config; it may take the run's config as `run_config`."""

Work = Callable[["Client"], RecordDict]


def client_app(
    *, model: ModelFactory, data: DataLoader, evaluate: DataLoader | None = None, mods: Sequence[Mod] = ()
) -> ClientApp:
    """Return a Flower app that trains this model on this node's data, by whichever method the run asks for.

    Args:
        model: makes the model, a `torch.nn.Module` from inputs to class scores.
        data: gives the node's own `(inputs, labels)` from the node's config; inputs as the model takes them,
            labels from 0 to the number of classes minus 1. It is called once before round 1, and for every round.
            A third entry may number the samples, for losses that look something up by number; else they count
            from 0.
        evaluate: gives the node's own `(inputs, labels)` to test models on, if the run asks for it.
        mods: Flower's mods, or your own, around training: they see the model before and after it.

    Each of the three gets Flower's run-config as well, if it takes a parameter `run_config`. The node's config
    must number the client: `partition-id`, or `client-id`. It may name a `state-dir`, in which the client's own
    state survives restarts, a `device`, and the least privacy with which it takes part in a run.
    """
    app = add_training(ClientApp(), model=model, data=data, mods=mods)
    if evaluate is not None:
        app.evaluate()(_handler(model, evaluate, Client.evaluate))
    return app


def add_training(app: ClientApp, *, model: ModelFactory, data: DataLoader, mods: Sequence[Mod] = ()) -> ClientApp:
    """Let an app train as the server's method wants, in place of its own `@app.train()`; returns the app.

    Its other functions, such as `@app.evaluate()`, stay as they are. The arguments are those of `client_app`.
    """
    require_usable(app._mods)
    sorted_mods = Mods.of(mods)
    app.query("info")(_handler(model, data, lambda client: client.info(sorted_mods).records()))
    app.query("counts")(_handler(model, data, Client.plain_counts))
    app.query("encrypted")(_handler(model, data, Client.encrypted_counts))
    app.query("statistics")(_handler(model, data, Client.statistics))
    app.train("probe")(_working("probe", model, data, sorted_mods))
    app.train("train")(_working("train", model, data, sorted_mods))
    if sorted_mods.secure is not None:
        app.train("secure")(_secure_stage(sorted_mods.secure))
    return app


def _handler(model: ModelFactory, data: DataLoader, work: Work) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        return Message(work(Client(model, data, context, message.content)), reply_to=message)

    return handle


def _working(
    task: Task, model: ModelFactory, data: DataLoader, mods: Mods
) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        client = Client(model, data, context, message.content)
        mods.require_as_asked(client.secure)
        request = dict(message.content.config_records["asked"])
        if request["client"] != client.id:  # the server learns whom it has reached, and asks again
            return Message(RecordDict({"answers": ConfigRecord({"client": client.id})}), reply_to=message)
        around = mods.training if task == "train" else ()
        reply = through_mods(around, message, context, client.config, lambda: client.work(task))
        if reply.has_error():
            return reply
        if around:
            reply.content = clamp_variances(reply.content, client.buffer_layout)
        bound = records.max_norm(message.content) if task == "train" else None
        if bound is not None and records.bounds_itself(client.config, client.secure):
            reply.content = clip_upload(reply.content, bound)
        if client.secure:
            reply.content = keep_upload(reply.content, context)
        if client.withholds_metrics:
            reply.content = records.without_metrics(reply.content)
        return reply

    return handle


def _secure_stage(mod: Mod) -> Callable[[Message, Context], Message]:
    def handle(message: Message, context: Context) -> Message:
        client = client_id(context.node_config)
        return Message(answer_stage(mod, message, context, client), reply_to=message)

    return handle


class Client:
    """One client, while it handles one message.

    Only what the message needs is built: neither the model nor the data for what follows from class counts.
    """

    def __init__(self, model: ModelFactory, data: DataLoader, context: Context, content: RecordDict) -> None:
        self._context, self._content = context, content
        self.id = client_id(context.node_config)
        self.config, self.secure = records.read_config(content), records.is_secure(content)
        privacy.require_private_enough(self.config.privacy, context.node_config)
        privacy.require_allowed_code(self.config, context.node_config)
        privacy.pin(context, "options", str(content.config_records[records.RUN]["settings"]))
        self._make_model = with_run_config(model, context.run_config)
        self._load = with_run_config(data, context.run_config)

    @cached_property
    def _components(self) -> Components:
        return Components.of(self.config)

    @cached_property
    def _network(self) -> Network:
        device, scale = self._context.node_config.get("device"), self._components.loss.logit_scale
        return models.network(self._make_model, self.config, None if device is None else str(device), scale)

    @cached_property
    def _samples(self) -> tuple[Shard, int]:
        """The client's samples, and the number of classes that the model tells apart."""
        inputs, labels, *numbers = self._load(self._context.node_config)
        samples = models.tensors((inputs, labels), self._network.device)
        classes = models.class_scores(self._network, samples.inputs[:1]).shape[-1]
        self._network.choose_head(classes)
        return models.shard(samples, classes, *numbers), classes

    def info(self, mods: Mods) -> ClientInfo:
        """Return the client's number and the form of its data; an error if it cannot train as the run asks."""
        chosen_precision(self.config.run.precision, self._network.device)
        mods.require_as_asked(self.secure)
        require_mods_allowed(mods.training, self._components.method, self.config, self._network.initial()[0])
        samples, classes = self._samples
        inputs = samples.store.inputs[:1]
        privacy.keep_counts(np.bincount(samples.labels, minlength=classes), self._context)
        shape, dtype = tuple(inputs.shape[1:]), str(inputs.dtype).removeprefix("torch.")
        model = tuple(models.architecture(self._network))
        frozen = tuple(map(models.fingerprint, models.frozen_parts(self._network).values()))
        return ClientInfo(self.id, len(samples), classes, shape, dtype, model, __version__, frozen)

    def plain_counts(self) -> RecordDict:
        """Return the number of samples of each class."""
        if self.config.privacy.mode != "none":
            raise ValueError(f"this client does not show its counts: privacy.mode = {self.config.privacy.mode!r}")
        return RecordDict({"counts": MetricRecord({"counts": self.reported_counts.tolist()})})

    def encrypted_counts(self) -> RecordDict:
        """Answer a message of the protocol that sums counts, and distances from the target, under encryption."""
        options, request = self.config.privacy, records.from_bytes_record(self._content)
        shift, target = noise_bound(options.epsilon), self.config.run.target_shares
        (numbers,) = contributions(self.reported_counts[None], target, options.levels, shift)
        reply = privacy.reply(request, self.id, numbers, options.min_contributors, self._context)
        return records.to_bytes_record(reply)

    def statistics(self) -> RecordDict:
        """Return what the method wants to know about these counts; the counts themselves stay here."""
        population, method = self._population(), self._components.method
        if not isinstance(method, ClientStatistics):
            raise ValueError(f"the method {method.name} asks nothing of its clients before the first round")
        disclosure = Disclosure(self.config.privacy.levels, self._noisy_counts)
        report = disclosure.report(method, np.array([self.id]), self.counts[None], population)
        return RecordDict({"statistics": records.report_record(report)})

    def work(self, task: Task) -> RecordDict:
        """Run this client's part of a phase of a round."""
        method = self._components.method
        require_discreet(method, self.config.privacy, self.secure)
        privacy.require_allowed_teacher((method, self._components.loss), self._context.node_config)
        request, sent, last_used = records.read_request(self._content, self._network.device)
        # A file each: a server that changed the name would fill the disk.
        privacy.pin(self._context, "name", request.run_id)
        population = self._population()
        if len(sent.x) != self._network.size:
            raise ValueError(f"the server's model has {len(sent.x)} parameters, this one {self._network.size}")
        forward = SequentialForward(self._network)
        trainer = self._components.trainer(self.config, forward, population, self._noisy_counts)
        own, _ = self._samples
        ids, shards, file = np.array([self.id]), [own], state_file(self._context, request)
        fresh = trainer.initial_state(trainer.clients(ids, shards), sent.x, sent.buffers)
        kept = read_states(file, sent.x.device) if fresh else {}
        state = state_after(kept, last_used, fresh, self.id)
        result = trainer.run(task, ids, shards, state, sent)
        if task == "train" and result.state:
            write_states(file, with_next(kept, last_used, request.round, result.state))
        return records.answer(request, len(own), result)

    def evaluate(self) -> RecordDict:
        """Test the model that was sent; request and reply have Flower's own format."""
        if self.withholds_metrics:
            raise ValueError("this client does not tell how well a model does: see flower.share_metrics")
        shard, classes = self._samples
        self._network.module.load_state_dict(self._content.array_records["arrays"].to_torch_state_dict())
        inputs, labels = shard.store.inputs, shard.store.labels
        chunks = predict_chunks(self._network, *self._network.initial(), inputs)
        shift = torch.from_numpy(self._own_shift(classes)).to(self._network.device, torch.float32)
        tested = measure((chunk + shift for chunk in chunks), labels, classes)
        accuracy = float(np.trace(tested.confusion) / tested.confusion.sum())
        numbers: dict[str, Any] = {"loss": tested.loss, "accuracy": accuracy, "num-examples": len(shard)}
        return RecordDict({"metrics": MetricRecord(numbers)})

    def _own_shift(self, classes: int) -> Floats:
        """Return what the class mix of this client's training samples adds to the logits, if it is asked for."""
        if "mix" not in self._content.config_records:
            return np.zeros(classes)
        counts = privacy.kept_counts(self._context)
        if counts is None:
            raise ValueError("flower.own_mix needs the class counts that this client keeps when it joins a run")
        assumed, natural = (np.array(self._content.config_records["mix"][key]) for key in ("assumed", "natural"))
        return bayes_shift(client_shares(counts, natural), assumed)

    @property
    def buffer_layout(self) -> Layout:
        return self._network.buffer_layout

    @property
    def withholds_metrics(self) -> bool:
        """Whether this client keeps its loss and accuracy to itself."""
        return privacy.withholds_metrics(self._content, self.config.privacy, self._context.node_config)

    @property
    def counts(self) -> Ints:
        """The number of samples of each class, as they were when the client sent its info."""
        if (kept := privacy.kept_counts(self._context)) is not None:
            return kept
        own, classes = self._samples
        return np.bincount(own.labels, minlength=classes)

    @property
    def reported_counts(self) -> Ints:
        """The counts that this client reports: the true ones, or with noise if the run asks for it."""
        if (epsilon := self.config.privacy.epsilon) is None:
            return self.counts
        return privacy.stored_noisy_counts(self.counts, epsilon, self.id, self._context)

    @property
    def _noisy_counts(self) -> dict[int, Ints] | None:
        """The counts from which all is computed that this client says of them; None for its own."""
        return None if self.config.privacy.epsilon is None else {self.id: as_counts(self.reported_counts[None])[0]}

    def _population(self) -> Population:
        """Return the facts about the federation, of which a run has only one version."""
        population = records.read_population(self._content.config_records["population"])
        target = None if population.target is None else population.target.tolist()
        privacy.pin(self._context, "class distribution", json.dumps([population.prior.tolist(), target]))
        return population


def client_id(node_config: Mapping[str, Any]) -> int:
    """Return the client's number, which is the same after a restart."""
    for key in ("client-id", "partition-id"):
        if key in node_config:
            number = node_config[key]
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"{key} = {number!r} is not allowed: it must be a whole number from 0")
            return number
    raise ValueError("the node's config must number the client: --node-config 'partition-id=0'")
