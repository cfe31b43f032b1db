"""What threads may find in a table that they all use, told by plain dictionaries, in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from lib.store.optim import Optimizer

NEAR = 1e-4
"""What rounding may change in a few dozen steps, of a number or of one."""


class Broken(Exception):
    """What did not hold: its kind, and where."""


@dataclass(frozen=True)
class Step:
    """A push of gradients; entry i of every array belongs to `names[i]`, a group of rows that are always used together."""

    names: np.ndarray
    grads: np.ndarray
    """float32[n, rows of a group, dim]."""
    weights: np.ndarray
    stamp: int
    divisor: float | None = 1.0
    """None: the entries of the name."""
    rate: float = 1.0

    def sums(self) -> dict[int, np.ndarray]:
        """Name -> what its rows step with; nothing of one whose gradients all weigh 0."""
        found = {}
        for name in dict.fromkeys(self.names.tolist()):
            mine = np.flatnonzero(self.names == name)
            if self.weights[mine].any():
                total = sum(self.weights[place] * self.grads[place] for place in mine)
                found[name] = total / np.float32(self.divisor or mine.size)
        return found


@dataclass(frozen=True)
class Seen:
    """What a look-up gave for `names[i]`; None: it did not say."""

    names: np.ndarray
    values: np.ndarray | None = None
    state: np.ndarray | None = None
    stamps: np.ndarray | None = None
    slack: float = 0.0
    """What the way may have changed, as a share of a row's largest number."""


Row = tuple[np.ndarray, np.ndarray, int]
"""Values and state of a group's rows, and their stamp; -1 before the first step."""


class Owned:
    """The rows of one thread: all that each can be by now.

    That is one thing, unless the table `forgets`: then each may begin anew at any time.
    """

    def __init__(self, optimizer: Optimizer, first: Callable[[int], np.ndarray], forgets: bool):
        self._optimizer, self._first, self._forgets = optimizer, first, forgets
        self._rows: dict[int, list[Row]] = {}

    def can_be(self, name: int) -> list[Row]:
        rows = self._rows.setdefault(name, [])
        if not rows or self._forgets:
            values = self._first(name)
            fresh = (values, self._optimizer.first_state(*values.shape), -1)
            if not any(all(map(np.array_equal, row, fresh)) for row in rows):
                rows.append(fresh)
        return rows

    def stepped(self, step: Step) -> None:
        for name, grads in step.sums().items():
            self._rows[name] = [self._step(row, grads, step) for row in self.can_be(name)]

    def written(self, names: np.ndarray, values: np.ndarray, state: np.ndarray, stamp: int, newer: bool) -> None:
        """Rows as they are, one after another; with `newer`, over older ones alone."""
        for name, *row in zip(names.tolist(), values, state, strict=True):
            self._rows[name] = [old if newer and stamp <= old[2] else (*row, stamp) for old in self.can_be(name)]

    def assigned(self, names: np.ndarray, values: np.ndarray) -> None:
        for name, new in zip(names.tolist(), values, strict=True):
            self._rows[name] = [(new, *rest) for _, *rest in self.can_be(name)]

    def saw(self, seen: Seen) -> None:
        for place, name in enumerate(seen.names.tolist()):
            rows = self.can_be(name)
            if not (left := [row for row in rows if _fits(seen, place, row)]):
                found = {key: each[place].tolist() for key, each in vars(seen).items() if isinstance(each, np.ndarray)}
                raise Broken("a row is not what it can be", f"{found}, and not one of {rows}")
            self._rows[name] = left

    def _step(self, row: Row, grads: np.ndarray, step: Step) -> Row:
        values, state = row[0].copy(), row[1].copy()
        self._optimizer.at(step.rate).update(*map(torch.from_numpy, (values, state, np.ascontiguousarray(grads))))
        return values, state, step.stamp


class Common:
    """Rows that only grow, as one thread knows them: at least what it has pushed or seen, and never more than all have pushed.

    Where updates can be lost (`loses`), at least nothing. Each is a multiple of its own `unit`.
    """

    def __init__(self, unit: Callable[[int], float], loses: bool):
        self._unit, self._loses = unit, loses
        self.least: dict[int, np.ndarray] = {}
        self.most: dict[int, np.ndarray] = {}

    def stepped(self, step: Step) -> None:
        for name, grads in step.sums().items():
            self.least[name] = self.least.get(name, 0) - step.rate * grads

    def saw(self, seen: Seen) -> None:
        for place, name in enumerate(seen.names.tolist() if seen.values is not None else ()):
            found, least = seen.values[place], 0 if self._loses else self.least.get(name, 0)
            if not ((least <= found) & (found <= self.most.get(name, 0))).all():
                raise Broken(
                    "an update is lost or made twice",
                    f"row {name}: {found.tolist()}, not from {least} to {self.most.get(name, 0)}",
                )
            if (found % self._unit(name)).any():
                raise Broken("a row has what belongs to another", f"row {name}: {found.tolist()}")
            self.least[name] = found.copy()


def _fits(seen: Seen, place: int, row: Row) -> bool:
    values, state, stamp = row
    slack = seen.slack * np.abs(values).max(axis=1, keepdims=True, initial=0)
    return (
        (seen.values is None or (np.abs(seen.values[place] - values) <= slack + NEAR * (1 + np.abs(values))).all())
        and (seen.state is None or np.allclose(seen.state[place], state, rtol=NEAR, atol=NEAR))
        and (seen.stamps is None or bool((seen.stamps[place] == stamp).all()))
    )
