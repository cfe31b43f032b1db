"""How workers share a pass over the data: each batch goes to exactly one of them."""

from __future__ import annotations

from lib.cluster.base import Handle, Site


class WorkQueue:
    """The data list of a parameter server: whoever asks next takes the next batch, so fast workers take more."""

    def __init__(self, site: Site, batches: int):
        self._next, self._batches = 0, batches

    async def take(self, until: int) -> int | None:
        """A batch before `until` that nobody else has; None if there is none left."""
        if self._next >= min(until, self._batches):
            return None
        self._next += 1
        return self._next - 1

    async def save(self) -> dict[str, int]:
        return {"next": self._next}

    async def load(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Split:
    """Every `workers`-th batch belongs to one worker. Where the division leaves a rest, some workers end a step earlier."""

    def __init__(self, rank: int, workers: int, batches: int):
        self._next, self._workers, self._batches = rank, workers, batches

    async def take(self, until: int) -> int | None:
        if self._next >= min(until, self._batches):
            return None
        self._next += self._workers
        return self._next - self._workers

    async def skip(self, steps: int) -> None:
        """Go on as if so many batches had been taken."""
        self._next = self._next % self._workers + steps * self._workers

    async def save(self) -> dict[str, int]:
        return {"next": self._next}

    async def load(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def feed(rank: int, workers: int, batches: int, queue: Handle | None) -> Split | Handle:
    """Where a worker takes its batches from."""
    return Split(rank, workers, batches) if queue is None else queue
