"""CSV and Parquet tables, read with pyarrow."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.formats.columns import category_values, feature_matrix, find_column, find_label
from fedwcm.data.formats.safety import require_bounded
from fedwcm.data.samples import Parts, Samples


CELL_BYTES = 8
"""What a value takes in memory: a parquet file can hold a million equal ones in a few bytes."""


def read_table(path: Path, *, label: str | None, client: str | None, split: str | None) -> Parts:
    """Read a table whose named columns hold the label, who holds the row, and `train` or `test`.

    All other columns are features. Rows are counted from 1 in errors, without the header.
    """
    table, where = _open(path), str(path)
    columns = _unique_names(where, table.column_names)
    roles = {"label": find_label(where, label, columns)}
    for role, name in (("client", client), ("split", split)):
        if name is not None:
            roles[role] = find_column(where, name, columns)
        elif role in columns and role not in (label, client, split):
            text = f"{where}: column {role!r} is read as a feature; if it is not one, pass --{role} {role}"
            warnings.warn(text, stacklevel=4)
    if len(set(roles.values())) != len(roles):
        raise ValueError(f"{where}: one column is given two roles: {roles}")
    values = {role: category_values(where, table, name) for role, name in roles.items()}
    is_test = _is_test(where, roles["split"], values["split"]) if "split" in roles else None
    features = feature_matrix(where, table, [name for name in columns if name not in roles.values()])
    samples = Samples(features, values["label"], values.get("client"))
    if is_test is None:
        return Parts(samples)
    return Parts(samples.take(~is_test), samples.take(is_test))


def _open(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    try:
        table = csv.read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if table.num_rows == 0:
        raise ValueError(f"{path} holds no rows")
    return table


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        facts = file.metadata
        unpacked = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
        claimed = max(unpacked, CELL_BYTES * facts.num_rows * facts.num_columns)
        require_bounded(str(path), claimed, path.stat().st_size)
        return file.read()


def _unique_names(where: str, names: list[str]) -> list[str]:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{where}: there is more than one column {name!r}")
    return names


def _is_test(where: str, name: str, values: NDArray[Any]) -> NDArray[np.bool_]:
    text = values.astype(np.str_)
    wrong = np.flatnonzero((text != "train") & (text != "test"))
    if len(wrong):
        value = str(text[wrong[0]])
        raise ValueError(
            f"{where}: column {name!r}, row {wrong[0] + 1} is {value!r}: it must be 'train' or 'test'"
        )
    return np.equal(text, "test")
