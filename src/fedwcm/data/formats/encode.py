"""Make inputs of a table's columns: numbers, categories and vectors, with errors that name column and row."""

import re
import warnings
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from fedwcm.data.dataset import as_whole_numbers, warn_of_coarse
from fedwcm.data.formats.safety import require_bounded
from fedwcm.data.large_arrays import zeros
from fedwcm.data.schema import Column

COMMA_NUMBER = re.compile(r"[+-]?\d+,\d+|[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
MAX_CATEGORIES = 256
ID_ROWS = 20
"""From this many rows on, a text column with more categories than half of them is taken for an id, and row numbers
are warned of."""

MAX_VECTOR = 100_000
PIECE_ROWS = 1000

ADVICE = "; pass --impute median (impute='median') to fill it in, or leave the column out with --drop {name}"
TRAINED_ADVICE = (
    "; the model was trained without --impute (impute=) and has no value for it: fill it in, or leave the row out"
)

RowIndices = NDArray[np.int64]


def fit_columns(
    where: str, table: Any, names: Sequence[str], rows: RowIndices, impute: str | None
) -> tuple[Column, ...]:
    """Return how each column becomes inputs, learnt from the training rows alone."""
    return tuple(_fit(where, name, table.column(name), rows, impute) for name in names)


def encode_columns(where: str, table: Any, columns: Sequence[Column], *, trained: bool) -> NDArray[Any]:
    """Return the inputs of all rows: integers if every column holds whole numbers without gaps, else float32.

    `trained` says that the columns are those of a trained model, which nobody can impute or drop any more.
    """
    advice = TRAINED_ADVICE if trained else ADVICE
    blocks = [_encode(where, column, table.column(column.name), advice) for column in columns]
    dtype: type = np.float32
    if all(block.dtype.kind in "iu" for block in blocks):
        largest = max(int(np.abs(block).max(initial=0)) for block in blocks)
        dtype = np.int32 if largest < 2**31 else np.int64
    if len(blocks) == 1 and blocks[0].dtype == dtype:
        return blocks[0]
    together = zeros((table.num_rows, sum(block.shape[1] for block in blocks)), dtype)
    return np.concatenate(blocks, axis=1, out=together, casting="unsafe")


def category_values(where: str, table: Any, name: str, *, dates: bool = False, advice: str = "") -> NDArray[Any]:
    """Return a column of labels or clients as integers or text, without gaps; perhaps of dates, as text."""
    column = _decode_categories(table.column(name))
    if column.null_count:
        raise _gap_error(where, name, np.asarray(column.is_null()), advice)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values: NDArray[Any] = column.to_numpy()
        return values
    if pa.types.is_floating(kind) and (whole := as_whole_numbers(column.to_numpy())).dtype.kind == "i":
        return whole
    if dates and pa.types.is_temporal(kind):
        column = column.cast(pa.string())
    elif not _is_text(kind):
        allowed = "integers, floats that are whole numbers, or text"
        raise ValueError(f"{where}: column {name!r} is of type {kind!s:.100}: it must hold {allowed}")
    text = _to_texts(where, name, column)
    if (empty := text == "").any():
        raise _gap_error(where, name, empty, advice)
    return text


def labelled_rows(where: str, table: Any, name: str) -> Any:
    """Return the rows of a table that have a label, with a warning that counts the others."""
    column = _decode_categories(table.column(name))
    missing = np.asarray(column.is_null())
    if _is_text(column.type):
        missing = missing | np.array([value == "" for value in column.to_pylist()])
    if not missing.any():
        return table
    if missing.all():
        raise ValueError(f"{where}: column {name!r} is empty in every row: there is no label")
    text = f"{int(missing.sum())} of {len(missing)} rows have no label in column {name!r} and are skipped"
    warnings.warn(f"{where}: {text}", stacklevel=5)
    return table.filter(~missing)


def _decode_categories(column: Any) -> Any:
    """Return a column with its categories written out."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _fit(where: str, name: str, column: Any, rows: RowIndices, impute: str | None) -> Column:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _fit_category(where, name, _to_texts(where, name, column)[rows], impute)
    if pa.types.is_null(kind):
        raise ValueError(f"{where}: column {name!r} is empty in every row: leave it out with --drop {quote(name)}")
    if _is_number(kind):
        warn_of_coarse(where, _to_numbers(column)[rows, np.newaxis], [name])
        _warn_of_row_numbers(where, name, column)
        return Column(name, fill=_find_typical(where, name, column, rows) if impute else None)
    if _is_text(kind):
        texts = _to_texts(where, name, column)[rows]
        _refuse_numbers(where, name, texts)
        return _fit_category(where, name, texts, impute)
    if _is_vector(kind):
        return Column(name, "vector", length=_read_vectors(where, name, column).shape[1])
    raise ValueError(
        f"{where}: column {name!r} is of type {kind!s:.100}: a feature must be a number, a category (text) "
        f"or a vector of numbers; leave it out with --drop {quote(name)}"
    )


def _warn_of_row_numbers(where: str, name: str, column: Any) -> None:
    """Warn of a column of row numbers: where rows are sorted by class, they tell the label, in this file alone."""
    count = len(column)
    if count < ID_ROWS or column.null_count or not pa.types.is_integer(column.type):
        return
    values = column.to_numpy()
    low, high = int(values.min()), int(values.max())
    if low in (0, 1) and high - low == count - 1 and len(np.unique(values)) == count:
        warnings.warn(
            f"{where}: column {name!r} holds each number from {low} to {high} once, as row numbers do, and is "
            f"read as a feature; if it is not one, leave it out with --drop {quote(name)}",
            stacklevel=6,
        )


def _find_typical(where: str, name: str, column: Any, rows: RowIndices) -> float:
    """Return the median of numbers, the more frequent of true and false: half true is no value of a row."""
    values = _to_numbers(column)[rows]
    if np.isnan(values).all():
        raise ValueError(f"{where}: column {name!r} has no value in the training rows to impute from")
    if pa.types.is_boolean(column.type):
        return float(np.nanmean(values) > 0.5)
    return float(np.nanmedian(values))


def _fit_category(where: str, name: str, texts: NDArray[Any], impute: str | None) -> Column:
    values, counts = np.unique(texts[texts != ""], return_counts=True)
    if len(values) > MAX_CATEGORIES or (len(texts) >= ID_ROWS and 2 * len(values) > len(texts)):
        raise ValueError(
            f"{where}: column {name!r} holds {len(values)} different texts in {len(texts)} training rows "
            f"(for example {str(values[0])!r:.100}): too many for categories (at most {MAX_CATEGORIES}, and half "
            f"of the rows). If it is an id or free text, leave it out with --drop {quote(name)}"
        )
    if not len(values):
        raise ValueError(f"{where}: column {name!r} has no value in the training rows")
    fill = str(values[counts.argmax()]) if impute else None
    return Column(name, "category", tuple(str(value) for value in values), fill=fill)


def _refuse_numbers(where: str, name: str, texts: NDArray[Any]) -> None:
    """Refuse numbers among text: one bad value would make a category of each number."""
    values = np.unique(texts[texts != ""])
    numeric = np.array([_reads_as_number(str(value)) for value in values], dtype=bool)
    with_comma = [str(value) for value in values[~numeric] if COMMA_NUMBER.fullmatch(str(value))]
    if with_comma and len(with_comma) == (~numeric).sum():
        raise ValueError(
            f"{where}: column {name!r} writes numbers with commas (for example {with_comma[0]!r:.100}), and each "
            "would be a category: write decimals with a point, thousands without a comma"
        )
    if numeric.any():
        bad = str(values[~numeric][0]) if not numeric.all() else str(values[0])
        raise ValueError(
            f"{where}: column {name!r} is of type string (for example {bad!r:.100}) and holds numbers as well: a "
            f"feature is numeric, or a category in every row"
        )


def _encode(where: str, column: Column, values: Any, advice: str) -> NDArray[Any]:
    if column.kind == "category":
        return _one_hot(where, column, values, advice)
    values = _decode_categories(values)
    if column.kind == "vector":
        vectors = _read_vectors(where, column.name, values)
        if vectors.shape[1] != column.length:
            raise ValueError(
                f"{where}: column {column.name!r} holds vectors of {vectors.shape[1]} numbers, the model takes "
                f"{column.length}"
            )
        return vectors
    return _encode_number(where, column, values, advice)


def _encode_number(where: str, column: Column, values: Any, advice: str) -> NDArray[Any]:
    name = column.name
    if not (_is_number(values.type) or values.null_count == len(values)):
        texts = _to_texts(where, name, values) if _is_text(values.type) else np.array([], np.str_)
        bad = next((str(text) for text in texts if text and not _reads_as_number(str(text))), "")
        raise ValueError(
            f"{where}: column {name!r} is of type {values.type!s:.100} (for example {bad!r:.100}): "
            "it must be numeric"
        )
    if column.fill is None and not values.null_count and pa.types.is_integer(values.type):
        integers: NDArray[Any] = values.to_numpy()
        if integers.dtype.kind == "i" or integers.max(initial=0) < 2**63:
            return integers.astype(np.int64)[:, np.newaxis]
    numbers = _to_numbers(values)
    missing = np.isnan(numbers)
    if missing.any():
        if column.fill is None:
            raise _gap_error(where, name, missing, advice.format(name=quote(name)))
        numbers = np.where(missing, float(column.fill), numbers)
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(narrow))
    if len(wrong):
        value = numbers[wrong[0]]
        fault = "beyond ±3.4e38, the range of float32" if np.isfinite(value) else "not finite"
        raise ValueError(f"{where}: column {name!r}, row {wrong[0] + 1}: the value is {value}, which is {fault}")
    return narrow[:, np.newaxis]


def _one_hot(where: str, column: Column, values: Any, advice: str) -> NDArray[Any]:
    name = column.name
    texts = _category_texts(where, column, values)
    if (missing := texts == "").any():
        if column.fill is None:
            raise _gap_error(where, name, missing, advice.format(name=quote(name)))
        texts = np.where(missing, str(column.fill), texts)
    categories = np.array(column.categories, dtype=np.str_)
    order = np.argsort(categories)
    at = np.minimum(np.searchsorted(categories, texts, sorter=order), len(categories) - 1)
    codes = order[at]
    known = categories[codes] == texts
    if not known.any() and all(_reads_as_number(str(text)) for text in np.unique(texts)):
        raise _category_error(where, column, "holds numbers")
    if not known.all():
        first = int(np.flatnonzero(~known)[0])
        warnings.warn(
            f"{where}: column {name!r}: {int((~known).sum())} rows hold a category that the training rows do "
            f"not, the first {str(texts[first])!r:.100} in row {first + 1}; such a row has 0 in all inputs of "
            "the column",
            stacklevel=5,
        )
    hot = np.zeros((len(texts), len(categories)), dtype=np.float32)
    rows = np.flatnonzero(known)
    hot[rows, codes[rows]] = 1.0
    return hot


def _category_texts(where: str, column: Column, values: Any) -> NDArray[Any]:
    """Return the texts of a column that held text in training, whatever its values look like here."""
    kind = values.type
    if values.null_count == len(values):
        return np.full(len(values), "")
    if not (_is_text(kind) or _is_number(kind) or pa.types.is_dictionary(kind)):
        raise _category_error(where, column, f"is of type {kind!s:.100}")
    return _to_texts(where, column.name, values)


def _category_error(where: str, column: Column, complaint: str) -> ValueError:
    such = f"the model takes categories, such as {column.categories[0]!r:.100}"
    return ValueError(f"{where}: column {column.name!r} {complaint}: {such}")


def _read_vectors(where: str, name: str, column: Any) -> NDArray[np.float32]:
    """Return a column of lists as a matrix; all must have one length, and no gap."""
    if column.null_count:
        raise _gap_error(where, name, np.asarray(column.is_null()), "")
    size = _vector_length(where, name, column)
    matrix, first = zeros((len(column), size), np.float32), 0
    for piece in _iterate_pieces(column):
        values, rows = _to_numbers(piece.flatten()), matrix[first : first + len(piece)]
        if len(values) != rows.size:
            raise ValueError(
                f"{where}: column {name!r}, rows {first + 1} to {first + len(piece)} hold {len(values)} numbers "
                f"for {len(piece)} vectors of {size}"
            )
        with np.errstate(over="ignore"):
            rows[:] = values.reshape(rows.shape)
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"{where}: column {name!r}, row {first + wrong[0] + 1}: a value is missing or not finite"
            )
        first += len(piece)
    return matrix


def _vector_length(where: str, name: str, column: Any) -> int:
    """Return the length of a column's lists, which must be the same in every row."""
    if pa.types.is_fixed_size_list(column.type):
        size = int(column.type.list_size)
    else:
        lengths = np.asarray(compute.list_value_length(column))
        size = int(lengths[0])
        if (odd := np.flatnonzero(lengths != size)).size:
            raise ValueError(
                f"{where}: column {name!r}, row {odd[0] + 1} holds {lengths[odd[0]]} numbers, row 1 {size}: "
                "vectors must have one length"
            )
    if not 1 <= size <= MAX_VECTOR:
        raise ValueError(f"{where}: column {name!r} holds vectors of {size} numbers: 1 to {MAX_VECTOR} are read")
    return size


def _iterate_pieces(column: Any) -> Iterator[Any]:
    """Yield the column in pieces of which copies can be afforded."""
    for chunk in column.chunks:
        for start in range(0, len(chunk), PIECE_ROWS):
            yield chunk.slice(start, PIECE_ROWS)


def _to_numbers(column: Any) -> NDArray[np.float64]:
    """Return numbers in double precision, NaN where there is none."""
    values: NDArray[np.float64] = np.asarray(column.cast(pa.float64(), safe=False).fill_null(float("nan")))
    return values


def _to_texts(where: str, name: str, column: Any) -> NDArray[np.str_]:
    """Return values as NumPy holds text: each as long as the longest, of which one could fill the memory."""
    texts = ["" if value is None else str(value) for value in column.to_pylist()]
    longest = max(map(len, texts))
    require_bounded(f"{where}: column {name!r}", 4 * longest * len(texts), column.nbytes)
    return np.array(texts, dtype=np.str_)


def _gap_error(where: str, name: str, missing: NDArray[Any], advice: str) -> ValueError:
    rows = np.flatnonzero(missing)
    count = f" ({len(rows)} are in this column)" if len(rows) > 1 else ""
    return ValueError(f"{where}: column {name!r}, row {rows[0] + 1}: the value is missing{count}{advice}")


def _is_number(kind: Any) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_vector(kind: Any) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and _is_number(kind.value_type)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
