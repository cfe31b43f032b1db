"""Who may begin a step, where a rule bounds how far a worker runs ahead of the slowest."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection


class Pace:
    """Guaranteed: who begins has made at most `bound` steps more than anybody under way. Who has asked for its group, or is
    gone, keeps nobody: so those who wait here wait for workers that compute, and never for one that waits for them."""

    def __init__(self, bound: int | None, ranks: Collection[int]):
        self._bound, self._done = bound, dict.fromkeys(ranks, 0)
        self._level: dict[int, int] = {}
        """Of workers that came later: how far the slowest was."""
        self._gates: list[tuple[int, int, asyncio.Future]] = []

    async def begin(self, rank: int, steps: int, mixing: Collection[int]) -> None:
        """Wait until a worker that has made so many steps may make one more; `mixing`: who has asked for a group."""
        if rank not in self._done:
            self._level[rank] = min(self._done.values(), default=0) - steps
        self._done[rank] = steps = steps + self._level.get(rank, 0)
        self._gates.append((rank, steps, opened := asyncio.get_running_loop().create_future()))
        self.open(mixing)
        await opened

    def leave(self, rank: int) -> None:
        """Nobody waits for it, and it for nobody."""
        self._done.pop(rank, None)
        for gate in [gate for gate in self._gates if gate[0] == rank]:
            self._gates.remove(gate)
            gate[2].set_result(None)

    def open(self, mixing: Collection[int]) -> None:
        """Let those begin who may."""
        if not self._gates:
            return
        slowest = min((done for rank, done in self._done.items() if rank not in mixing), default=math.inf)
        for gate in [gate for gate in self._gates if gate[1] <= slowest + self._bound]:
            self._gates.remove(gate)
            gate[2].set_result(None)
