"""Take features, labels and clients from the columns of a pyarrow table, with errors that name the place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedwcm.data.hint import did_you_mean

USUAL_LABELS = ("label", "target", "y", "class")


def find_column(where: str, name: str, columns: Sequence[str]) -> str:
    """Return the name if there is such a column."""
    if name not in columns:
        hint = did_you_mean(name, columns)
        raise ValueError(f"{where} has no column {name!r}{hint}; its columns are {', '.join(columns)}")
    return name


def find_label(where: str, label: str | None, columns: Sequence[str]) -> str:
    """Return the label column, which must be named: guessing it wrong would go unnoticed."""
    if label is not None:
        return find_column(where, label, columns)
    usual = [column for column in columns if column.lower() in USUAL_LABELS]
    hint = f"perhaps --label {usual[0]}" if usual else f"its columns are {', '.join(columns)}"
    raise ValueError(f"{where}: say which column holds the label, with --label NAME (label=NAME); {hint}")


def feature_matrix(where: str, table: Any, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the named columns as a float32 matrix; each must be numeric or boolean, without gaps."""
    import pyarrow as pa

    if not names:
        raise ValueError(f"{where} has no feature column")
    matrix = np.empty((table.num_rows, len(names)), dtype=np.float32)
    for i, name in enumerate(names):
        column = table.column(name)
        _check_no_gap(where, name, column)
        _check_numeric(where, name, column)
        values = column.cast(pa.float64(), safe=False).to_numpy()
        with np.errstate(over="ignore"):
            matrix[:, i] = values
        wrong = np.flatnonzero(~np.isfinite(matrix[:, i]))
        if len(wrong):
            problem = "is missing" if np.isnan(values[wrong[0]]) else f"is {values[wrong[0]]}, which is not finite"
            raise ValueError(f"{where}: column {name!r}, row {wrong[0] + 1}: the value {problem}")
    return matrix


def category_values(where: str, table: Any, name: str) -> NDArray[Any]:
    """Return a column of labels or clients as an array of integers or text, without gaps."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    _check_no_gap(where, name, column)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values: NDArray[Any] = column.to_numpy()
        return values
    if not _is_text(kind):
        raise ValueError(f"{where}: column {name!r} is of type {kind}: it must hold integers or text")
    text = np.array(column.to_pylist(), dtype=np.str_)
    empty = np.flatnonzero(text == "")
    if len(empty):
        raise ValueError(f"{where}: column {name!r}, row {empty[0] + 1}: the value is missing")
    return text


def _check_no_gap(where: str, name: str, column: Any) -> None:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0]) + 1
        raise ValueError(f"{where}: column {name!r}, row {row}: the value is missing")


def _check_numeric(where: str, name: str, column: Any) -> None:
    import pyarrow as pa

    kind = column.type
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if any(test(kind) for test in tests):
        return
    bad = next((str(value) for value in column.to_pylist() if not _is_number(str(value))), "")
    raise ValueError(
        f"{where}: column {name!r} is of type {kind} (for example {bad!r}): a feature must be numeric or boolean"
    )


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
