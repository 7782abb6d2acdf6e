"""The public functions. Each command of the command line is a thin wrapper of one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedwcm.config.build import Experiment, build, divide
from fedwcm.config.flags import config_from, settings_from
from fedwcm.config.schema import Config, Settings, differences, from_settings, named_options, to_settings
from fedwcm.config.trust import require_trust
from fedwcm.core.checks import unknown
from fedwcm.core.types import Ints
from fedwcm.data import Dataset, load_dataset
from fedwcm.data.normalize import Normalizer
from fedwcm.data.partition import PARTITIONS, PartitionStatistics, counts_of, describe
from fedwcm.engine.evaluate import evaluate as evaluate_network
from fedwcm.engine.network import Network
from fedwcm.engine.rounds import DivergedError
from fedwcm.metrics.classification import summarise
from fedwcm.models import build_model
from fedwcm.reports.write import report_or_warn
from fedwcm.runs.folder import Record, RunFolder
from fedwcm.runs.lock import locked
from fedwcm.runs.progress import Progress, Silent
from fedwcm.runs.runner import Runner, RunResult
from fedwcm.runs.trackers.tracking import check_trackers


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: what was run, how it went, and the trained model."""

    config: Config
    history: list[Record]
    summary: Record
    model: nn.Module
    folder: Path | None


def run(
    method: str | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: bool = True,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    trust: bool = False,
    **flags: object,
) -> Result:
    """Train one method on one division of a data set.

    Args:
        method: a method or recipe, with options in brackets if need be: `"fedcm[alpha=0.2]"`.
        out: folder for the configuration, metrics, checkpoints and model; nothing is written without one.
        resume: go on from the newest checkpoint in `out`.
        report: write `report.html` into `out` at the end.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: told of every round.
        trust: run code (`package.module:Name`) that `config` names if it is the file of a run's folder.
        flags: the common options: `dataset`, `imbalance`, `beta`, `clients`, `rounds`, `lr`, … as on the
            command line.
    """
    wanted = config_from(method, config, settings, trust=trust, **flags)
    if out is None:
        return _run(wanted, None, resume, report, progress or Silent())
    with locked(Path(out)):
        return _run(wanted, RunFolder(Path(out)), resume, report, progress or Silent())


def _run(wanted: Config, folder: RunFolder | None, resume: bool, report: bool, progress: Progress) -> Result:
    if folder is not None and folder.holds_run and not resume:
        raise ValueError(f"{folder.path} holds a run already: resume it, or choose another folder")
    check_trackers(wanted.run.track, None if folder is None else folder.path)
    experiment = build(wanted)
    if folder is not None and folder.holds_run and _nothing_left(folder, experiment):
        return _read_result(folder)
    finished = _played(experiment, folder, progress, report)
    module = experiment.network.module.eval()
    path = None if folder is None else folder.path
    return Result(experiment.config, finished.history, finished.summary, module, path)


def _nothing_left(folder: RunFolder, experiment: Experiment) -> bool:
    """Whether the folder's run came to its end; raises if it was another one than is to be resumed."""
    changed = differences(folder.config(), experiment.config)
    if changed or folder.finished:
        experiment.rounds.backend.close()
    if changed:
        raise ValueError(f"{folder.path} cannot be resumed with another configuration: " + "; ".join(changed))
    return folder.finished


def _played(experiment: Experiment, folder: RunFolder | None, progress: Progress, report: bool) -> RunResult:
    """Run to the end, in memory or in a folder; there the report tells of a run that diverged, too."""
    if folder is not None:
        classes = experiment.facts["classes"]
        assert isinstance(classes, list)
        folder.write_split(experiment.rounds.federation.counts, classes)
    try:
        return Runner(experiment, folder, progress).run()
    finally:
        if folder is not None and folder.finished and report:
            report_or_warn(folder.path)


def load(folder: str | Path, *, trust: bool = False) -> nn.Module:
    """The trained model of a run, in evaluation mode. It takes normalised inputs: see `normalizer`.

    A folder never runs code by itself: if its model is somebody's own (`package.module:factory`), `trust` says
    that it may be imported and called.
    """
    return _trained(Path(folder), trust)[0]


def _trained(folder: Path, trust: bool) -> tuple[nn.Module, Record]:
    """The trained model of a run, and what it takes to use it."""
    run_folder = RunFolder(folder)
    if not (run_folder.path / "model.safetensors").exists():
        raise FileNotFoundError(f"{folder} holds no finished run: there is no model.safetensors in it")
    state, facts = run_folder.model()
    config = run_folder.config()
    require_trust(to_settings(config), folder / "config.toml", trust, sections=["model"])
    model = config.model
    shape, classes = facts["input_shape"], facts["classes"]
    assert isinstance(shape, list)
    assert isinstance(classes, list)
    module = build_model(model.name, tuple(shape), len(classes), 0, **model.options)
    module.load_state_dict(state)
    return module.eval(), facts


def normalizer(folder: str | Path) -> Normalizer:
    """What turns raw inputs (images `(n, H, W, C)`, tables `(n, features)`) into those the model takes."""
    _, facts = RunFolder(Path(folder)).model()
    return _normalizer(facts)


def _normalizer(facts: Record) -> Normalizer:
    keeps_integers = bool(facts.get("keeps_integers"))
    return Normalizer(np.float32(facts["mean"]), np.float32(facts["std"]), keeps_integers)  # type: ignore[arg-type]


def evaluate(
    folder: str | Path, dataset: str | Path | Dataset, *, trust: bool = False, **options: object
) -> Record:
    """Test the model of a run on the test part of other data. Classes are matched by name.

    `trust` is as in `load`; `options` are those of `fedwcm.data.load_dataset`: `data_dir`, `label`, `client`,
    `split`, `test_fraction`.
    """
    module, facts = _trained(Path(folder), trust)
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset, **options)  # type: ignore[arg-type]
    known = facts["classes"]
    assert isinstance(known, list)
    missing = sorted(set(data.classes) - set(known))
    if missing:
        raise ValueError(f"{data.name} has classes that the model does not know: {', '.join(missing)}")
    if list(data.input_shape) != facts["input_shape"]:
        raise ValueError(f"{data.name} has inputs of shape {data.input_shape}, the model {facts['input_shape']}")
    numbers = np.array([known.index(name) for name in data.classes])
    inputs = torch.from_numpy(_normalizer(facts)(data.x_test))
    network = Network(module)
    tested = evaluate_network(
        network, *network.initial(), inputs, torch.from_numpy(numbers[data.y_test]), len(known)
    )
    train_counts = np.array(RunFolder(Path(folder)).summary()["train_counts"])
    return {"samples": len(inputs), "test_loss": tested.loss, **summarise(tested.confusion, train_counts)}


@dataclass(frozen=True, eq=False)
class Division:
    """A data set divided among clients."""

    config: Config
    classes: tuple[str, ...]
    counts: Ints
    statistics: PartitionStatistics


def partition(
    *,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    **flags: object,
) -> Division:
    """Divide a data set among clients, as a run with the same options would, and describe the result."""
    data = divide(config_from(None, config, settings, trust=trust, **flags))
    counts = counts_of(data.parts, data.train_labels, data.dataset.num_classes)
    return Division(data.config, data.dataset.classes, counts, describe(counts))


def partitions(
    ways: Sequence[str],
    *,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    **flags: object,
) -> dict[str, Division]:
    """Divide a data set in several ways, each `NAME` or `NAME[option=value, …]` of a partition.

    Options that all share, such as `clients` and `beta`, are for those partitions that have them.
    """
    common = settings_from(None, config, settings, flags, trust)
    return {way: partition(config=from_settings(partition_settings(way, common))) for way in ways}


def partition_settings(way: str, common: Settings) -> Settings:
    """The settings of a run that divides its data in this way, and is otherwise as these say."""
    name, options = named_options(way)
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    known = {f"partition.{field.name}" for field in fields(PARTITIONS[name])}
    kept = {key: value for key, value in common.items() if key in known or not key.startswith("partition.")}
    return {**kept, "partition.name": name, **{f"partition.{key}": value for key, value in options.items()}}


def _read_result(folder: RunFolder) -> Result:
    summary = folder.summary()
    if summary["diverged"]:
        raise DivergedError(str(summary["diverged"]))
    model = load(folder.path, trust=True)  # it has the configuration that the user asked for
    return Result(folder.config(), folder.metrics(), summary, model, folder.path)
