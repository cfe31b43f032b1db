"""Who may be in a table at a time: one that changes where rows are, or many that only read and update rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class Gate:
    """`with gate:` excludes everyone; `with gate.shared():` excludes only those. Whoever wants to be alone goes first.

    `updating()` is for those who change rows that are there: they share the table as well, unless a kind of gate says otherwise.
    """

    def __init__(self):
        self._door = threading.Lock()
        self._count = threading.Condition(threading.Lock())
        self.inside = 0
        """How many share the table."""

    def __enter__(self) -> None:
        self._door.acquire()  # from here on nobody comes in
        with self._count:
            self._count.wait_for(lambda: not self.inside)

    def __exit__(self, *error: object) -> None:
        self._door.release()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._door, self._count:
            self.inside += 1
        try:
            yield
        finally:
            with self._count:
                self.inside -= 1
                self._count.notify()

    def updating(self) -> AbstractContextManager[None]:
        return self.shared()
