"""Tables: their columns by role, name and pattern, and inputs made of the others."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL.Image import Image

from fedwcm.core.checks import did_you_mean, nearest, shorten
from fedwcm.data.dataset import quote_names
from fedwcm.data.fingerprint import table_digest
from fedwcm.data.formats.encode import category_values, encode_columns, fit_columns, labelled_rows
from fedwcm.data.formats.images import open_image, stack_images
from fedwcm.data.formats.table_file import open_table
from fedwcm.data.raw import RawSplits, Samples, part_rows
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import Encoding
from fedwcm.data.split import Indices, draw_rows

USUAL_LABELS = ("label", "target", "y", "class")

Roles = dict[str, str]
RowValues = dict[str, NDArray[Any]]

ADVICE = "; pass --unlabelled skip (unlabelled='skip') to leave such rows out"


def find_column(where: str, name: str, columns: Sequence[str]) -> str:
    """Return the name if there is such a column."""
    if name not in columns:
        raise ValueError(f"{where} has no column {name!r}{did_you_mean(name, columns)}; {_list_columns(columns)}")
    return name


def find_label(where: str, label: str | None, columns: Sequence[str]) -> str:
    """Return the label column, which must be named: guessing it wrong would go unnoticed."""
    if label is not None:
        return find_column(where, label, columns)
    usual = [column for column in columns if column.lower() in USUAL_LABELS]
    hint = f"perhaps --label {usual[0]}" if usual else _list_columns(columns)
    raise ValueError(f"{where}: say which column holds the label, with --label NAME (label=NAME); {hint}")


def choose_features(where: str, columns: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the columns that are features: all or those in `features`, without those in `drop`."""
    chosen = list(columns)
    if options.features:
        wanted = _match_patterns(where, "features", options.features, columns)
        chosen = [name for name in columns if name in wanted]
    dropped = _match_patterns(where, "drop", options.drop, columns)
    chosen = [name for name in chosen if name not in dropped]
    if not chosen:
        raise ValueError(f"{where} has no feature column: nothing is left beside label, client, split and drop")
    if "" in chosen:
        raise ValueError(
            f"{where}: a column has no name, as the row numbers that pandas writes: leave it out with --drop '' "
            "(drop=['']; with others, --drop ',a,b'), or give it a name to use it as a feature"
        )
    return chosen


def match_columns(where: str, columns: Sequence[str], encoding: Encoding, options: ReadOptions) -> None:
    """Refuse a table that lacks columns of the model's schema, or has others that it does not know."""
    wanted = [column.name for column in encoding.columns] + ([encoding.image] if encoding.image else [])
    if not wanted:
        raise ValueError(
            f"{where} is a table, but the model was trained on arrays and knows no columns: pass arrays with its "
            "inputs in the same order, such as a .npz file"
        )
    dropped = _match_patterns(where, "drop", options.drop, columns)
    named = (options.label, options.client, options.split, options.id)
    roles = {encoding.label, *named, *encoding.ignored, *dropped}
    missing = [name for name in wanted if name not in columns]
    extra = [name for name in columns if name not in wanted and name not in roles]
    if not missing and not extra:
        return
    complaints = []
    for name in missing[:10]:
        near = nearest(name, extra)
        complaints.append(f"{name!r} is missing" + (f" (renamed to {near!r}?)" if near else ""))
    if len(missing) > 10:
        complaints.append(f"{len(missing) - 10} more are missing")
    if extra:
        complaints.append(f"{quote_names(extra)} not known to the model (leave out with --drop, drop=[…])")
    raise ValueError(
        f"{where} has other columns than the data that the model was trained on: {'; '.join(complaints)}"
    )


def _match_patterns(where: str, option: str, patterns: Sequence[str], columns: Sequence[str]) -> set[str]:
    """Return the columns that the names and patterns (`pixel_*`) stand for; each must stand for one at least."""
    matching: set[str] = set()
    for pattern in patterns:
        matches = {name for name in columns if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            raise ValueError(
                f"{where}: --{option} {pattern} ({option}) matches no feature column"
                f"{did_you_mean(pattern, columns)}; {_list_columns(columns)}"
            )
        matching |= matches
    return matching


def _list_columns(columns: Sequence[str]) -> str:
    return f"its columns are {shorten((_show_name(name) for name in columns), 50)}"


def _show_name(name: str) -> str:
    """Return the name, in quotes if it is empty or has spaces at its ends, which nobody would see."""
    return name[:100] if name and name == name.strip() else repr(name[:100])


def read_table(path: Path, options: ReadOptions) -> RawSplits:
    """Read a table whose named columns hold the label, who holds the row, and `train`, `val` or `test`.

    All other columns are features, or those that the options choose; a column of images is the only one. Rows are
    counted from 1 in errors, without the header.
    """
    return _split_table(str(path), open_table(path, options), options)


def read_frame(where: str, frame: Any, options: ReadOptions) -> RawSplits:
    """Read a DataFrame of pandas as `read_table` does a file; a column that cannot be read is named."""
    if not hasattr(frame, "columns"):
        raise ValueError(f"dataset is a {where} of pandas: it must be a DataFrame with inputs and labels")
    if not frame.columns.is_unique:
        repeated = frame.columns[frame.columns.duplicated()].unique().tolist()
        raise ValueError(
            f"{where}: the columns {quote_names(repeated)} are there more than once: names must differ"
        )
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        reasons = "; ".join(map(str, error.args))
        cure = "a column must hold numbers, or text, in every row, and be dense (frame.sparse.to_dense())"
        raise ValueError(f"{where}: {reasons:.300}: {cure}") from error
    return _split_table(where, table, options)


def _split_table(where: str, table: Any, options: ReadOptions) -> RawSplits:
    """Return the parts of a pyarrow table; see `read_table`."""
    if not table.num_rows:
        raise ValueError(f"{where} holds no rows")
    roles = find_roles(where, table.column_names, options)
    if options.unlabelled is not None and "label" in roles:
        table = labelled_rows(where, table, roles["label"])
    values = read_roles(where, table, roles, ADVICE)
    rows = {"train": np.arange(table.num_rows)}
    if "split" in roles and not options.whole:
        rows = part_rows(where, roles["split"], values["split"])
    training, drawn = rows["train"], None
    if "test" not in rows and options.schema is None:
        drawn = draw_training(where, {role: array[training] for role, array in values.items()}, options)
        training = training[drawn[0]]
    encoding = find_encoding(where, table, roles, training, options)
    x = read_features(where, table, encoding, trained=options.schema is not None)
    whole = Samples(x, *(values.get(role) for role in ("label", "client", "id", "group")))
    digest = table_digest(table)
    if len(rows) == 1 and len(rows["train"]) == len(x):
        return RawSplits({"train": whole}, encoding=encoding, owned=True, digest=digest, drawn=drawn)
    parts = {part: whole.take(chosen) for part, chosen in rows.items()}
    return RawSplits(parts, encoding=encoding, digest=digest, drawn=drawn)


def read_roles(where: str, table: Any, roles: Mapping[str, str], advice: str = "") -> RowValues:
    """Return what each of these columns says of every row; `advice` is for a label that is missing."""
    return {
        role: category_values(
            where, table, name, dates=role in ("client", "group", "id"), advice=advice if role == "label" else ""
        )
        for role, name in roles.items()
    }


def draw_training(where: str, values: RowValues, options: ReadOptions) -> tuple[Indices, Indices]:
    """Draw the rows that are trained on, from which encodings are learnt, and those that are held out."""
    return draw_rows(where, values["label"], values.get("client"), values.get("group"), options)


def find_roles(where: str, columns: Sequence[str], options: ReadOptions) -> Roles:
    """Return which columns hold the label, the client and the part."""
    label = options.label_column
    roles = {"label": find_label(where, label, columns)} if options.labelled else {}
    client = options.client_among(columns)
    others = {"client": client, "group": options.group, "split": options.split, "id": options.id}
    taken = (label, *others.values(), *options.drop)
    for role, name in others.items():
        if name is not None:
            roles[role] = find_column(where, name, columns)
        elif role in ("client", "split") and role in columns and role not in taken and options.known is None:
            text = f"{where}: column {role!r} is read as a feature; if it is not one, pass --{role} {role}"
            warnings.warn(text, stacklevel=4)
    for column in roles.values():
        if len(shared := [role for role, name in roles.items() if name == column]) > 1:
            raise ValueError(f"{where}: column {column!r} has two roles, {' and '.join(shared)}: name another one")
    return roles


def find_encoding(
    where: str, table: Any, roles: Roles, training: NDArray[np.int64], options: ReadOptions
) -> Encoding:
    """Return how the columns become inputs: as the schema says or, without one, learnt from the training rows."""
    if options.known is not None:
        match_columns(where, table.column_names, options.known, options)
        return options.known
    columns = [name for name in table.column_names if name not in roles.values()]
    chosen = choose_features(where, columns, options)
    label = roles.get("label")
    images = [name for name in chosen if _holds_images(table.schema.field(name).type)]
    if len(images) > 1:
        raise ValueError(
            f"{where} has several columns of images, {quote_names(images)}: leave all but one out with --drop"
        )
    ignored = tuple(name for name in table.column_names if name not in (*(images or chosen), label))
    if images:
        if passed_over := [name for name in chosen if name not in images]:
            text = f"{where}: column {images[0]!r} holds images, so {quote_names(passed_over)} are ignored"
            warnings.warn(text, stacklevel=4)
        return Encoding((), images[0], label, options.client, ignored, options.size)
    if options.image_size is not None:
        raise ValueError(f"{where}: --image-size {options.image_size} is given, but no column holds images")
    fitted = fit_columns(where, table, chosen, training, options.impute)
    return Encoding(fitted, None, label, options.client, ignored)


def read_features(where: str, table: Any, encoding: Encoding, *, trained: bool) -> NDArray[Any]:
    """Return the inputs of all rows."""
    if encoding.image is None:
        return encode_columns(where, table, encoding.columns, trained=trained)
    column = table.column(encoding.image)
    if not _holds_images(column.type):
        raise ValueError(
            f"{where}: column {encoding.image!r} is of type {column.type!s:.100}: it must hold images"
        )
    images = _open_images(where, encoding.image, column)
    return stack_images(images, len(column), size=encoding.image_size, stored=column.nbytes)


def _holds_images(kind: Any) -> bool:
    """Return whether a column holds bytes, or records with a field `bytes` as the Hugging Face hub writes them."""
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _open_images(where: str, name: str, column: Any) -> Iterator[tuple[str, Image]]:
    for i, value in enumerate(column):
        content = value.as_py()
        content = content.get("bytes") if isinstance(content, dict) else content
        place = f"{where}: column {name!r}, row {i + 1}"
        if not isinstance(content, bytes):
            raise ValueError(f"{place}: the image is missing")
        yield place, open_image(place, content)
