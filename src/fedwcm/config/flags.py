"""Short names of the common options: flags on the command line, keywords of the Python functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.component_text import component_settings, dotted, method_settings, named_options
from fedwcm.config.schema import Component, Config
from fedwcm.config.settings import Settings, from_settings, overlay, read_toml, spoken
from fedwcm.core.checks import unknown


@dataclass(frozen=True)
class Flag:
    """A short name for a dotted option."""

    key: str
    help: str


FLAGS: dict[str, Flag] = {
    "dataset": Flag("data.dataset", "a named data set, a table, a .npz file, an image folder, or hub:ID"),
    "data_dir": Flag("data.data_dir", "folder to search first for named data sets"),
    "label": Flag("data.label", "label column of a table"),
    "client": Flag("data.client", "client column of a table; of an image folder: folder, or a table file,client"),
    "group": Flag("data.group", "column of what stays on one side of every split, such as the patient"),
    "split": Flag("data.split", "column that says train, val or test"),
    "features": Flag("data.features", "columns to use, by name or pattern: age,pixel_*"),
    "drop": Flag("data.drop", "columns to leave out, by name or pattern"),
    "impute": Flag("data.impute", "median: fill in missing values"),
    "encoding": Flag("data.encoding", "encoding of a text file, such as latin-1"),
    "delimiter": Flag("data.delimiter", "separator of a text file's columns, or tab; by default recognised"),
    "unlabelled": Flag("data.unlabelled", "skip: leave out rows without a label"),
    "image_size": Flag("data.image_size", "side of the square that images are scaled and cut to"),
    "normalize": Flag("data.normalize", "auto, standard, none, or mean,std"),
    "test_fraction": Flag("data.test_fraction", "share held out for testing where the data has no test part"),
    "test_clients": Flag("data.test_clients", "whole clients to hold out for testing: their share, or names a,b"),
    "val_fraction": Flag("data.val_fraction", "share of the training data held out for validation"),
    "augment": Flag("data.augment", "flip and crop images at random: true or false"),
    "imbalance": Flag("data.imbalance", "rarest over most frequent class, in (0, 1]; none for the data as it is"),
    "partition": Flag("partition.name", "how samples are divided among clients; options in brackets"),
    "clients": Flag("partition.clients", "number of clients"),
    "beta": Flag("partition.beta", "Dirichlet concentration: smaller is more heterogeneous"),
    "model": Flag("model.name", "a model's name, or package.module:factory; options in brackets"),
    "loss": Flag("loss.name", "the clients' loss, or package.module:Name; options in brackets"),
    "sampler": Flag("sampler.name", "how clients draw their batches, or package.module:Name; options in brackets"),
    "epochs": Flag("local.epochs", "local epochs per round"),
    "steps": Flag("local.steps", "local steps per round, instead of epochs"),
    "batch_size": Flag("local.batch_size", "samples in a mini-batch"),
    "lr": Flag("local.lr", "local learning rate"),
    "participation": Flag("participation.fraction", "share of the clients sampled each round"),
    "rounds": Flag("run.rounds", "communication rounds"),
    "seed": Flag("run.seed", "seed of all randomness"),
    "eval_every": Flag("run.eval_every", "rounds between evaluations"),
    "patience": Flag("run.patience", "evaluations without a better one on the validation data before it stops"),
    "device": Flag("run.device", "auto, cpu, cuda, mps, …"),
    "privacy": Flag("privacy.mode", "none, or he: gather the class distribution under homomorphic encryption"),
    "diagnostics": Flag(
        "run.diagnostics", "more measurements at every evaluation: concentration, train_set, clients"
    ),
    "track": Flag("run.track", "experiment trackers to log to: tensorboard, mlflow, wandb"),
    "backend": Flag("run.backend", "auto, sequential, vectorized, parallel, or ray: the workers of a cluster"),
}


PARTITION_FLAGS = tuple(
    name
    for name, flag in FLAGS.items()
    if (flag.key.split(".")[0] in ("data", "partition") and name not in ("augment", "normalize")) or name == "seed"
)
"""Flags that affect how the data are divided."""

COMPARE_FLAGS = tuple(name for name in FLAGS if name != "seed")
"""Flags of a comparison, which has its own list of seeds."""

SEEDS = "the seeds of the runs are seeds=… (--seeds)"


def option_key(name: str) -> str:
    """The dotted name of an option that is given by its flag, or by its dotted name."""
    if name in FLAGS:
        return FLAGS[name].key
    if "." not in name:
        raise unknown("option", name, FLAGS)
    return name


def settings_from(
    method: str | Component | None,
    config: str | Path | Config | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, object],
) -> Settings:
    """All that was said: flags and settings on top of a file or a configuration.

    Raises:
        ValueError: a flag and a setting give the same option two values.
    """
    merged: Settings = {}
    if isinstance(config, Config):
        merged = spoken(config)
    elif config is not None:
        merged = read_toml(Path(config))
    if isinstance(method, Component):
        merged = overlay(merged, component_settings("method", method))
    elif method is not None:
        merged = overlay(merged, {**method_settings(method), "run.name": method})
    short, given = _short(flags), dict(settings or {})
    merged = overlay(merged, one_value([*short.items(), *given.items()]))
    return _renamed(method, merged) if isinstance(method, str) else merged


def one_value(pairs: Iterable[tuple[str, object]]) -> Settings:
    """The options of these pairs; one that has two different values is an error."""
    found: Settings = {}
    for key, value in pairs:
        if key in found and not _same(found[key], value):
            raise ValueError(f"{key} is given twice, as {found[key]!r} and as {value!r}: leave out one of them")
        found[key] = value
    return found


def _same(one: object, other: object) -> bool:
    return one is other or repr(one) == repr(other) or (isinstance(one, int | float) and one == other)


def refuse_varied(
    varied: Iterable[str], by: str, settings: Mapping[str, object] | None, flags: Mapping[str, object]
) -> None:
    """Refuse an option that is varied, by a grid or a search, and has a value from elsewhere as well.

    Args:
        varied: options, by flag or dotted name.
        by: what varies them, for the error.
        settings: dotted options that were given.
        flags: short options that were given.
    """
    given, seen = {**_short(flags), **(settings or {})}, set[str]()
    if "run.seed" in given:
        raise ValueError(f"run.seed = {given['run.seed']!r} is not allowed: {SEEDS}")
    for name in varied:
        key = option_key(name)
        if key == "run.seed":
            raise ValueError(f"{by} varies run.seed: {SEEDS}")
        if key in given:
            raise ValueError(f"{key} = {given[key]!r} is given, and {by} varies it: leave it out of one of them")
        if key in seen:
            raise ValueError(f"{by} has {key} twice, by its short and its dotted name: leave out one of them")
        seen.add(key)


def _renamed(method: str, merged: Settings) -> Settings:
    """Name in brackets what other options have changed of a method or recipe: `fedwcm+[loss.name=focal]`."""
    own = method_settings(method)
    changed = {key: merged[key] for key, value in own.items() if key in merged and merged[key] != value}
    if merged.get("run.name") != method or not changed:
        return merged
    name, options = named_options(method)
    text = ", ".join(
        f"{key.removeprefix('method.')}={value}" for key, value in (dotted(options) | changed).items()
    )
    return {**merged, "run.name": f"{name}[{text}]"}


def _short(flags: Mapping[str, object]) -> Settings:
    """The dotted options of the flags that were given; a component may bring options in brackets."""
    short: Settings = {}
    for name, value in flags.items():
        if name not in FLAGS:
            raise unknown("option", name, FLAGS)
        if value is None:
            continue
        section, _, option = FLAGS[name].key.partition(".")
        if option == "name" and isinstance(value, (str, Component)):
            short |= component_settings(section, value)
        elif name == "drop" and isinstance(value, str):
            short["data.drop"] = column_names(value)
        else:
            short[FLAGS[name].key] = value
    return short


def column_names(text: str | None) -> list[str]:
    """The columns in a list `a,b`; none without a text. An empty name is that of a column that has none: `,b`."""
    return [] if text is None else [name.strip() for name in text.split(",")]


def config_from(
    method: str | Component | None = None,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    **flags: object,
) -> Config:
    """The configuration that a file, flags and dotted settings make together."""
    return from_settings(settings_from(method, config, settings, flags))
