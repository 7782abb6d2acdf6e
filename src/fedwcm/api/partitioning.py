"""`fedwcm.partition`: divide a data set among clients, to look at it before training or to use it elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Unpack

from fedwcm.api.arguments import ConfigLike, refuse_others
from fedwcm.api.description import describe_run, describe_settings
from fedwcm.api.keywords import PartitionKeywords
from fedwcm.config.flags import PARTITION_FLAGS
from fedwcm.config.resolve import resolve
from fedwcm.config.schema import Component
from fedwcm.config.settings import CLIENT_IDS, Settings, from_settings, name_in, named_options
from fedwcm.core.checks import unknown
from fedwcm.data.partition import PARTITIONS
from fedwcm.experiment.partitioning import PartitionedData, partition_data


def partition(
    *,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    **options: Unpack[PartitionKeywords],
) -> PartitionedData:
    """Divide a data set among clients, as a run with the same options would.

    Args:
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"partition.min_samples": 5}`.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
        options: common options, as in `fedwcm.run`.
    """
    refuse_others(options, PARTITION_FLAGS, "a partition")
    return partition_data(describe_run(None, config, settings, options, trust=trust))


def partitions(
    ways: Sequence[str],
    *,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    trust: bool = False,
    **options: Unpack[PartitionKeywords],
) -> dict[str, PartitionedData]:
    """Divide a data set in several ways.

    Options that all share, such as `clients` and `beta`, are for those partitions that have them; an option that
    none has is refused.

    Args:
        ways: partitions, each `NAME` or `NAME[option=value, …]`.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"partition.min_samples": 5}`.
        trust: import what a run's folder, given as `config`, names as `package.module:Name`.
        options: common options, as in `fedwcm.run`.
    """
    refuse_others(options, [name for name in PARTITION_FLAGS if name != "partition"], "a partition")
    common = describe_settings(None, config, settings, options, trust=trust)
    if name_in(common, "partition") == CLIENT_IDS:
        raise ValueError("clients=… assigns every sample to a client, which is a partition: use fedwcm.partition")
    known = {key for way in ways for key in _options_of(way)}
    for key in common:
        if key.startswith("partition.") and key not in {"partition.name", *known}:
            raise unknown("option of these partitions:", key, known)
    return {way: partition_data(from_settings(_partition_settings(way, common))) for way in ways}


def _options_of(way: str) -> set[str]:
    """Return the dotted options of a partition."""
    name, _ = named_options(way)
    if name not in PARTITIONS and ":" not in name:
        raise unknown("partition", name, PARTITIONS)
    partition = resolve("partition", Component(name)) if ":" in name else PARTITIONS[name]
    return {f"partition.{field.name}" for field in fields(partition)} if is_dataclass(partition) else set()


def _partition_settings(way: str, common: Settings) -> Settings:
    """Return the settings of a run that divides its data in this way, and is otherwise as these say."""
    (name, options), known = named_options(way), _options_of(way)
    kept = {key: value for key, value in common.items() if key in known or not key.startswith("partition.")}
    return {**kept, "partition.name": name, **{f"partition.{key}": value for key, value in options.items()}}
