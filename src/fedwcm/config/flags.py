"""The common options under short names: flags of the command line, keywords of the Python functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedwcm.config.schema import Config, Settings, from_settings, method_settings, overlay, read_toml, to_settings
from fedwcm.config.trust import belongs_to_a_run, require_trust
from fedwcm.core.checks import unknown


@dataclass(frozen=True)
class Flag:
    """A short name for a dotted option."""

    key: str
    help: str


FLAGS: dict[str, Flag] = {
    "dataset": Flag("data.dataset", "a named data set, a table, a .npz file, an image folder, or hub:ID"),
    "data_dir": Flag("data.data_dir", "folder in which named data sets are looked for first"),
    "label": Flag("data.label", "label column of a table"),
    "client": Flag("data.client", "client column of a table; of an image folder: folder, or a table file,client"),
    "split": Flag("data.split", "column that says train, val or test"),
    "features": Flag("data.features", "columns to use, by name or pattern: age,pixel_*"),
    "drop": Flag("data.drop", "columns to leave out, by name or pattern"),
    "impute": Flag("data.impute", "median: fill in missing values"),
    "encoding": Flag("data.encoding", "encoding of a text file, such as latin-1"),
    "image_size": Flag("data.image_size", "side of the square that images are scaled and cut to"),
    "normalize": Flag("data.normalize", "auto, standard, none, or mean,std"),
    "test_fraction": Flag("data.test_fraction", "share held out for testing where the data has no test part"),
    "val_fraction": Flag("data.val_fraction", "share of the training data held out for validation"),
    "augment": Flag("data.augment", "flip and crop images at random: true or false"),
    "imbalance": Flag("data.imbalance", "rarest over most frequent class, in (0, 1]; none for the data as it is"),
    "partition": Flag("partition.name", "how samples are divided among clients"),
    "clients": Flag("partition.clients", "number of clients"),
    "beta": Flag("partition.beta", "Dirichlet concentration: smaller is more heterogeneous"),
    "model": Flag("model.name", "a model's name, or package.module:factory"),
    "loss": Flag("loss.name", "the clients' objective"),
    "sampler": Flag("sampler.name", "how clients draw their batches"),
    "epochs": Flag("local.epochs", "local epochs a round"),
    "batch_size": Flag("local.batch_size", "samples in a mini-batch"),
    "lr": Flag("local.lr", "local learning rate"),
    "participation": Flag("participation.participation", "share of the clients sampled each round"),
    "rounds": Flag("run.rounds", "communication rounds"),
    "seed": Flag("run.seed", "seed of all randomness"),
    "eval_every": Flag("run.eval_every", "rounds between evaluations"),
    "device": Flag("run.device", "auto, cpu, cuda, mps, …"),
    "privacy": Flag("run.privacy", "none, or he: gather the class distribution under homomorphic encryption"),
    "diagnostics": Flag("run.diagnostics", "what else to measure at every evaluation: concentration"),
    "track": Flag("run.track", "trackers to tell of the run: tensorboard, mlflow, wandb"),
    "backend": Flag("run.backend", "auto, sequential, vectorized or parallel"),
}


def settings_from(
    method: str | None,
    config: str | Path | Config | None,
    settings: Mapping[str, object] | None,
    flags: Mapping[str, object],
    trust: bool = False,
) -> Settings:
    """All that was said, in order of precedence: a file (or a configuration), then flags, then settings.

    Code that the `config.toml` of a run's folder names is refused, unless `trust` or the user names it, too.
    """
    above = overlay(method_settings(method) if method is not None else {}, _spelt_out(flags))
    above = overlay(above, settings or {})
    if config is None or isinstance(config, Config):
        return overlay({} if config is None else to_settings(config), above)
    merged = overlay(read_toml(Path(config)), above)
    if belongs_to_a_run(Path(config)):
        require_trust(merged, Path(config), trust, named=above)
    return merged


def _spelt_out(flags: Mapping[str, object]) -> Settings:
    short: Settings = {}
    for name, value in flags.items():
        if name not in FLAGS:
            raise unknown("option", name, FLAGS)
        if value is not None:
            short[FLAGS[name].key] = value
    return short


def config_from(
    method: str | None = None,
    config: str | Path | Config | None = None,
    settings: Mapping[str, object] | None = None,
    *,
    trust: bool = False,
    **flags: object,
) -> Config:
    """The configuration that a file, flags and dotted settings make together."""
    return from_settings(settings_from(method, config, settings, flags, trust))
