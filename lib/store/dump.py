"""A whole table as its records lie in memory: the fastest way to a checkpoint and back.

Nothing is sorted, and the index travels too: to find where each row belongs would cost as much as reading the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.errors import BadOption, Damaged
from lib.store.table import index
from lib.store.table.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """Everything that a table holds. Its arrays are the table's own until they were saved and loaded."""

    words: np.ndarray
    """uint32[n, width], the records."""
    index: np.ndarray
    """uint32[m], where each id's record is."""
    free: np.ndarray
    """int64[k], records that hold no row."""
    admission: np.ndarray
    """What the admission policy remembers."""
    numbers: tuple[int, int, int]
    """Calls, lost, evicted."""


def dump(table: Table) -> Dump:
    """The table's content without a copy: save it before the table is used again. It depends on the order of admission."""
    records, traffic = table._records, table._traffic
    numbers = traffic.calls, traffic.lost, records.evicted
    return Dump(records.words[: records.count], records.index, records.free, records.sketch, numbers)


def restore(table: Table, content: Dump) -> None:
    """Replace the content of a table with the same rows, optimiser and limits; the arrays of `content` become the table's."""
    records, traffic = table._records, table._traffic
    count, width = content.words.shape
    if width != records.layout.width or (table.max_rows is not None and count > table.max_rows):
        raise BadOption(
            f"{count} records of {width} words do not fit a table of {records.layout.width} words and "
            f"{'no limit' if table.max_rows is None else f'{table.max_rows} rows'}"
        )
    if not index.plausible(content.index, count, content.free.size):
        raise Damaged(f"an index of {content.index.size} entries does not lead to {count} records")
    with table._lock:
        if count:
            records.become(content.words, content.index, content.free)
        else:
            records.clear(1)
        records.sketch = content.admission
        traffic.calls, traffic.lost, records.evicted = content.numbers
