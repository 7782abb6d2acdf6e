"""Datasets of the Hugging Face hub, read with the package `datasets` (extra `hub`)."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from fedwcm.data.dataset import quote_names
from fedwcm.data.fingerprint import table_digest
from fedwcm.data.formats.encode import encode_columns, fit_columns
from fedwcm.data.formats.images import stack_images
from fedwcm.data.formats.table import (
    choose_features,
    draw_training,
    find_column,
    find_label,
    match_columns,
    read_roles,
)
from fedwcm.data.raw import RawSplits, Samples, name_parts
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import Encoding
from fedwcm.utils.extras import optional_module


def read_hub(source: str, options: ReadOptions) -> RawSplits:
    """Read a dataset by its id, or from a folder made with `save_to_disk` if there is one of that name.

    The parts are its splits by name; others are ignored with a warning. The label is the only ClassLabel
    column unless it is named. If there is an image column, all others are ignored; otherwise all others are
    features.
    """
    return read_hub_splits(f"hub:{source}", _open(source), options)


def read_hub_splits(where: str, splits: Mapping[str, Any], options: ReadOptions) -> RawSplits:
    """Read the splits of a set, each a `datasets.Dataset`; see `read_hub`."""
    names = name_parts(where, splits)
    if not names or ("train" not in names and options.schema is None):
        needed = "'train'" if options.schema is None else "'train', 'validation' or 'test'"
        raise ValueError(f"{where} has no split {needed}; its splits are {', '.join(splits)}")
    if others := [name for name in splits if name not in names.values()]:
        warnings.warn(f"{where}: the splits {quote_names(others)} are ignored", stacklevel=4)
    leading = splits[names.get("train") or next(iter(names.values()))]
    roles, image, features = _find_columns(where, leading.features, options)
    tables = {
        part: splits[name].select_columns([*roles.values(), *features]).with_format("arrow")[:]
        for part, name in names.items()
    }
    places = {part: f"{where} ({name})" for part, name in names.items()}
    values = {part: read_roles(places[part], table, roles) for part, table in tables.items()}
    encoding, drawn = options.known, None
    if encoding is None:
        drawn = draw_training(where, values["train"], options) if not image and "test" not in names else None
        training = np.arange(len(leading)) if drawn is None else drawn[0]
        columns = fit_columns(where, tables["train"], features, training, options.impute)
        ignored = tuple(name for name in leading.column_names if name not in (*features, image, roles["label"]))
        size = options.size if image else None
        encoding = Encoding(columns, image, roles["label"], options.client, ignored, size)
    parts = {}
    for part, name in names.items():
        if encoding.image is None:
            x = encode_columns(places[part], tables[part], encoding.columns, trained=options.schema is not None)
        else:
            pictures = _open_images(places[part], splits[name], encoding.image)
            x = stack_images(pictures, len(splits[name]), size=encoding.image_size)
        parts[part] = Samples(x, *(values[part].get(role) for role in ("label", "client", "id", "group")))
    classes = getattr(leading.features[roles["label"]], "names", None) if "label" in roles else None
    digest = "" if image else table_digest(*tables.values())
    labels = None if classes is None else tuple(classes)
    return RawSplits(parts, labels, encoding, digest=digest, drawn=drawn)


def _open(source: str) -> Mapping[str, Any]:
    datasets = optional_module("datasets", "hub", "reading from the hub")
    try:
        splits = datasets.load_from_disk(source) if Path(source).is_dir() else datasets.load_dataset(source)
    except OSError as error:
        raise OSError(f"hub:{source} cannot be read: {error}") from error
    return splits if isinstance(splits, Mapping) else {"train": splits}


def _find_columns(
    where: str, columns: Mapping[str, Any], options: ReadOptions
) -> tuple[dict[str, str], str | None, list[str]]:
    """Return the columns by role, that of the images and those of other features: one of these or the others."""
    label, names = options.label_column, list(columns)
    if options.labelled:
        label = find_label(where, label or _find_only(where, columns, "ClassLabel", "pass --label NAME"), names)
    others = {"client": options.client_among(names), "group": options.group, "id": options.id}
    roles = {role: find_column(where, name, names) for role, name in others.items() if name is not None}
    roles = {"label": label, **roles} if options.labelled and label is not None else roles
    if options.known is not None:
        match_columns(where, names, options.known, options)
        return roles, options.known.image, [column.name for column in options.known.columns]
    chosen = choose_features(where, [name for name in names if name not in (label, *roles.values())], options)
    image = _find_only(
        where, {name: columns[name] for name in chosen}, "Image", "leave all but one out with --drop"
    )
    return roles, image, [] if image else chosen


def _find_only(where: str, columns: Mapping[str, Any], kind: str, advice: str) -> str | None:
    """Return the name of the only column of a kind, or None if there is none."""
    import datasets

    names = [name for name, feature in columns.items() if isinstance(feature, getattr(datasets, kind))]
    if len(names) > 1:
        raise ValueError(f"{where} has several {kind} columns, {', '.join(names)}: {advice}")
    return names[0] if names else None


def _open_images(where: str, rows: Any, column: str) -> Iterator[tuple[str, Image]]:
    for i, row in enumerate(rows.select_columns([column])):
        if row[column] is None:
            raise ValueError(f"{where}: column {column!r}, row {i + 1}: the image is missing")
        yield f"{where} row {i + 1}", row[column]
