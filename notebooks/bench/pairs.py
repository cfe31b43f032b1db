"""Two things timed in turn, pair by pair, since a machine's speed drifts; a ratio is the median of the pairs'."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit

from lib.store.kernels import OPTIONS

Work = Callable[[], Any]
FREE_CORES = 1.8
"""Speed-up of plain arithmetic on two threads from which on a machine has two cores free."""
_TURNS = 60_000_000
"""Some hundredths of a second: waking the second thread must be nothing compared with it."""


def seconds_of(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def at_once(works: Sequence[Work]) -> Work:
    """All of them, each in a thread of its own."""

    def run() -> None:
        threads = [threading.Thread(target=work) for work in works[1:]]
        for thread in threads:
            thread.start()
        works[0]()
        for thread in threads:
            thread.join()

    return run


def best(work: Work, rounds: int) -> float:
    return min(seconds_of(work) for _ in range(rounds))


def time_in_turn(theirs: Work, mine: Work, rounds: int) -> list[tuple[float, float]]:
    """Both in turn, each right after a turn of its own that is not counted.

    So the other's data is out of the caches, and its threads no longer wait awake on a core that this one needs. A rest would do
    that too, but a processor that has rested is for a while half as fast.
    """

    def settled(work: Work) -> float:
        work()
        return seconds_of(work)

    return [(settled(theirs), settled(mine)) for _ in range(rounds)]


def against(
    demanded: float, pairs: Sequence[tuple[float, float]], amount: float, unit: str, cores: float | None = None
) -> dict[str, Any]:
    """How many times faster the second of each pair was, next to what is demanded of it; and both sides' rates, of an `amount` in
    that unit a second.

    With `cores`, two threads were at work; if the machine had no two cores free, the figure says nothing and is not judged.
    """
    ratios = sorted(theirs / mine for theirs, mine in pairs)
    other, own = (amount / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    measured = statistics.median(ratios)
    return {
        "relation": ">=",
        "demanded": demanded,
        "measured": round(measured, 2),
        "headroom": measured / demanded,
        "least": round(ratios[0], 2),
        "greatest": round(ratios[-1], 2),
        "holds": verdict(measured >= demanded, cores),
        "cores": cores,
        "peer's rate": float(f"{other:.3g}"),
        "our rate": float(f"{own:.3g}"),
        "unit": unit,
    }


def at_most(demanded: float, measured: float) -> dict[str, Any]:
    """The same columns for a figure that is no ratio."""
    shown, holds = float(f"{measured:.3g}"), verdict(measured <= demanded)
    return {"relation": "<=", "demanded": demanded, "measured": shown, "headroom": demanded / measured, "holds": holds}


def verdict(holds: bool, cores: float | None = None) -> str:
    if cores is not None and cores < FREE_CORES:
        return "machine busy"
    return "yes" if holds else "no"


def cores(patience: float = 0.0) -> float:
    """How much faster two threads are than one at plain arithmetic: 2 where two cores are free.

    With some seconds' patience, until they are.
    """
    end, found = time.perf_counter() + patience, 0.0
    _turn(1)
    while found < FREE_CORES:
        one = best(lambda: _turn(_TURNS), 3)
        two = best(at_once([lambda: _turn(_TURNS)] * 2), 3)
        found = max(found, 2 * one / two)
        if time.perf_counter() > end:
            break
        time.sleep(patience / 10)
    return round(found, 1)


@njit(**OPTIONS)
def _turn(turns):
    word = np.uint64(turns)
    for _ in range(turns):
        word = word * np.uint64(6364136223846793005) + np.uint64(1)
    return word
