"""Datasets of the Hugging Face hub, read with the package `datasets` (extra `hub`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedwcm.data.formats.columns import category_values, feature_matrix, find_column, find_label
from fedwcm.data.formats.images import stack_images
from fedwcm.data.samples import Parts, Samples

if TYPE_CHECKING:
    from PIL.Image import Image

TEST_SPLITS = ("test", "validation")


@dataclass(frozen=True)
class _Roles:
    """Which column holds what. With an image column there are no other features."""

    label: str
    client: str | None
    image: str | None
    features: tuple[str, ...]


def read_hub(source: str, *, label: str | None, client: str | None) -> Parts:
    """Read a dataset by its id, or from a folder made with `save_to_disk` if there is one of that name.

    The test part is the split `test`, else `validation`, else drawn from `train`. The label is the only
    ClassLabel column unless it is named. If there is an image column, all others are passed over;
    otherwise all others are features and must be numeric or boolean.
    """
    splits = _open(source)
    if "train" not in splits:
        raise ValueError(f"hub:{source} has no split 'train'; its splits are {', '.join(splits)}")
    columns = splits["train"].features
    roles = _find_roles(f"hub:{source}", columns, label, client)
    train = _read_split(f"hub:{source} (train)", splits["train"], roles)
    test_name = next((name for name in TEST_SPLITS if name in splits), None)
    test = None if test_name is None else _read_split(f"hub:{source} ({test_name})", splits[test_name], roles)
    names = getattr(columns[roles.label], "names", None)
    return Parts(train, test, None if names is None else tuple(names))


def _open(source: str) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("Reading from the hub needs the package datasets: pip install 'fedwcm[hub]'") from error
    try:
        found = datasets.load_from_disk(source) if Path(source).is_dir() else datasets.load_dataset(source)
    except OSError as error:
        raise OSError(f"hub:{source} cannot be read: {error}") from error
    return found if isinstance(found, Mapping) else {"train": found}


def _find_roles(where: str, columns: Mapping[str, Any], label: str | None, client: str | None) -> _Roles:
    if label is None:
        label = _only(where, columns, "ClassLabel", "pass --label NAME")
    label = find_label(where, label, list(columns))
    if client is not None:
        find_column(where, client, list(columns))
    image = _only(where, columns, "Image", "only one can be read")
    others = tuple(name for name in columns if name not in (label, client))
    return _Roles(label, client, image, () if image else others)


def _only(where: str, columns: Mapping[str, Any], kind: str, advice: str) -> str | None:
    """Return the name of the only column of a kind, or None if there is none."""
    import datasets

    names = [name for name, feature in columns.items() if isinstance(feature, getattr(datasets, kind))]
    if len(names) > 1:
        raise ValueError(f"{where} has several {kind} columns, {', '.join(names)}: {advice}")
    return names[0] if names else None


def _read_split(where: str, rows: Any, roles: _Roles) -> Samples:
    plain = [name for name in (roles.label, roles.client, *roles.features) if name is not None]
    table = rows.select_columns(plain).with_format("arrow")[:]
    x: Any = (
        stack_images(_images(where, rows, roles.image), len(rows))
        if roles.image is not None
        else feature_matrix(where, table, roles.features)
    )
    client = None if roles.client is None else category_values(where, table, roles.client)
    return Samples(x, category_values(where, table, roles.label), client)


def _images(where: str, rows: Any, column: str) -> Iterator[tuple[str, "Image"]]:
    for i, row in enumerate(rows.select_columns([column])):
        if row[column] is None:
            raise ValueError(f"{where}: column {column!r}, row {i + 1}: the image is missing")
        yield f"{where} row {i + 1}", row[column]
