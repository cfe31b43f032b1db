"""Who may be in a table at a time: one that changes where rows are, or many that only read and update rows."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager


class Gate:
    """`with gate:` excludes everyone; `with gate.shared():` excludes only those. Whoever wants to be alone goes first.

    `updating()` is for those who change rows that are there: they share the table as well, unless a kind of gate says otherwise.
    """

    def __init__(self):
        self.door = threading.Lock()
        self.lock = threading.Lock()
        self.emptied = threading.Condition(self.lock)
        self._shared = _Shared(self)
        self.inside = 0
        """How many share the table."""

    def __enter__(self) -> None:
        self.door.acquire()  # from here on nobody comes in
        with self.emptied:
            self.emptied.wait_for(lambda: not self.inside)

    def __exit__(self, *error: object) -> None:
        self.door.release()

    def shared(self) -> AbstractContextManager[None]:
        return self._shared

    def updating(self) -> AbstractContextManager[None]:
        return self.shared()


class _Shared:
    """What `with` enters and leaves: one for all, since it keeps nothing, and a generator for each would cost more than a step's
    look-up of some dozen rows."""

    def __init__(self, gate: Gate):
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        with gate.door, gate.lock:
            gate.inside += 1

    def __exit__(self, *error: object) -> None:
        gate = self._gate
        with gate.lock:
            gate.inside -= 1
            if not gate.inside:
                gate.emptied.notify()
