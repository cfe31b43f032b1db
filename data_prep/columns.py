"""Files with named columns, as blocks of text: delimited ones, compressed by gzip or not, and parquet.

Every row comes out with its line, or is set aside with it. Quotes may hold delimiters and line ends; then a line is a row's.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute, parquet
from pyarrow import csv as delimited

from data_prep import lines
from data_prep.source import GZIP, packed
from lib.errors import BadOption, Damaged, nearest

EMPTY = ("", "NULL", "\\N")
"""How files write that a field has no value."""
WITHIN = "\x1f"
"""What stands between the values of a parquet list once it is text."""

_DELIMITERS = "\t,;|"
_BLOCK = 4 << 20
_ROWS = 1 << 16
_UNCLOSED = 50  # lines of one row, which is then no row


class Form(NamedTuple):
    """How a file is laid out."""

    path: Path
    names: tuple[str, ...]
    delimiter: str
    """Empty for parquet."""
    header: bool = True
    """Whether the first line names the columns."""
    lists: tuple[str, ...] = ()
    """The columns of parquet that hold several values."""


class Block(NamedTuple):
    """Rows of a file."""

    lines: np.ndarray
    """int64: the line of each, from 1; of parquet the row."""
    columns: dict[str, pa.Array]
    """Name -> bytes, null where the field is empty."""
    bad: list[tuple[int, str]]
    """Line and text of the rows, passed over since the block before, that have other fields than the header."""


def form(path: Path, names: Sequence[str] = (), delimiter: str = "") -> Form:
    """The layout of a file, as its first bytes tell; `names` of the columns where the file has no header."""
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == b"PAR1":
        try:
            schema = parquet.read_schema(path)
            several = tuple(field.name for field in schema if _listed(field.type))
            return Form(path, tuple(schema.names), "", lists=several)
        except (pa.ArrowException, OSError) as error:
            raise Damaged(f"{path}: no whole parquet file: {error}") from error
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadOption(f"{path} is UTF-16; save it as UTF-8")
    try:
        line = lines.first_line(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadOption(f"{path}, line 1: not UTF-8; is this a text file?") from error
    if "\r" in line:
        raise BadOption(f"{path}, line 1: lines end with a carriage return alone; save it with line feeds")
    if not line.strip():
        raise BadOption(f"{path}{' is empty' if not begin else ', line 1: empty'}; expected a header, then rows")
    found = {each: len(_fields(line, each)) for each in _DELIMITERS}
    delimiter = delimiter or max(found, key=found.get)
    fields = _fields(line, delimiter)
    if len(fields) == 1:
        raise BadOption(
            f"{path}, line 1: one field between {delimiter!r}: {line[:60]!r}; --delimiter says what stands between the columns"
        )
    if names and len(names) != len(fields):
        raise BadOption(f"{path}, line 1: {len(fields)} fields, but --columns names {len(names)}: {line[:60]!r}")
    header = tuple(name.strip() or f"column {place}" for place, name in enumerate(names or fields, 1))
    if twice := {name for name in header if header.count(name) > 1}:
        raise BadOption(
            f"{path}, line 1: two columns are called {min(twice)!r}; --columns names the columns of a file without a header"
        )
    return Form(path, header, delimiter, not names)


def check(form: Form, name: str, what: str) -> None:
    """An error that says which columns there are, where the named one is none of them."""
    if name in form.names:
        return
    line = "" if not form.delimiter else ", line 1"
    hint = ""
    if form.header and form.delimiter and sum(map(_number, form.names)) >= len(form.names) / 2:
        hint = "; this looks like a row: --columns names the columns of a file without a header"
    elif form.header and form.delimiter and (other := _other(form)):
        hint = f"; --delimiter {other!r} would find more columns"
    raise BadOption(f"{form.path}{line}: no column {name!r} for {what}; {nearest(name, form.names)}{hint}")


def blocks(form: Form, names: Sequence[str], most: int | None = None) -> Iterator[Block]:
    """The rows with these columns, at most so many."""
    read = _parquet(form, names) if not form.delimiter else _delimited(form, names)
    left = most
    for block in read:
        if left is not None and len(block.lines) + len(block.bad) > left:
            block = _first(block, left)
        yield block
        if left is not None:
            left -= len(block.lines) + len(block.bad)
            if not left:
                return


def _first(block: Block, most: int) -> Block:
    every = np.sort(np.concatenate((block.lines, np.array([line for line, _ in block.bad], np.int64))))
    until = every[most - 1]
    kept = int(np.searchsorted(block.lines, until, side="right"))
    bad = [each for each in block.bad if each[0] <= until]
    return Block(block.lines[:kept], {name: array[:kept] for name, array in block.columns.items()}, bad)


def _delimited(form: Form, names: Sequence[str]) -> Iterator[Block]:
    bad: list[tuple[int, str]] = []

    def pass_over(row: delimited.InvalidRow) -> str:
        bad.append((row.number, row.text))
        return "error" if row.text.count("\n") > _UNCLOSED else "skip"

    compression = "gzip" if packed(form.path) == GZIP else None
    at, told = 1 + form.header, 0
    try:
        with pa.input_stream(str(form.path), compression=compression) as file:
            reader = delimited.open_csv(
                file,
                delimited.ReadOptions(
                    use_threads=False, block_size=_BLOCK, column_names=form.names, skip_rows=int(form.header)
                ),
                delimited.ParseOptions(
                    delimiter=form.delimiter,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=pass_over,
                ),
                delimited.ConvertOptions(
                    column_types=dict.fromkeys(form.names, pa.binary()),
                    strings_can_be_null=True,
                    null_values=EMPTY,
                    include_columns=list(names),
                ),
            )
            for batch in reader:
                where, at = _lines(at, batch.num_rows, {line for line, _ in bad})
                yield Block(where, dict(zip(names, batch.columns, strict=True)), bad[told:])
                told = len(bad)
    except (pa.ArrowException, OSError) as error:
        if "Could not skip" in str(error):
            return  # a header alone
        if "straddl" in str(error) or (bad and bad[-1][1].count("\n") > _UNCLOSED):
            raise Damaged(f"{form.path}, line {bad[-1][0] if bad else at}: a quote that does not close") from error
        where = "" if compression else f", after line {at - 1}"  # a block that cannot be unpacked has no lines yet
        raise Damaged(f"{form.path}{where}: {error}") from error


def _lines(at: int, rows: int, bad: set[int]) -> tuple[np.ndarray, int]:
    """The lines of the next rows, of which the bad ones are none; and the line after them."""
    span = rows + sum(line >= at for line in bad)
    where = np.arange(at, at + span)
    where = where[~np.isin(where, list(bad))][:rows] if bad else where
    return where, int(where[-1]) + 1 if rows else at


def _parquet(form: Form, names: Sequence[str]) -> Iterator[Block]:
    at = 1
    try:
        for batch in parquet.ParquetFile(form.path).iter_batches(_ROWS, columns=list(names)):
            columns = {name: _text(form, name, batch.column(name)) for name in names}
            yield Block(np.arange(at, at + batch.num_rows), columns, [])
            at += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{form.path}, after row {at - 1}: {error}") from error


def _text(form: Form, name: str, array: pa.Array) -> pa.Array:
    """A column's values of any type as a delimited file would have them."""
    if pa.types.is_nested(array.type) and not (_listed(array.type) and not pa.types.is_nested(array.type.value_type)):
        raise BadOption(
            f"{form.path}, column {name!r}: its values are nested ({array.type}); --skip {name} leaves it out"
        )
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _listed(array.type):
        array = array.cast(pa.list_(pa.string()))
        array = compute.binary_join(array, WITHIN)
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if not pa.types.is_binary(array.type):
        array = array.cast(pa.string()).cast(pa.binary())
    return compute.if_else(compute.equal(array, b""), None, array)


def _listed(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _fields(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter))


def _other(form: Form) -> str | None:
    """A delimiter that would find more columns in the header than this one."""
    line = lines.first_line(form.path).decode("utf-8-sig", "replace")
    found = {each: len(_fields(line, each)) for each in _DELIMITERS}
    best = max(found, key=found.get)
    return best if found[best] > len(form.names) else None


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
