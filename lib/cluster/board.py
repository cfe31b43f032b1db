"""Where tasks of one process meet: everybody pins up an array, the last one to come combines them for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from lib.cluster.base import Meeting


class Board:
    """Collectives among the tasks of one event loop. Sums run in rank order, so the result does not depend on arrival."""

    def __init__(self):
        self._open: dict[str, tuple[dict[int, np.ndarray], asyncio.Future]] = {}

    async def combine(self, meeting: Meeting, kind: str, rank: int, mine: np.ndarray, function: Callable) -> object:
        """`function` of the arrays by rank, once all members have brought theirs."""
        key = f"{kind} {meeting.key}"
        brought, done = self._open.setdefault(key, ({}, asyncio.get_running_loop().create_future()))
        brought[rank] = mine
        if len(brought) == len(meeting.members):
            del self._open[key]
            done.set_result(function([brought[member] for member in meeting.members]))
        return await done


def mean(arrays: list[np.ndarray]) -> np.ndarray:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    total /= len(arrays)
    return total
