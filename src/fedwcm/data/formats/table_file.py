"""Open a table as a file holds it: CSV, TSV, JSON lines (each plain or gzipped) or Parquet, with pyarrow."""

import codecs
import csv as csv_module
import io
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import compute, csv, json, parquet

from fedwcm.data import large_arrays
from fedwcm.data.formats.safety import open_maybe_gzip, require_bounded
from fedwcm.data.read_options import ReadOptions
from fedwcm.utils.temporary_pages import no_room

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (*DELIMITERS, *JSON_LINES)
PARQUET = ".parquet"
SUFFIXES = (*TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in TEXT_SUFFIXES), PARQUET)

CELL_BYTES = 8
"""What a value takes in memory: a parquet file can hold a million equal ones in a few bytes."""

BATCH_ROWS = 1000
"""Rows of a large table that are unpacked at a time."""

SEPARATORS = ";\t,|"
HEADER_BYTES, HEADER_LINES = 2**16, 20
"""What is looked at to recognise the separator."""

DECIMAL_COMMA = r"^\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*$"
MAX_BLOCK = 2**30
DECODED_AT_A_TIME = 2**20
SMALL = 2**20
"""Bytes up to which a file is read by one thread: others may still be starting when an error ends the program."""


def table_suffix(path: Path) -> str | None:
    """Return the ending that says how a table is stored, such as `.csv.gz`; None if it is no table's."""
    name = path.name.lower()
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def open_table(path: Path, options: ReadOptions) -> Any:
    """Return the file's rows as a pyarrow table with at least one row and no column twice.

    `text_columns` are read as text, whatever their values in a text file look like, and `name_columns` unless
    numbers are written as their values are: 01 and 1 name different clients. The delimiter of a `.csv` or `.tsv`
    file is recognised unless it is given.
    """
    suffix = table_suffix(path)
    table = _read_parquet(path, options) if suffix == PARQUET else _read_text(path, str(suffix), options)
    if table.num_rows == 0:
        raise ValueError(f"{path} holds no rows")
    for name, count in Counter(table.column_names).items():
        if count > 1:
            raise ValueError(f"{path}: there is more than one column {name!r:.100}")
    return table


def _read_text(path: Path, suffix: str, options: ReadOptions) -> Any:
    encoding = options.encoding or "utf-8"
    with open_maybe_gzip(path) as stream:
        content = stream.read()
    _require_text(path, content, encoding)
    if not content.strip():
        raise ValueError(f"{path} is empty")
    plain = suffix.removesuffix(".gz")
    block = min(max(len(content) + 1, 2**20), MAX_BLOCK)  # a row must fit into a block
    try:
        if plain in DELIMITERS:
            mark = options.delimiter or _find_delimiter(content, encoding, DELIMITERS[plain])
            table = _read_csv(content, encoding, block, mark, options)
            text = options.text_columns | options.name_columns
            return table if mark == "," else _with_decimal_commas(table, text)
        _refuse_delimiter(path, options)
        if encoding.lower() not in ("utf-8", "utf8"):
            content = content.decode(encoding).encode()
        return _read_json(content, block, options.text_columns)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read: {error!s:.300}") from error


def _read_csv(content: bytes, encoding: str, block: int, delimiter: str, options: ReadOptions) -> Any:

    def read(as_text: Collection[str], columns: Sequence[str] = ()) -> Any:
        types = {name: pa.string() for name in as_text}
        return csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(encoding=encoding, block_size=block, use_threads=len(content) > SMALL),
            csv.ParseOptions(delimiter="\t" if delimiter == "tab" else delimiter),
            csv.ConvertOptions(column_types=types, include_columns=list(columns) or None),
        )

    table = read(options.text_columns)
    if len(set(table.column_names)) < len(table.column_names):
        return table  # which the caller refuses
    kinds = {name: table[name].type for name in table.column_names if name in options.name_columns}
    for name in (name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        position, written = table.column_names.index(name), read([name], [name])[name]
        table = table.set_column(position, name, _as_written(table[name], written))
    return table


def _as_written(numbers: Any, text: Any) -> Any:
    """Return the numbers if they tell apart what the text does, whole ones written as usual; else the text."""
    text = compute.utf8_trim_whitespace(text)
    text = compute.if_else(numbers.is_valid(), text, pa.scalar(None, pa.string()))
    if pa.types.is_integer(numbers.type):
        return numbers if numbers.cast(pa.string()).equals(text) else text
    return numbers if len(numbers.unique()) == len(text.unique()) else text


def _find_delimiter(content: bytes, encoding: str, usual: str) -> str:
    """Return the separator that cuts the first lines into equally many columns: the usual one, else the finest."""
    text = content[:HEADER_BYTES].decode(encoding, "ignore")
    lines = text.splitlines()[: -1 if len(content) > HEADER_BYTES else None][:HEADER_LINES]
    widths: dict[str, int] = {}
    for mark in SEPARATORS:
        try:
            counts = {len(row) for row in csv_module.reader(lines, delimiter=mark) if row}
        except csv_module.Error:  # a field that is too long
            continue
        if len(counts) == 1:
            widths[mark] = counts.pop()
    best = max(widths, key=lambda mark: widths[mark], default=usual)
    return usual if widths.get(usual, 1) > 1 or widths.get(best, 1) == 1 else best


def _with_decimal_commas(table: Any, text: Collection[str]) -> Any:
    """Return the table with numbers that are written with a decimal comma (1,5) as numbers, except in `text`."""
    for i, name in enumerate(table.column_names):
        column = table.column(i)
        if name in text or not pa.types.is_string(column.type) or column.null_count == len(column):
            continue
        if compute.all(compute.match_substring_regex(column, DECIMAL_COMMA)).as_py():
            numbers = compute.replace_substring(compute.utf8_trim_whitespace(column), ",", ".").cast(pa.float64())
            table = table.set_column(i, name, numbers)
    return table


def _read_json(content: bytes, block: int, text: Collection[str]) -> Any:
    """Read JSON lines, which tell text from numbers themselves; text that looks like a date stays text."""
    options = json.ReadOptions(block_size=block)
    table = json.read_json(io.BytesIO(content), options)
    dates = [each.name for each in table.schema if each.name in text and pa.types.is_timestamp(each.type)]
    if not dates:
        return table
    wanted = json.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in dates]))
    return json.read_json(io.BytesIO(content), options, wanted)


def _require_text(path: Path, content: bytes, encoding: str) -> None:
    """Refuse bytes that are not text in this encoding, by line; a piece at a time, which bounds memory."""
    decoder = codecs.getincrementaldecoder(encoding)()
    view = memoryview(content)
    for start in range(0, max(len(view), 1), DECODED_AT_A_TIME):
        try:
            decoder.decode(bytes(view[start : start + DECODED_AT_A_TIME]), start + DECODED_AT_A_TIME >= len(view))
        except UnicodeError as error:
            at = min(start + getattr(error, "start", 0), len(view))
            line = content.count(b"\n", 0, at) + 1
            raise ValueError(
                f"{path}, line {line} is not {encoding} text: pass --encoding NAME (encoding=NAME), for example "
                "--encoding latin-1"
            ) from error


def _refuse_delimiter(path: Path, options: ReadOptions) -> None:
    if options.delimiter is not None:
        raise ValueError(f"{path}: --delimiter {options.delimiter} is for .csv and .tsv files")


def _read_parquet(path: Path, options: ReadOptions) -> Any:
    if options.encoding is not None:
        raise ValueError(f"{path}: --encoding {options.encoding} is for text files; a parquet file knows its own")
    _refuse_delimiter(path, options)
    with parquet.ParquetFile(path, memory_map=True) as file:  # else all that was read is kept until the end
        facts = file.metadata
        unpacked = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
        claimed = max(unpacked, CELL_BYTES * facts.num_rows * facts.num_columns)
        require_bounded(str(path), claimed, path.stat().st_size)
        return file.read() if unpacked <= large_arrays.IN_MEMORY else _unpack_to_disk(file, unpacked)


def _unpack_to_disk(file: Any, size: int) -> Any:
    """Unpack the table to a temporary file, mapped: its columns take memory only for the rows being read."""
    with tempfile.TemporaryDirectory(prefix="fedwcm-table-") as folder:
        path = str(Path(folder) / "table.arrow")
        try:
            with pa.ipc.new_file(path, file.schema_arrow) as table:
                for batch in file.iter_batches(BATCH_ROWS):
                    table.write_batch(batch)
        except OSError as error:
            raise no_room(error, size, "an unpacked table") from None
        return pa.ipc.open_file(pa.memory_map(path)).read_all()  # the mapping outlives the file's name
