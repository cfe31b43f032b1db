"""How workers share a pass over the data: each batch goes to exactly one of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from lib.cluster.base import Site
from lib.errors import BadOption, LockstepError
from lib.store.checkpoint import Checkpointed, Part


@dataclass(frozen=True, slots=True)
class Computation:
    """A worker's computation of a batch, as a controller hears of it."""

    worker: int
    seconds: float
    """The computation alone: no waiting, no network."""
    samples: int


class WorkQueue(Part):
    """The data list of a parameter server: the worker that asks next takes the next batch, so fast workers take more."""

    in_checkpoint = ("_next",)

    def __init__(self, site: Site, batches: int, seconds: float | None = None):
        """`seconds`: so long after the first batch was taken there are no more."""
        self._site, self._seconds, self._first = site, seconds, None
        self._next, self._batches = 0, batches

    async def take(self, until: int) -> int | None:
        """A batch that no other worker has, out of those that come before the pause at `until`; None if there is none left."""
        if self._next >= min(until, self._batches):
            return None
        if self._seconds is not None:
            now = self._site.now()
            self._first = now if self._first is None else self._first
            if now >= self._first + self._seconds:
                return None
        self._next += 1
        return self._next - 1


class OwnBatches(Checkpointed):
    """Batches that belong to one worker, `stride` apart from the first on: every so-many-th of the pass, or a stretch of it.

    A pause at `until` lets each worker come `until / workers` batches far, so that all make as many steps.
    """

    in_checkpoint = ("_next",)

    def __init__(self, first: int, size: int, stride: int, workers: int):
        self._first, self._size, self._stride, self._workers, self._next = first, size, stride, workers, 0

    async def take(self, until: int) -> int | None:
        """As a queue's."""
        if self._next >= min(self._size, until // self._workers):
            return None
        self._next += 1
        return self._first + (self._next - 1) * self._stride

    def skip(self, steps: int, beyond: int = -1) -> None:
        """Go on as if so many batches had been taken, and all up to `beyond`, which is one of them or -1."""
        self._next = min(max(steps, (beyond - self._first) // self._stride + 1), self._size)


def stretches(batches: int, workers: int, parts: Sequence[float] = ()) -> list[tuple[int, int]]:
    """First batch and length of each worker's stretch, in proportion to `parts`; empty parts are equal ones."""
    parts = parts or (1.0,) * workers
    if len(parts) != workers or min(parts) < 0 or not sum(parts) > 0:
        raise BadOption(f"partitions: {parts!r}; expected a share of 0 or more for each of the {workers} workers")
    ends = [round(batches * end / sum(parts)) for end in accumulate(parts)]
    return [(first, end - first) for first, end in zip([0, *ends], ends, strict=False)]


def own_batches(kind: str, rank: int, workers: int, batches: int, parts: Sequence[float] = ()) -> OwnBatches:
    """A worker's batches: a stretch of the "stream", or every `workers`-th one."""
    if kind == "stream":
        # Equal stretches one by one: thousands of workers would each make the list of all.
        first, end = (round(batches * each / workers) for each in (rank, rank + 1))
        first, size = stretches(batches, workers, parts)[rank] if parts else (first, end - first)
        return OwnBatches(first, size, 1, workers)
    return OwnBatches(rank, len(range(rank, batches, workers)), workers, workers)


def account(taken: Iterable[int], batches: int, complete: bool = True) -> None:
    """Every batch of a pass was trained on exactly once, or at most once where that pass is not `complete`; an error names those
    that were not."""
    counts = Counter(taken)
    wrong = {
        "never": (index for index in range(batches) if complete and not counts[index]),
        "more than once": (index for index, count in sorted(counts.items()) if count > 1),
        "though there are none": (index for index in sorted(counts) if not 0 <= index < batches),
    }
    for how, which in wrong.items():
        if some := list(islice(which, 5)):
            raise LockstepError(f"of {batches} batches, these were trained on {how}: {some} (at most five are named)")
