"""Where tasks of one process meet: everybody pins up an array, the last one to come combines them for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.errors import MemberLost


@dataclass(frozen=True, slots=True)
class Meeting:
    """Workers that mix together once."""

    key: str
    """Unique in the run."""
    members: tuple[int, ...]
    """Their ranks, ascending."""
    round: int = 0
    """Which of the rule's rounds it is."""
    generations: tuple[int, ...] = ()
    """Which generation of its node each member is, see `Site.generation`; () where all are in their first."""


class Board:
    """Collectives among the tasks of one event loop. Sums run in rank order, so the result does not depend on arrival."""

    def __init__(self, generation: Callable[[int], int]):
        """`generation`: which one of its node's each worker is in now."""
        self._open: dict[str, tuple[Meeting, dict[int, tuple[np.ndarray, asyncio.Future]]]] = {}
        self._generation = generation

    def lose(self, rank: int) -> None:
        """A worker died: the meetings that it has not come to can no longer take place."""
        for key, (meeting, brought) in list(self._open.items()):
            if rank in meeting.members and rank not in brought:
                del self._open[key]
                for _, waiting in brought.values():
                    if not waiting.done():
                        waiting.set_exception(_lost(meeting))

    async def combine(self, meeting: Meeting, kind: str, rank: int, mine: np.ndarray, function: Callable) -> Any:
        """`function` of the arrays by rank, once all members have brought theirs."""
        key = f"{kind} {meeting.key}"
        if key not in self._open and self._missed(meeting):
            raise _lost(meeting)
        _, brought = self._open.setdefault(key, (meeting, {}))
        waiting = asyncio.get_running_loop().create_future()
        brought[rank] = mine, waiting
        if len(brought) == len(meeting.members):
            del self._open[key]
            result = function([brought[member][0] for member in meeting.members])
            for member in meeting.members:
                if not (future := brought[member][1]).done():
                    future.set_result(result)
        return await waiting

    def _missed(self, meeting: Meeting) -> bool:
        """Whether a member died after the meeting was arranged."""
        generations = meeting.generations or (0,) * len(meeting.members)
        return any(
            self._generation(member) > generation
            for member, generation in zip(meeting.members, generations, strict=True)
        )


def _lost(meeting: Meeting) -> MemberLost:
    return MemberLost(f"a member of {meeting.members} died before they met")


def own(array: np.ndarray) -> np.ndarray:
    """A copy for whom it is given to."""
    return array if _blank(array) else array.copy()


def mean(arrays: list[np.ndarray]) -> np.ndarray:
    if _blank(arrays[0]):
        return arrays[0]
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    total /= len(arrays)
    return total


def _blank(array: np.ndarray) -> bool:
    """One zero seen at every place, which nobody writes to: the mean of such arrays is another."""
    return array.size > 1 and not any(array.strides)
