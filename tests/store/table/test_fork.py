"""Compiled work in several threads: each part is done once, whoever does it, and results do not depend on how many there are."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numba import njit, types
from numba.types import int64

from lib.store.optim import SGD, Adagrad, Adam, Momentum
from lib.store.table.fork import MOST, as_job, boards, fork, spill, unspill
from lib.store.table.kernels import unique
from lib.store.table.table import Table

_COUNTS = types.Tuple((types.Array(int64, 1, "C"), int64))


@as_job
def _count(part, at):
    counts, turns = unspill(at, _COUNTS)
    for _ in range(turns):
        counts[part] += part + 1


@njit(nogil=True)
def _counted(team, job, counts, turns):
    fork(team, job, spill(_COUNTS, (counts, turns)), counts.size)


def counted(parts: int, turns: int) -> list[int]:
    counts = np.zeros(parts, np.int64)
    _counted(boards(parts), np.uint64(_count.address), counts, turns)
    return counts.tolist()


@pytest.mark.parametrize("parts", [1, 2, 3, MOST])
def test_each_part_is_done_once(parts):
    for turns in (1, 1000):
        assert counted(parts, turns) == [turns * (part + 1) for part in range(parts)]


def test_callers_share_helpers():
    """A helper that is busy for one caller leaves its part to the other; nobody waits, and nothing is done twice."""
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.extend(counted(3, 500) for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == 800 * [[500, 1000, 1500]]


@pytest.mark.parametrize("optimizer", [SGD(lr=0.5), Momentum(lr=0.5), Adagrad(lr=0.5, rowwise=True), Adam(lr=0.5)])
@pytest.mark.parametrize("largest", [300, 30_000, 2**40])
def test_threads_change_no_bit(optimizer, largest):
    """Many ids twice, some, and none."""
    random = np.random.default_rng(0)
    tables = [Table(5, optimizer, seed=1, threads=threads) for threads in (1, 2, 4)]
    for stamp in range(3):
        ids = random.integers(0, largest, 20_000)
        if largest == 2**40:
            ids = unique(ids)[0]
        grads = random.standard_normal((ids.size, 5), np.float32)
        pulled = [table.pull(ids) for table in tables]
        assert all(np.array_equal(values, pulled[0]) for values in pulled)
        for table in tables:
            table.push(ids, grads, stamp)
    first, *others = (table.export() for table in tables)
    for other in others:
        for name in ("ids", "values", "state", "stamps"):
            assert np.array_equal(getattr(first, name), getattr(other, name))
