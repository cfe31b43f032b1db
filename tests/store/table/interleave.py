"""Threads that go one at a time from point to point, and change over where a test says so.

Points are the taking and giving back of a lock, the waiting for a condition, and each number of a row that a kernel reads or
writes: kernels run as plain Python, on rows that tell. So a thread can be stopped anywhere in a table's call, and the same orders
come every time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lib.store.table import gate, kernels, optim_kernels, table

PATIENCE = 300.0
"""Seconds after which a thread that reaches no point is given up."""


class Stuck(AssertionError):
    """Nobody can go on."""


class Interleaving:
    """The first of some works goes until it waits or ends, or comes to one of these points; then the next one that can."""

    current: Interleaving | None = None

    def __init__(self, changes: Iterable[int] = ()):
        self._changes, self.points = {*changes}, 0
        """How many points were reached so far."""
        self._turns: list[threading.Semaphore] = []
        self._waits: list[Callable[[], bool] | None] = []
        """For each thread: what it waits for; None: it has ended."""
        self._stuck = False
        self._number = threading.local()

    def run(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each gave."""
        results: list[Any] = [None] * len(works)
        self._waits = [bool] * len(works)
        self._turns = [threading.Semaphore(number == 0) for number in range(len(works))]

        def go(number: int) -> None:
            self._number.mine = number
            try:
                self._await(number)
                results[number] = works[number]()
            except BaseException as error:  # told by whoever asked for it
                results[number] = error
            finally:
                self._waits[number] = None
                self._pass_on(number)

        threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in range(len(works))]
        Interleaving.current = self
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        finally:
            Interleaving.current = None
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def point(self, waits: Callable[[], bool] = bool) -> None:
        """A thread of `run` has come here, and can go on when this is no longer so."""
        number = getattr(self._number, "mine", None)
        if number is None:
            return
        self.points += 1
        if self.points in self._changes or waits():
            self._waits[number] = waits
            self._pass_on(number)
            self._await(number)

    def _pass_on(self, number: int) -> None:
        others = [(number + 1 + ahead) % len(self._waits) for ahead in range(len(self._waits))]
        able = [other for other in others if (waits := self._waits[other]) and not waits()]
        self._stuck = self._stuck or not able
        for other in able[:1] or range(len(self._turns)):
            self._turns[other].release()

    def _await(self, number: int) -> None:
        if not self._turns[number].acquire(timeout=PATIENCE) or (self._stuck and self._waits[number]()):
            raise Stuck(f"thread {number} waits, and so do all others")


def point(waits: Callable[[], bool] = bool) -> None:
    if Interleaving.current:
        Interleaving.current.point(waits)


class Lock:
    def __init__(self):
        self.held = False

    def acquire(self, blocking: bool = True) -> bool:
        point()
        if self.held and not blocking:
            return False
        while self.held:
            point(lambda: self.held)
        self.held = True
        return True

    def release(self) -> None:
        assert self.held
        self.held = False
        point()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock):
        self._lock, self._waiting = lock, []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._waiting.append(told := object())
            self._lock.release()
            while told in self._waiting:
                point(lambda: told in self._waiting)
            self._lock.acquire()

    def notify(self) -> None:
        del self._waiting[:1]


class _Rows(np.ndarray):
    """Every number that is read or written is a point."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, np.ndarray):
            point()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        point()
        super().__setitem__(key, value)


def _in_python(kernel: Any) -> Callable[..., None]:
    return lambda rows, *more: kernel.py_func(rows.view(_Rows), *more)


@contextmanager
def stoppable() -> Iterator[pytest.MonkeyPatch]:
    """Tables that are made here can be stopped at any point."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (gate, table):
            patched.setattr(module, "threading", SimpleNamespace(Lock=Lock, Condition=Condition))
        for module, names in ((kernels, ("copy_rows", "replace_rows", "scatter")), (optim_kernels, ("adagrad",))):
            patched.setattr(module, "prefetch_range", lambda address, size: None)
            for name in names:
                patched.setattr(module, name, _in_python(getattr(module, name)))
        patched.setattr(kernels, "_read_ahead", kernels._read_ahead.py_func)
        for name in ("span", "bound"):
            patched.setattr(optim_kernels, name, getattr(optim_kernels, name).py_func)
        yield patched


def all_orders(
    make: Callable[[], Sequence[Callable[[], Any]]], changes: int = 2, every: int = 7
) -> Iterator[list[Any]]:
    """What works that are made anew each time gave, in all orders in which they change over once of themselves; and with two
    `changes` in one of so many of those in which they do so twice."""
    points = 0
    for often in range(changes + 1):
        for places in itertools.islice(
            itertools.combinations(range(1, points + 1), often), 0, None, (1, 1, every)[often]
        ):
            order = Interleaving(places)
            results = order.run(make())
            points = max(points, order.points) if often == 0 else points
            yield results
