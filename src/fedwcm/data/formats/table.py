"""Tables: their label, client and split columns, and inputs made of the others."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.dataset import listed
from fedwcm.data.draw import draw_rows
from fedwcm.data.fingerprint import table_digest
from fedwcm.data.formats.columns import choose_features, find_column, find_label, match_columns
from fedwcm.data.formats.encode import category_values, encode_columns, fit_columns, labelled_rows
from fedwcm.data.formats.images import open_image, stack_images
from fedwcm.data.formats.table_file import open_table
from fedwcm.data.part_names import part_rows
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.samples import Parts, Samples
from fedwcm.data.schema import Encoding

if TYPE_CHECKING:
    from PIL.Image import Image

Roles = dict[str, str]

ADVICE = "; pass --unlabelled skip (unlabelled='skip') to leave such rows out"


def read_table(path: Path, options: ReadOptions) -> Parts:
    """Read a table whose named columns hold the label, who holds the row, and `train`, `val` or `test`.

    All other columns are features, or those that the options choose; a column of images is the only one. Rows are
    counted from 1 in errors, without the header.
    """
    names = (options.label_column if options.known is None else None, options.client, options.group)
    table = open_table(path, options.encoding, options.text_columns, names, options.delimiter)
    return table_parts(str(path), table, options)


def table_parts(where: str, table: Any, options: ReadOptions) -> Parts:
    """The parts of a pyarrow table; see `read_table`."""
    if not table.num_rows:
        raise ValueError(f"{where} holds no rows")
    roles = find_roles(where, table.column_names, options)
    if options.unlabelled is not None and "label" in roles:
        table = labelled_rows(where, table, roles["label"])
    values = {
        role: category_values(
            where, table, name, dates=role in ("client", "group"), advice=ADVICE if role == "label" else ""
        )
        for role, name in roles.items()
    }
    rows = {"train": np.arange(table.num_rows)}
    if "split" in roles and not options.whole:
        rows = part_rows(where, roles["split"], values["split"])
    training = rows["train"]
    if "test" not in rows and options.schema is None:
        holders = values["client"][training] if "client" in values else None
        groups = values["group"][training] if "group" in values else None
        training = training[draw_rows(where, values["label"][training], holders, groups, options)[0]]
    encoding = find_encoding(where, table, roles, training, options)
    x = read_features(where, table, encoding, trained=options.schema is not None)
    whole = Samples(x, values.get("label"), values.get("client"), group=values.get("group"))
    digest = table_digest(table)
    if len(rows) == 1 and len(rows["train"]) == len(x):
        return Parts(whole, encoding=encoding, owned=True, digest=digest)
    parts = {part: whole.take(chosen) for part, chosen in rows.items()}
    return Parts(parts["train"], parts.get("test"), val=parts.get("val"), encoding=encoding, digest=digest)


def find_roles(where: str, columns: Sequence[str], options: ReadOptions) -> Roles:
    """Which columns hold the label, the client and the part."""
    label = options.label_column
    roles = {"label": find_label(where, label, columns)} if options.labelled else {}
    given = {"client": options.client, "group": options.group, "split": options.split}
    taken = (label, *given.values(), *options.drop)
    for role, name in given.items():
        if name is not None:
            roles[role] = find_column(where, name, columns)
        elif role != "group" and role in columns and role not in taken and options.known is None:
            text = f"{where}: column {role!r} is read as a feature; if it is not one, pass --{role} {role}"
            warnings.warn(text, stacklevel=4)
    if len(set(roles.values())) != len(roles):
        raise ValueError(f"{where}: one column is given two roles: {roles}")
    return roles


def find_encoding(
    where: str, table: Any, roles: Roles, training: NDArray[np.int64], options: ReadOptions
) -> Encoding:
    """How the columns become inputs: as the schema says or, without one, learnt from the training rows."""
    if options.known is not None:
        match_columns(where, table.column_names, options.known, options)
        return options.known
    columns = [name for name in table.column_names if name not in roles.values()]
    chosen = choose_features(where, columns, options)
    label = roles.get("label")
    images = [name for name in chosen if _holds_images(table.schema.field(name).type)]
    if len(images) > 1:
        raise ValueError(
            f"{where} has several columns of images, {listed(images)}: leave all but one out with --drop"
        )
    ignored = tuple(name for name in table.column_names if name not in (*(images or chosen), label))
    if images:
        if passed_over := [name for name in chosen if name not in images]:
            text = f"{where}: column {images[0]!r} holds images, so {listed(passed_over)} are ignored"
            warnings.warn(text, stacklevel=4)
        return Encoding((), images[0], label, ignored, options.size)
    if options.image_size is not None:
        raise ValueError(f"{where}: --image-size {options.image_size} is given, but no column holds images")
    fitted = fit_columns(where, table, chosen, training, options.impute)
    return Encoding(fitted, None, label, ignored)


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
    """Whether a column holds bytes, or records with a field `bytes` as the Hugging Face hub writes them."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _open_images(where: str, name: str, column: Any) -> Iterator[tuple[str, "Image"]]:
    for i, value in enumerate(column):
        content = value.as_py()
        content = content.get("bytes") if isinstance(content, dict) else content
        place = f"{where}: column {name!r}, row {i + 1}"
        if not isinstance(content, bytes):
            raise ValueError(f"{place}: the image is missing")
        yield place, open_image(place, content)
