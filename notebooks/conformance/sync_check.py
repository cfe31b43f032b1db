"""A test for other people's code: without delay, a protocol is synchronous SGD, to the bit.

    from notebooks.conformance.sync_check import check_equals_sync

    check_equals_sync(lambda values, gradients, rate: values - rate * np.mean(gradients, axis=0))

Gradients are multiples of 1/256, their mean over 4 workers and a step of 1/8 are exact in float32, and so are sums in any
order and fused operations: there is no rounding that could excuse a difference.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lib.errors import LockstepError

Step = Callable[[np.ndarray, Sequence[np.ndarray], float], np.ndarray]
"""`step(values, gradients, rate)`: the parameters after one update by the gradients of all workers, which were computed at
`values`; float32. It may keep a state of its own."""
WORKERS, STEPS, RATE, GRID, DIM = 4, 20, 0.125, 256.0, 6


class NotSync(LockstepError, AssertionError):
    """A step gave other parameters than Sync's."""


def check_equals_sync(step: Step) -> None:
    """Make twenty steps of four workers on a quadratic; raise `NotSync` at the first that is not Sync's, and say why."""
    drawn = np.random.default_rng(0)
    curve, optimum = drawn.uniform(0.25, 1.0, DIM), drawn.normal(size=DIM)
    values, earlier = np.zeros(DIM, np.float32), None
    for number in range(STEPS):
        noise = drawn.normal(scale=0.25, size=(WORKERS, DIM))
        gradients = (np.round((curve * (values - optimum) + noise) * GRID) / GRID).astype(np.float32)
        right = values - np.float32(RATE) * gradients.mean(0)
        given = values.copy()
        theirs = np.asarray(step(given, [each.copy() for each in gradients], RATE))
        if theirs.shape != right.shape or theirs.dtype != np.float32:
            raise NotSync(
                f"step {number} gave {theirs.dtype} of shape {theirs.shape}; expected float32 of shape {right.shape}"
            )
        if theirs.tobytes() != right.tobytes() and not np.array_equal(theirs, right):
            place = int(np.flatnonzero(theirs != right)[0])
            raise NotSync(
                f"step {number}: parameter {place} is {theirs[place]!s}, and Sync's is {right[place]!s}"
                f"{_looks_like(theirs, values, gradients, earlier)}"
            )
        values, earlier = right, gradients


def _looks_like(theirs: np.ndarray, values: np.ndarray, gradients: np.ndarray, earlier: np.ndarray | None) -> str:
    """The mistake that would give just these parameters, if it is a common one."""
    rate, mean = np.float32(RATE), gradients.mean(0)
    mistakes = {
        "the step has the wrong sign": values + rate * mean,
        "the gradients are summed, not averaged": values - rate * gradients.sum(0),
        "no step is made": values,
        "the learning rate is applied twice": values - rate * rate * mean,
        "the learning rate is left out": values - mean,
    }
    mistakes |= {f"only worker {rank}'s gradient is used": values - rate * each for rank, each in enumerate(gradients)}
    if earlier is not None:
        mistakes["the gradients are those of the step before"] = values - rate * earlier.mean(0)
    return next((f": {words}" for words, wrong in mistakes.items() if np.array_equal(theirs, wrong)), "")
