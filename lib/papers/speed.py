"""How fast a run was, once all its workers were at it and before the first had done."""

from __future__ import annotations

from lib.results.run import Run


def steady(run: Run) -> float:
    """Samples per second between a fifth and four fifths of a run's samples."""
    history = run.history.dropna(subset=["step"])
    time, samples = history["time"].to_numpy(), history["samples"].to_numpy()
    first, last = (int((samples >= share * samples[-1]).argmax()) for share in (0.2, 0.8))
    return float((samples[last] - samples[first]) / (time[last] - time[first]))
