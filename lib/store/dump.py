"""A whole table as its records lie in memory: the fastest way to a checkpoint and back, without sorting and without copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lib.errors import BadOption
from lib.store.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """Everything that a table holds. Its arrays are the table's own until they were saved and loaded."""

    words: np.ndarray
    """uint32[n, width], the records."""
    admission: np.ndarray
    """What the admission policy remembers."""
    numbers: tuple[int, int, int]
    """Calls, lost, evicted."""


def dump(table: Table) -> Dump:
    """The table's content without a copy: save it before the table is used again. It depends on the order of admission."""
    records, traffic = table._records, table._traffic
    count = records.count
    numbers = traffic.calls, traffic.lost, records.evicted
    return Dump(records.words[:count], records.sketch, numbers)


def restore(table: Table, content: Dump) -> None:
    """Replace the content of a table with the same rows, optimiser and limits; the arrays of `content` become the table's."""
    records, traffic = table._records, table._traffic
    count, width = content.words.shape
    if width != records.layout.width or (table.max_rows is not None and count > table.max_rows):
        raise BadOption(
            f"{count} records of {width} words do not fit a table of {records.layout.width} words and "
            f"{'no limit' if table.max_rows is None else f'{table.max_rows} rows'}"
        )
    if not count:
        records.clear(1)
    else:
        with table._lock:
            entries = np.empty(int(count * records.layout.spare) + 2, np.uint32)
            records.adopt(content.words, entries, count)
    records.sketch = content.admission
    traffic.calls, traffic.lost, records.evicted = content.numbers
