"""The class mix that a trained model is used for: how it is said, and what it adds to the logits."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedwcm.config.options import convert
from fedwcm.config.schema import order_shares
from fedwcm.core.checks import require, unknown
from fedwcm.core.types import Floats
from fedwcm.experiment.records import PartitionRecord
from fedwcm.models.facts import ModelFacts

Mix = str | Path | Mapping[str, float] | Sequence[float]
"""A class mix: `trained`, `natural`, `uniform`, `target`, `client:NAME`, shares by class, or a file with them."""

CLIENT = "client"


def mix_shift(mix: Mix | None, facts: ModelFacts, partition: PartitionRecord | None) -> Floats | None:
    """Return what the mix adds to the logits of a model; None for the model's own operating point.

    Args:
        mix: the class distribution that the model will meet, as in `fedwcm.load_model`.
        facts: the metadata of the model.
        partition: who held which samples in training, for `client:NAME`.
    """
    if mix is None:
        return None
    if mix == "trained":
        return np.zeros(len(facts.classes))
    return facts.shift_to(_shares(mix, facts, partition))


def client_shifts(clients: Sequence[str], facts: ModelFacts, partition: PartitionRecord | None) -> Floats:
    """Return what the mix of each row's own client adds to the logits, `(rows, classes)`; natural for new ones."""
    known = set(_client_names(partition))
    shares = {
        name: _shares_of(name, facts, partition) if name in known else facts.natural_shares
        for name in set(clients)
    }
    shifts = {name: facts.shift_to(each) for name, each in shares.items()}
    return np.stack([shifts[name] for name in clients])


def _shares_of(name: str, facts: ModelFacts, partition: PartitionRecord | None) -> Floats:
    """Return the class mix of a client that took part in the training."""
    names = _client_names(partition)
    if partition is None or name not in names:
        raise unknown("client in mix:", name, names)
    return facts.shares_at(partition.counts[names.index(name)])


def _client_names(partition: PartitionRecord | None) -> list[str]:
    if partition is None:
        raise ValueError("mix: the run's folder does not say which client had which classes (partition.json)")
    return list(partition.names or map(str, range(0, partition.clients, partition.every)))


def is_of_client(mix: Mix | None) -> bool:
    """Return whether this is the mix of one client by its name."""
    return isinstance(mix, str) and mix.startswith(f"{CLIENT}:")


def require_one_mix(mix: Mix | None) -> Mix | None:
    """Return the mix, which must be the same for all rows."""
    require(mix != CLIENT, "mix", mix, "one mix for all rows here, such as that of one client, client:NAME")
    return mix


def _shares(mix: Mix, facts: ModelFacts, partition: PartitionRecord | None) -> Floats:
    classes = facts.classes
    uniform = np.full(len(classes), 1.0 / len(classes))
    if mix == "uniform":
        return uniform
    if mix == "natural":
        return facts.natural_shares
    if mix == "target":
        return uniform if facts.target is None else np.array(facts.target)
    if isinstance(mix, str) and is_of_client(mix):
        return _shares_of(mix.removeprefix(f"{CLIENT}:"), facts, partition)
    given: Any = str(mix) if isinstance(mix, Path) else mix
    if isinstance(given, str) and "=" not in given:
        given = _in_file(Path(given))
    if isinstance(given, str | Mapping):
        given = convert(given, dict[str, float], "mix")
    shares: Floats = np.array(order_shares(given, classes, "mix"), dtype=np.float64)
    require(shares.sum() > 0, "mix", given, "above 0 for a class at least")
    shares /= shares.sum()
    return shares


def _in_file(path: Path) -> Any:
    words = "trained, natural, uniform, target, client, client:NAME, CLASS=SHARE,… or a file"
    require(path.is_file(), "mix", str(path), words)
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text) if path.suffix == ".json" else _csv_pairs(text)
    except ValueError as error:
        raise ValueError(f"mix: {path} cannot be read: {error}") from error
    require(isinstance(content, Mapping), "mix", str(path), "a file with a share for each class by its name")
    return content


def _csv_pairs(text: str) -> dict[str, float]:
    """Return the pairs on lines `class,share`, without a heading if there is one."""
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if any(len(row) != 2 for row in rows):
        raise ValueError("a line is not a class and its share, separated by a comma")
    try:
        float(rows[0][1])
    except (ValueError, IndexError):
        rows = rows[1:]
    return {name: float(share) for name, share in rows}
