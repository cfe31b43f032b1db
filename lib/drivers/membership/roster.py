"""The nodes of one role, each of which may be lost during a run and be up again.

The others go on without a node that a run can do without. Any other death takes the whole run back to its last checkpoint (see
`lib.drivers.execution`), and so does an unplanned one: what that process had done is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.membership.members import Members
from lib.drivers.run.checkpoints import Attempt, Checkpoint
from lib.drivers.run.record import PartLog
from lib.errors import NodeLost, first_cause


async def _nothing(*args: Any) -> None:
    """The default of a callback."""


class Roster:
    """Guaranteed: a part that dies is hosted again once its node is up, unless all work of its role is done."""

    def __init__(
        self,
        world: World,
        attempt: Attempt,
        role: str,
        count: int,
        host: Callable[[int], Awaitable[Handle]] | None,
        *,
        is_done: Callable[[], bool],
        is_vital: Callable[[int], bool] = lambda rank: False,
        settle: Callable[[PartLog], None] = lambda log: None,
        on_loss: Callable[[int, str, float], Awaitable[None]] = _nothing,
        on_return: Callable[[int, Handle], Awaitable[None]] = _nothing,
        on_change: Callable[[], Awaitable[None]] = _nothing,
    ):
        """`host(rank)` puts a part on its node. `is_done()`: all work of the role is done. `is_vital(rank)`: the others cannot go
        on without it. `settle(log)` closes a dead part's ledger.

        `on_loss(rank, change, after)` is awaited when a part is lost, `on_return(rank, handle)` before a part that was hosted
        again works, and `on_change()` then."""
        self._world, self._attempt, self._host = world, attempt, host
        self._is_done, self._is_vital, self._settle = is_done, is_vital, settle
        self._on_loss, self._on_return, self._on_change = on_loss, on_return, on_change
        self.names = [f"{role}{rank}" for rank in range(count)]
        """Their nodes."""
        self.members = Members.of(count)
        self.handles: dict[int, Handle] = {}
        """The parts that are up, by rank."""
        self.waiting: dict[int, asyncio.Task] = {}
        """Tasks that wait for a dead part's node."""

    async def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Host a part on each node that is up; or on those that were up at this checkpoint, with their states."""
        ranks = [rank for rank, name in enumerate(self.names) if checkpoint is None or name in checkpoint.parts]
        for rank in set(range(len(self.names))) - set(ranks):
            self.members = self.members.after(rank, "is missing")
        hosted = await asyncio.gather(*map(self._host, ranks), return_exceptions=True)
        found = dict(zip(ranks, hosted, strict=True))
        self.handles = {rank: handle for rank, handle in found.items() if isinstance(handle, Handle)}
        for rank in sorted(found.keys() - self.handles.keys()):
            if not isinstance(found[rank], NodeLost) or self._takes_all_back(rank):
                raise found[rank]
            await self._do_without(rank, "is missing", 0.0)
            self._bury([checkpoint.state(self.names[rank])["record"]] if checkpoint else [])
        if checkpoint:
            up = self.handles.items()
            await asyncio.gather(*(checkpoint.restore(self.names[rank], handle) for rank, handle in up))

    async def drain(self) -> None:
        """Wait until nothing is under way, and every death is dealt with."""
        await self._world.drain()
        while dead := [rank for rank in sorted(self.handles) if self._world.is_dead(self.names[rank])]:
            await asyncio.gather(*map(self._lose, dead))
            await self._world.drain()

    async def write_checkpoint(self, place: Callable[[str], Path]) -> dict[str, Any]:
        """Let every part write its state to its place; each part's ledger by its name."""
        return await self._answers(lambda name, part: part.write_checkpoint(place(name)))

    async def report(self, *args: Any) -> list[PartLog]:
        """The logs of all parts that are up; those of dead parts are with the attempt."""
        return [*(await self._answers(lambda _, part: part.report(*args))).values()]

    async def call_all(self, method: str, *args: Any) -> None:
        """Call a method of all parts that are up; one that has just died need not answer."""

        async def call(part: Handle) -> None:
            with suppress(NodeLost):
                await getattr(part, method)(*args)

        await asyncio.gather(*map(call, self.handles.values()))

    async def watch(self, rank: int, work: Callable[[int], Awaitable[None]]) -> None:
        """Await a part's work, hosting the part again after each death, until all work of the role is done."""
        while not self._is_done():
            try:
                if rank in self.handles:
                    return await work(rank)
                if not await self._return(rank):
                    return
            except Exception as error:
                lost = first_cause(error)
                if not isinstance(lost, NodeLost) or lost.node != self.names[rank]:
                    raise
            else:
                continue
            await self._lose(rank)

    def stop_waiting(self) -> None:
        """Once all work is done, wait for no dead node."""
        if self._is_done():
            for task in self.waiting.values():
                task.cancel()

    async def _answers(self, ask: Callable[[str, Handle], Awaitable[Any]]) -> dict[str, Any]:
        """By name; a part that has died since its work was done has no answer."""

        async def answer(rank: int) -> dict[str, Any]:
            try:
                return {(name := self.names[rank]): await ask(name, self.handles[rank])}
            except NodeLost:
                await self._lose(rank)
                return {}

        answers = await asyncio.gather(*map(answer, sorted(self.handles)))
        return {name: answer for each in answers for name, answer in each.items()}

    async def _return(self, rank: int) -> bool:
        """Wait for a dead part's node and host the part again; False if the node is never up again."""
        self.waiting[rank] = asyncio.current_task()
        try:
            if not await self._world.wait_until_up(self.names[rank]):
                return False
        finally:
            del self.waiting[rank]
        handle = await self._host(rank)
        await self._on_return(rank, handle)
        self.members = self.members.after(rank, "comes back").after(rank, "comes in")
        self.handles = dict(sorted({**self.handles, rank: handle}.items()))  # in the order of a run that resumes
        await self._on_change()
        return True

    async def _lose(self, rank: int) -> None:
        if self._takes_all_back(rank):
            raise NodeLost(self.names[rank])
        self.handles.pop(rank, None)
        await self._do_without(rank, "dies", self._world.cluster.patience)
        self._bury(self._world.take_records(self.names[rank]))
        self.stop_waiting()

    async def _do_without(self, rank: int, change: str, after: float) -> None:
        self.members = self.members.after(rank, change)
        await self._on_loss(rank, change, after)

    def _bury(self, logs: list[PartLog]) -> None:
        """Keep a dead part's logs, with their ledgers settled."""
        for log in logs:
            self._settle(log)
        self._attempt.lost.extend(logs)

    def _takes_all_back(self, rank: int) -> bool:
        """Whether the others cannot go on without it, or its death was not planned, so that what it had done is unknown."""
        return self._is_vital(rank) or not self._world.is_dead(self.names[rank])
