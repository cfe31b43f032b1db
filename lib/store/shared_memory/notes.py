"""What a part has beside its rows, where the next process finds it when this one is killed."""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lib.store import tree
from lib.store.shared_memory.segment import Segment

AWAITED = 300.0
"""Seconds after its last note for which a part's memory is left to the process that is to take it over."""
Thing = TypeVar("Thing")


class Notes:
    """Guaranteed, for a process that is killed at any moment: `read` gives what one call of `write` was given, whole, and no
    earlier one than the last that returned.

    Without a name it is the object itself that outlives the part, in the same process, with all `things` that it holds.
    """

    def __init__(self, name: str | None, root: Path | None = None):
        self._things: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}
        self.folder: Path | None = None
        """A segment of that name: tables may lie in it, and go with it."""
        if name is not None:
            self._segment = Segment(name, 1, {}, root, awaited=AWAITED)
            weakref.finalize(self, self._segment.close)
            self.folder = self._segment.folder
            self._log = open(self.folder / "log", "ab", buffering=0)  # noqa: SIM115 - as long as the part is there

    def thing(self, name: str, make: Callable[[Path | None], Thing]) -> Thing:
        """What is made of what lies in the folder; in one process what was made first."""
        if self.folder is not None:
            return make(self.folder)
        if name not in self._things:
            self._things[name] = make(None)
        return self._things[name]

    def write(self, state: Any, lists: Mapping[str, list]) -> None:
        """Keep this state, and of these lists, which only grow, as much as they are now."""
        if self.folder is not None:
            grown = {name: each[self._lengths.get(name, 0) :] for name, each in lists.items()}
            if any(grown.values()):
                _written(self._log, grown)
        self._lengths = {name: len(each) for name, each in lists.items()}
        if self.folder is None:
            self._things["state"] = state, dict(lists), self._lengths
        else:
            self.put("state", [state, self._log.tell()])

    def read(self, kinds: Iterable[type]) -> tuple[Any, dict[str, list]] | None:
        """What was kept last; None: nothing was. `kinds` are the dataclasses that it may hold."""
        if self.folder is None:
            if "state" not in self._things:
                return None
            state, lists, lengths = self._things["state"]
            return state, {name: each[: lengths[name]] for name, each in lists.items()}
        if (found := self.get("state", kinds)) is None:
            return None
        (state, end), lists = found, {}
        self._log.seek(self._log.truncate(end))  # what a kill has left beyond it counts for nothing
        with open(self.folder / "log", "rb") as log:
            while log.tell() < end:
                for name, items in _found(log, kinds).items():
                    lists.setdefault(name, []).extend(items)
        self._lengths = {name: len(each) for name, each in lists.items()}
        return state, lists

    def put(self, name: str, thing: Any) -> None:
        """Keep it under that name in place of what was kept before, where the object itself goes with its process."""
        if self.folder is not None:
            with open(self.folder / f"{name}.new", "wb", buffering=0) as file:
                _written(file, thing)
            os.replace(self.folder / f"{name}.new", self.folder / name)

    def get(self, name: str, kinds: Iterable[type] = ()) -> Any:
        """What `put` kept last; None: nothing."""
        if self.folder is None or not (self.folder / name).exists():
            return None
        with open(self.folder / name, "rb") as file:
            return _found(file, kinds)


def _written(file: Any, thing: Any) -> None:
    """Plain data as a line of JSON, and behind it its arrays."""
    arrays: list[np.ndarray] = []
    plain = tree.pack(thing, arrays)
    file.write(json.dumps([plain, [(each.dtype.str, each.shape) for each in arrays]]).encode() + b"\n")
    for array in arrays:
        file.write(array.tobytes())


def _found(file: Any, kinds: Iterable[type]) -> Any:
    plain, shapes = json.loads(file.readline())
    arrays = {}
    for number, (kind, shape) in enumerate(shapes):
        size = np.dtype(kind).itemsize * math.prod(shape)
        arrays[str(number)] = np.frombuffer(bytearray(file.read(size)), kind).reshape(shape)
    return tree.unpack(plain, arrays, {each.__name__: each for each in kinds})
