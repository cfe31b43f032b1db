"""Who may be in a table at a time: one that changes where rows are, or many that only read and update rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """`with gate:` excludes everyone; `with gate.shared():` excludes only those. Whoever wants to be alone goes first."""

    def __init__(self):
        self._turn = threading.Condition(threading.Lock())
        self._inside = self._waiting = 0
        self._alone = False

    def __enter__(self) -> None:
        with self._turn:
            self._waiting += 1
            try:
                self._turn.wait_for(lambda: not (self._alone or self._inside))
                self._alone = True
            finally:
                self._waiting -= 1

    def __exit__(self, *error: object) -> None:
        with self._turn:
            self._alone = False
            self._turn.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not (self._alone or self._waiting))
            self._inside += 1
        try:
            yield
        finally:
            with self._turn:
                self._inside -= 1
                self._turn.notify_all()
