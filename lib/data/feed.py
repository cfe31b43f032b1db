"""How workers share a pass over the data: each batch goes to exactly one of them."""

from __future__ import annotations

from lib.cluster.base import Handle, Site


class WorkQueue:
    """The data list of a parameter server: whoever asks next takes the next batch, so fast workers take more."""

    def __init__(self, site: Site, batches: int):
        self._next, self._batches = 0, batches

    async def take(self) -> int | None:
        """A batch that nobody else has; None at the end of the data."""
        if self._next == self._batches:
            return None
        self._next += 1
        return self._next - 1


class Split:
    """Every `workers`-th batch belongs to one worker. Where the division leaves a rest, some workers end a step earlier."""

    def __init__(self, rank: int, workers: int, batches: int):
        self._indices = iter(range(rank, batches, workers))

    async def take(self) -> int | None:
        return next(self._indices, None)


def feed(rank: int, workers: int, batches: int, queue: Handle | None) -> Split | Handle:
    """Where a worker takes its batches from."""
    return Split(rank, workers, batches) if queue is None else queue
