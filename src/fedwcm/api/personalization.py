"""`fedwcm.personalize`: how well a trained model does at each client after the client has fine-tuned it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedwcm.api.arguments import ClientsLike, DataLike, Folder, ModelLike
from fedwcm.api.own_rows import as_run
from fedwcm.api.trained import folder_model, load_trained
from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import FineTuning
from fedwcm.core.batch import Shard
from fedwcm.core.method import Method
from fedwcm.core.torch_rng import default_torch_modes
from fedwcm.core.types import Context, Floats, GradientOracle, Layout, State, Vec
from fedwcm.engine.client import Broadcast, ClientTrainer
from fedwcm.engine.evaluate import evaluate
from fedwcm.experiment.build import Experiment, build
from fedwcm.experiment.folder import RunFolder
from fedwcm.experiment.model_file import read_model
from fedwcm.experiment.records import PersonalizationRecord
from fedwcm.metrics.clients import OnOwnSamples, name_accuracies, spread_over_clients
from fedwcm.privacy.options import PrivacyOptions


@default_torch_modes()
def personalize(
    folder: Folder,
    dataset: DataLike | None = None,
    *,
    epochs: int = 1,
    layers: Literal["all", "head"] = "all",
    lr: float | None = None,
    clients: ClientsLike | None = None,
    model: ModelLike | None = None,
    trust: bool = False,
    write: bool = False,
) -> PersonalizationRecord:
    """Fine-tune a run's model at each client, on its training samples, and test it on its own test samples.

    The data must have clients of their own, which have training samples and test samples: see `test_clients` in
    `fedwcm.evaluate`. Every client starts from the model of the run, and trains as in a round of FedAvg with the
    run's loss, sampler and batch size, without what a server sends beside the model (Fed-GraB's estimate of the
    rare classes: all of its controllers are on).

    Args:
        folder: the run's folder, or its result.
        dataset: the run's data, if it was an object or has moved.
        epochs: passes over a client's training samples.
        layers: `all`, or `head`: the final linear layer alone.
        lr: learning rate; by default the run's (`local.lr`).
        clients: the client of every training sample, if the run was given it.
        model: what takes the trained weights, as in `fedwcm.load_model`.
        trust: import what the folder names as `package.module:Name`.
        write: write the record to `personalized.json` in the folder.
    """
    options = FineTuning(epochs=epochs, layers=layers, lr=lr)
    run_folder = RunFolder(Path(folder))
    trained = load_trained(run_folder.path, model, trust)
    config = replace(
        _as_it_was(run_folder.config(trust=trust), dataset, clients), model=folder_model(run_folder, model, trust)
    )
    experiment = build(config)
    try:
        if experiment.facts.fingerprint != trained.facts.fingerprint:
            raise ValueError(f"these are not the data that the run in {run_folder.path} was trained on")
        experiment.network.module.load_state_dict(read_model(run_folder))
        record = _fine_tuned(experiment, options, *experiment.network.initial())
    finally:
        experiment.rounds.backend.close()
    if write:
        run_folder.write_personalized(record)
    return record


def _as_it_was(config: Config, dataset: DataLike | None, clients: ClientsLike | None) -> Config:
    """Return the configuration of the run, with its objects, for one process. Fine-tuning needs no method."""
    privacy = PrivacyOptions(epsilon=config.privacy.epsilon)  # the same noise, which the seed gives; no encryption
    config = replace(config, method=Component("fedavg"), run=replace(config.run, backend="sequential"))
    return as_run(replace(config, privacy=privacy), dataset, clients)


def _fine_tuned(experiment: Experiment, options: FineTuning, x: Vec, buffers: Vec) -> PersonalizationRecord:
    test, owners = experiment.test, experiment.test_clients
    members = clients_to_tune(experiment.client_names, experiment.test_clients)
    assert test is not None
    assert owners is not None
    rate = options.lr or experiment.config.local.lr
    sent = Broadcast(experiment.config.run.rounds, x, buffers, {}, rate)
    trainer = fine_tuner(experiment.rounds.trainer, options)
    before, after = np.empty(len(members)), np.empty(len(members))
    for i, (name, client) in enumerate(members.items()):
        rows = torch.from_numpy(np.flatnonzero(owners == name)).to(test.labels.device)
        tuned = fine_tune(trainer, client, experiment.rounds.federation.shard(client), sent)
        before[i], after[i] = (_accuracy(experiment, model, rows) for model in ((x, buffers), tuned))
    names = tuple(members)
    return PersonalizationRecord(
        epochs=options.epochs,
        layers=options.layers,
        lr=rate,
        before=spread_over_clients(before),
        after=spread_over_clients(after),
        client_accuracy_before=name_accuracies(before, names),
        client_accuracy=name_accuracies(after, names),
    )


def clients_to_tune(names: Sequence[str], test_clients: NDArray[np.str_] | None) -> dict[str, int]:
    """Return the names and numbers of clients with training and test samples; raise if there are none.

    Args:
        names: those of the clients with training samples, in the order of their numbers; empty if they have none.
        test_clients: the client of every test sample, if known.
    """
    if not names or test_clients is None:
        raise ValueError(
            "personalization needs clients that the data names, in its training and its test samples: a client "
            "column (--client), or clients in the arrays; here a partition made the clients"
        )
    tested = set(OnOwnSamples.of(test_clients).names)
    members = {name: i for i, name in enumerate(names) if name in tested}
    if not members:
        raise ValueError(
            "personalization needs training samples of those who are tested: here whole clients were held out "
            "(data.test_clients)"
        )
    return members


def _accuracy(experiment: Experiment, model: tuple[Vec, Vec], rows: torch.Tensor) -> Floats:
    assert experiment.test is not None
    inputs, labels = experiment.test.inputs[rows], experiment.test.labels[rows]
    tested = evaluate(experiment.network, *model, inputs, labels, len(experiment.train_counts))
    accuracy: Floats = tested.correct.mean()
    return accuracy


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadOnly(Method):
    """Plain local training of the parameters that the mask is 1 for."""

    mask: Vec

    def direction(self, w: Vec, grad: GradientOracle, c: State, ctx: Context) -> tuple[Vec, State]:
        return grad(w).mul(self.mask), c


def fine_tuner(trainer: ClientTrainer, options: FineTuning) -> ClientTrainer:
    """Return the trainer of a run, for plain local training instead of the run's method.

    What the method adds to a local step (momentum, control variates, proximal terms) holds clients together while
    they train a common model, and has no place here; the loss, the sampler and the batches are those of the run.
    """
    network = trainer.forward.network
    population = replace(trainer.population, epochs=options.epochs, steps=None)
    if options.layers == "all":
        return replace(trainer, method=Method(), population=population)
    method = HeadOnly(mask=head_mask(network.layout).to(network.device))
    steady = replace(trainer.optimizer, weight_decay=0.0)  # decay would move the body
    return replace(trainer, method=method, population=population, optimizer=steady)


def head_mask(layout: Layout) -> Vec:
    """Return 1 for the parameters of the head, 0 for all others."""
    if not layout.head_slices:
        raise ValueError("layers = 'head' is not allowed for this model: it has no final linear layer")
    mask = torch.zeros(layout.size)
    for part in layout.head_slices:
        mask[part.start : part.stop] = 1.0
    return mask


def fine_tune(trainer: ClientTrainer, client: int, shard: Shard, sent: Broadcast) -> tuple[Vec, Vec]:
    """Return the parameters and buffers of a client after its local training; for the head alone, buffers stay."""
    ids = np.array([client])
    state = trainer.initial_state(trainer.clients(ids, [shard]), sent.x, sent.buffers)
    upload = trainer.train(ids, [shard], state, sent).upload
    tracks = "buffers" in upload and not isinstance(trainer.method, HeadOnly)
    return sent.x + upload["delta"][0], upload["buffers"][0] if tracks else sent.buffers
