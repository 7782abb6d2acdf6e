"""Datasets of the Hugging Face hub, read with the package `datasets` (extra `hub`)."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import listed
from fedwcm.data.draw import draw_rows
from fedwcm.data.fingerprint import table_digest
from fedwcm.data.formats.columns import choose_features, find_column, find_label, match_columns
from fedwcm.data.formats.encode import category_values, encode_columns, fit_columns
from fedwcm.data.formats.images import stack_images
from fedwcm.data.part_names import named_parts
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.samples import Parts, Samples
from fedwcm.data.schema import Encoding
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class _Roles:
    """Which column holds what. With an image column there are no other features."""

    label: str | None
    client: str | None
    group: str | None
    image: str | None
    features: tuple[str, ...]

    @property
    def of_rows(self) -> tuple[str | None, str | None, str | None]:
        """The columns that say something of a row and are no inputs."""
        return self.label, self.client, self.group


def read_hub(source: str, options: ReadOptions) -> Parts:
    """Read a dataset by its id, or from a folder made with `save_to_disk` if there is one of that name.

    The parts are its splits by name; others are ignored with a warning. The label is the only ClassLabel
    column unless it is named. If there is an image column, all others are ignored; otherwise all others are
    features.
    """
    return split_parts(f"hub:{source}", _open(source), options)


def split_parts(where: str, splits: Mapping[str, Any], options: ReadOptions) -> Parts:
    """The parts of a set's splits, each a `datasets.Dataset`; see `read_hub`."""
    names = named_parts(where, splits)
    if "train" not in names and options.schema is None:
        raise ValueError(f"{where} has no split 'train'; its splits are {', '.join(splits)}")
    if not names:
        raise ValueError(
            f"{where} has no split 'train', 'validation' or 'test'; its splits are {', '.join(splits)}"
        )
    if others := [name for name in splits if name not in names.values()]:
        warnings.warn(f"{where}: the splits {listed(others)} are ignored", stacklevel=4)
    leading = splits[names.get("train") or next(iter(names.values()))]
    roles = _find_roles(where, leading.features, options)
    encoding = options.known or _fit(where, leading, roles, "test" not in names, options)
    found = {
        part: _read_split(f"{where} ({name})", splits[name], roles, encoding, options)
        for part, name in names.items()
    }
    train = found.get("train") or next(iter(found.values())).take(slice(0))
    classes = getattr(leading.features[roles.label], "names", None) if roles.label else None
    columns = [*roles.of_rows, *roles.features]
    digest = "" if roles.image else table_digest(*(_table(splits[name], columns) for name in names.values()))
    labels = None if classes is None else tuple(classes)
    return Parts(train, found.get("test"), labels, found.get("val"), encoding, digest=digest)


def _open(source: str) -> Mapping[str, Any]:
    datasets = optional_module("datasets", "hub", "reading from the hub")
    try:
        found = datasets.load_from_disk(source) if Path(source).is_dir() else datasets.load_dataset(source)
    except OSError as error:
        raise OSError(f"hub:{source} cannot be read: {error}") from error
    return found if isinstance(found, Mapping) else {"train": found}


def _find_roles(where: str, columns: Mapping[str, Any], options: ReadOptions) -> _Roles:
    label, names = options.label_column, list(columns)
    if options.labelled:
        label = find_label(where, label or _only(where, columns, "ClassLabel", "pass --label NAME"), names)
    client, group = (
        None if name is None else find_column(where, name, names) for name in (options.client, options.group)
    )
    held = label if options.labelled else None
    if options.known is not None:
        match_columns(where, names, options.known, options)
        return _Roles(held, client, group, options.known.image, tuple(c.name for c in options.known.columns))
    chosen = choose_features(where, [name for name in names if name not in (label, client, group)], options)
    pictures = {name: columns[name] for name in chosen}
    image = _only(where, pictures, "Image", "leave all but one out with --drop")
    return _Roles(held, client, group, image, () if image else tuple(chosen))


def _only(where: str, columns: Mapping[str, Any], kind: str, advice: str) -> str | None:
    """Return the name of the only column of a kind, or None if there is none."""
    import datasets

    names = [name for name, feature in columns.items() if isinstance(feature, getattr(datasets, kind))]
    if len(names) > 1:
        raise ValueError(f"{where} has several {kind} columns, {', '.join(names)}: {advice}")
    return names[0] if names else None


def _fit(where: str, rows: Any, roles: _Roles, draws: bool, options: ReadOptions) -> Encoding:
    """How columns become inputs, learnt from the rows that are trained on."""
    used = (*roles.features, roles.image, roles.label)
    ignored = tuple(name for name in rows.column_names if name not in used)
    if roles.image is not None:
        return Encoding((), roles.image, roles.label, ignored, options.size)
    table = _table(rows, [*roles.of_rows, *roles.features])
    training = np.arange(table.num_rows)
    if draws and roles.label is not None:
        label, client, group = _row_values(where, table, roles)
        assert label is not None
        training = draw_rows(where, label, client, group, options)[0]
    columns = fit_columns(where, table, roles.features, training, options.impute)
    return Encoding(columns, None, roles.label, ignored)


def _read_split(where: str, rows: Any, roles: _Roles, encoding: Encoding, options: ReadOptions) -> Samples:
    x: Any
    table = _table(rows, [*roles.of_rows, *roles.features])
    if roles.image is not None:
        x = stack_images(_images(where, rows, roles.image), len(rows), size=encoding.image_size)
    else:
        x = encode_columns(where, table, encoding.columns, trained=options.schema is not None)
    label, client, group = _row_values(where, table, roles)
    return Samples(x, label, client, group=group)


def _row_values(where: str, table: Any, roles: _Roles) -> list[NDArray[Any] | None]:
    """Return the label, the client and the group of every row, each None where there is no such column."""
    return [
        None if name is None else category_values(where, table, name, dates=name != roles.label)
        for name in roles.of_rows
    ]


def _table(rows: Any, columns: Iterable[str | None]) -> Any:
    return rows.select_columns([name for name in columns if name is not None]).with_format("arrow")[:]


def _images(where: str, rows: Any, column: str) -> Iterator[tuple[str, "Image"]]:
    for i, row in enumerate(rows.select_columns([column])):
        if row[column] is None:
            raise ValueError(f"{where}: column {column!r}, row {i + 1}: the image is missing")
        yield f"{where} row {i + 1}", row[column]
