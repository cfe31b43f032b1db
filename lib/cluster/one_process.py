"""Worlds whose nodes are all in this process: where their parts stand, how they are called, what goes with a node that dies."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from lib.cluster.base import Cluster, Handle, Site, World
from lib.cluster.board import Board
from lib.cluster.faults.nodes import FailureSchedule, Health, NodeContext
from lib.errors import NodeLost


class ProcessSite(Site):
    """A node of this process."""

    context: NodeContext
    health: Health
    fails: bool
    """Whether anything may go wrong here."""

    def end(self) -> list[Any]:
        """What runs here is cancelled, and another context may start; the records of the parts."""
        records = self.context.end()
        self.context = NodeContext(self.node)
        self._emptied()
        return records

    @abstractmethod
    def _emptied(self) -> None:
        """The node has nothing in its memory."""


class Stand:
    """A part on its node."""

    def __init__(self, site: ProcessSite, part: Any):
        self.site, self.part, self.context = site, part, site.context
        self.context.parts.append(part)


class ProcessHandle(Handle):
    """A part of this process, as it is called from one of its nodes."""

    def __init__(self, here: ProcessSite, stand: Stand):
        self._here, self._stand = here, stand
        self._there = stand.site

    def bind(self, site: ProcessSite) -> ProcessHandle:
        return type(self)(site, self._stand)

    def _call(self, method: str, args: tuple) -> Awaitable[Any]:
        return self._ask(method, args)

    @abstractmethod
    def _ask(self, method: str, args: tuple) -> Awaitable[Any]: ...


class ProcessWorld(World):
    """All nodes of a cluster, in this process."""

    handle: type[ProcessHandle]

    def __init__(self, cluster: Cluster, seed: int):
        self.cluster, self.seed = cluster, seed
        self.failure_schedule = FailureSchedule(partial(cluster.failures_of, seed), self._kill)
        self.board = Board(self._generation_of)
        self.records: dict[str, list[Any]] = {}
        self.report: Callable[[int], None] = lambda samples: None
        self._sites: dict[str, ProcessSite] = {}

    @abstractmethod
    def site(self, node: str) -> ProcessSite:
        """A node, which is there from its first use on."""

    async def host(self, part: type, *args, node: str) -> ProcessHandle:
        site = self.site(node)
        if self.failure_schedule.is_dead(site.node):
            raise NodeLost(site.node)
        return self.handle(self.site("master"), Stand(site, part(site, *args)))

    def start_clock(self) -> None:
        self.failure_schedule.start_clock(list(self._sites))

    async def drain(self) -> None:
        while calls := [call for site in self._sites.values() for call in site.context.calls if not call.done()]:
            await asyncio.wait(calls)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "now": asyncio.get_running_loop().time(),
            "failures": self.failure_schedule.save(),
            "health": {node: site.health.save() for node, site in self._sites.items()},
        }

    async def restore(self, state: dict[str, Any]) -> None:
        shift = asyncio.get_running_loop().time() - state["now"]
        for node, health in state["health"].items():
            self.site(node).health.load(health)
        self.failure_schedule.load(state["failures"], state["health"], shift)

    async def clear(self) -> None:
        await self.drain()
        await super().clear()
        for site in self._sites.values():
            site.context.parts.clear()

    async def restart(self) -> list[Any]:
        for node in self._sites:
            self._end(node)
        self.board = Board(self._generation_of)
        return [record for node in self._sites for record in self.take_records(node)]

    def _generation_of(self, rank: int) -> int:
        return self.site(f"worker{rank}").generation

    def _kill(self, node: str) -> None:
        self._end(node)
        if self._sites[node].rank is not None:
            self.board.lose(self._sites[node].rank)

    def _end(self, node: str) -> None:
        self._sites[node].generation += 1
        self.records[node] = [*self.records.get(node, []), *self._sites[node].end()]
