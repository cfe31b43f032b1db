"""The best that any schedule of modes could reach, if every mode's throughput at every time were known in advance."""

from dataclasses import dataclass

import numpy as np

from lib import BadOption


@dataclass(frozen=True)
class Hindsight:
    """A sequence of modes, and what it reaches."""

    samples: float
    first: int
    """The mode that it begins in."""
    switches: tuple[tuple[float, int], ...] = ()
    """(when the switch begins, in seconds; to which mode)."""


def oracle(throughputs: np.ndarray, cost: float, window: float = 1.0) -> Hindsight:
    """The best of all schedules, for samples per second of every mode (rows) in every window of `window` seconds (columns).

    It begins in whichever mode it likes; a switch may begin at any moment and takes `cost` seconds, in which nothing is
    trained. Exact: what a switch gains is piecewise linear in its time, so only those that begin or end with a window
    need a look.
    """
    trained = _cumulative(throughputs, window)
    if not cost >= 0:
        raise BadOption(f"oracle: cost must be 0 or more seconds, not {cost}")
    edges = np.arange(trained.shape[1]) * window
    moments = np.unique(np.concatenate([edges, edges[edges > cost] - cost]))
    at = np.array([np.interp(moments, edges, row) for row in trained])
    landing = np.array([np.interp(moments + cost, edges, row) for row in trained])
    # Where cost lands between two moments, the next decision is at the later one. Free switches take no time at all.
    arrival = np.searchsorted(moments, moments + cost) if cost else np.arange(len(moments))

    # best[mode, moment]: what the best schedule that is ready in that mode has trained by then; came: its (mode, moment) before.
    own, last = np.arange(len(trained)), len(moments) - 1
    best = np.full(at.shape, -np.inf)
    came = np.full((*at.shape, 2), -1)
    best[:, 0] = 0.0

    def offer(reach: int, totals: np.ndarray, origins: np.ndarray | int, moment: int) -> None:
        better = totals > best[:, reach]
        best[better, reach] = totals[better]
        came[better, reach, 0] = np.broadcast_to(origins, totals.shape)[better]
        came[better, reach, 1] = moment

    for moment, reach in enumerate(arrival):
        leader = int(best[:, moment].argmax())
        if reach <= last:
            offer(reach, best[leader, moment] + at[:, reach] - landing[:, moment], leader, moment)
        if moment < last:
            offer(moment + 1, best[:, moment] + at[:, moment + 1] - at[:, moment], own, moment)

    mode, moment, switches = int(best[:, last].argmax()), last, []
    samples = float(best[mode, last])
    while came[mode, moment, 0] >= 0:
        before, when = (int(each) for each in came[mode, moment])
        if before != mode:
            switches.append((float(moments[when]), mode))
        mode, moment = before, when
    return Hindsight(samples, mode, tuple(reversed(switches)))


def best_fixed(throughputs: np.ndarray, window: float = 1.0) -> Hindsight:
    """The best single mode, without a switch."""
    trained = _cumulative(throughputs, window)
    mode = int(trained[:, -1].argmax())
    return Hindsight(float(trained[mode, -1]), mode)


def _cumulative(throughputs: np.ndarray, window: float) -> np.ndarray:
    """Samples that each mode has trained at each edge of the windows."""
    table = np.asarray(throughputs, dtype=float)
    if table.ndim != 2 or not table.size or not (np.isfinite(table) & (table >= 0)).all():
        raise BadOption("oracle: throughputs must be a table of modes x windows, finite and 0 or more")
    if not window > 0:
        raise BadOption(f"oracle: a window must last more than 0 seconds, not {window}")
    return np.pad(np.cumsum(table, axis=1) * window, ((0, 0), (1, 0)))
