"""Worlds whose nodes are all in this process: how parts are hosted and called, how they average, what ends with a node."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NoReturn

import numpy as np

from lib.cluster.base import Cluster, Handle, Meeting, Retries, Site, World
from lib.cluster.failures import FailureSchedule, NodeFailures
from lib.device_array import to_native
from lib.errors import MemberLost, NodeLost, first_in_group


class NodeContext:
    """One generation of a node: its parts and the calls that run on it, from its start to its death."""

    def __init__(self, node: str, generation: int = 0):
        self.node, self.generation = node, generation
        self.ended = False
        self.parts: list[Any] = []
        self.calls: dict[asyncio.Task, None] = {}
        """In the order in which they began, which is the order in which a death ends them."""

    def call(self, coroutine: Coroutine) -> Coroutine:
        """Start a call that runs on this node, and return the coroutine of its result.

        The call ends when this node dies, not when its caller does. That raises `NodeLost` where the result is awaited, also if
        the node was dead before: so a caller of several nodes meets the error where it awaits all of them."""
        if self.ended:
            coroutine.close()
            return self._lost_result()
        task = asyncio.get_running_loop().create_task(coroutine)
        self.calls[task] = None
        task.add_done_callback(self.calls.pop)
        return self._await_shielded(task)

    async def _lost_result(self) -> NoReturn:
        raise NodeLost(self.node)

    async def _await_shielded(self, call: asyncio.Task) -> Any:
        """The call's result. A caller that is cancelled itself ends as cancelled, even if this node has died as well."""
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if self.ended and not asyncio.current_task().cancelling():
                raise NodeLost(self.node) from None
            call.add_done_callback(_report_error)
            raise

    def end_and_take_records(self) -> list[Any]:
        """Cancel every call and return the records of the parts."""
        self.ended = True
        for call in list(self.calls):
            call.cancel()
        return [part.record for part in self.parts if hasattr(part, "record")]


def _report_error(call: asyncio.Task) -> None:
    """Report an error of a call whose caller is gone, unless the call met a dead node: it ends a virtual run, others log it."""
    error = None if call.cancelled() else call.exception()
    if error is not None and not isinstance(first_in_group(error), (NodeLost, MemberLost)):
        message = "a call failed whose caller was cancelled"
        call.get_loop().call_exception_handler({"message": message, "exception": error})


class InProcessCollectives:
    """Collectives among the tasks of one event loop. Sums run in rank order, so the result does not depend on arrival."""

    def __init__(self, generation: Callable[[int], int] | None):
        """`generation` returns the current generation of a worker's node; None: no node fails."""
        self._open: dict[str, tuple[Meeting, dict[int, tuple[np.ndarray, asyncio.Future]]]] = {}
        self._generation = generation

    def fail_collectives_awaiting(self, rank: int) -> None:
        """Fail the collectives that a dead worker has not joined."""
        for key, (meeting, brought) in list(self._open.items()):
            if rank in meeting.members and rank not in brought:
                del self._open[key]
                for _, waiting in brought.values():
                    if not waiting.done():
                        waiting.set_exception(_member_lost_error(meeting))

    async def reduce(self, meeting: Meeting, kind: str, rank: int, mine: np.ndarray, function: Callable) -> Any:
        """Return `function` of the members' arrays by rank, once the last member has joined."""
        key = f"{kind} {meeting.key}"
        if self._generation and key not in self._open and self._has_lost(meeting):
            raise _member_lost_error(meeting)
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

    def _has_lost(self, meeting: Meeting) -> bool:
        """Whether a member died after the meeting was arranged."""
        generations = meeting.generations or (0,) * len(meeting.members)
        members = zip(meeting.members, generations, strict=True)
        return any(self._generation(member) > generation for member, generation in members)


def _member_lost_error(meeting: Meeting) -> MemberLost:
    return MemberLost(f"a member of {meeting.members} died before they met")


def private_copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array for its receiver."""
    return array if _is_phantom(array) else array.copy()


def mean(arrays: list[np.ndarray]) -> np.ndarray:
    if _is_phantom(arrays[0]):
        return arrays[0]
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    total /= len(arrays)
    return total


def _is_phantom(array: np.ndarray) -> bool:
    """Whether it is a timing run's array: one zero seen at every place, never written to, so the mean of such is another."""
    return array.size > 1 and not any(array.strides)


class InProcessSite(Site):
    """A node of this process."""

    def __init__(self, world: InProcessWorld, node: str):
        self.world, self.context = world, NodeContext(node)
        self.may_fail = world.cluster.may_fail
        """Whether anything may go wrong here."""
        self.persistent_objects: dict[str, Any] = {}

    failures: NodeFailures

    to_message = staticmethod(to_native)

    def persistent_object(self, key: str, make: Callable[[str | None], Any]) -> Any:
        if key not in self.persistent_objects:
            self.persistent_objects[key] = make(None)
        return self.persistent_objects[key]

    def note_batch_done(self, samples: int) -> None:
        self.world.report(samples)
        if self.may_fail:
            schedule, now = self.world.failure_schedule, asyncio.get_running_loop().time()
            schedule.count_batch(self.node, self.failures.count_batch(now - schedule.start))

    def end(self) -> list[Any]:
        """Cancel what runs here and make room for the next generation; the records of the parts."""
        records = self.context.end_and_take_records()
        self.generation += 1
        self.context = NodeContext(self.node, self.generation)
        self._reset_after_death()
        return records

    @abstractmethod
    def _reset_after_death(self) -> None:
        """Empty the node's memory."""


class PartSlot:
    """A part on its node, in one generation after the other if it returns."""

    def __init__(self, site: InProcessSite, make: Callable[[], Any]):
        self.site, self._make = site, make
        self.retries: Retries | None = None
        self.make_part()

    def make_part(self) -> None:
        self.part, self.context = self._make(), self.site.context
        self.context.parts.append(self.part)


class InProcessHandle(Handle):
    """A part of this process, as it is called from one of its nodes."""

    def __init__(self, caller: InProcessSite, slot: PartSlot):
        self._caller, self._site, self._slot, self.retries = caller, slot.site, slot, slot.retries

    def bind(self, site: InProcessSite) -> InProcessHandle:
        return type(self)(site, self._slot)


class InProcessWorld(World):
    """All nodes of a cluster, in this process."""

    handle: type[InProcessHandle]

    def __init__(self, cluster: Cluster, seed: int):
        self.cluster, self.seed = cluster, seed
        self.failure_schedule = FailureSchedule(partial(cluster.failures_of, seed), self._kill)
        self.collectives = self._make_collectives()
        self.records: dict[str, list[Any]] = {}
        self.report: Callable[[int], None] = lambda samples: None
        self._sites: dict[str, InProcessSite] = {}
        self._restarts = 0

    @abstractmethod
    def site(self, node: str) -> InProcessSite:
        """A node, which starts when it is first used."""

    async def host(self, part: type, *args, node: str, returns: bool = False) -> Handle:
        site = self.site(node)
        if self.failure_schedule.is_dead(site.node):
            raise NodeLost(site.node)
        slot = PartSlot(site, partial(part, site, *args))
        if returns and site.may_fail:
            again = partial(self._host_again, slot, self._restarts)
            slot.retries = Retries(node, lambda: slot.context.generation, again)
        return self.handle(self.site("master"), slot)

    async def _host_again(self, slot: PartSlot, world_restarts: int) -> bool:
        """Wait until a slot's node is up, and make its part again, unless all nodes have started anew meanwhile."""
        up = await self.wait_until_up(slot.site.node) and world_restarts == self._restarts
        if up:
            self.take_records_of_dead(slot.site.node)  # the part has its record again
            slot.make_part()
        return up

    def start_failure_clock(self) -> None:
        self.failure_schedule.arm_failures(list(self._sites))

    async def drain_orphaned_calls(self) -> None:
        while calls := [call for site in self._sites.values() for call in site.context.calls if not call.done()]:
            await asyncio.wait(calls)

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "now": asyncio.get_running_loop().time(),
            "schedule": self.failure_schedule.state(),
            "failures": {node: site.failures.state() for node, site in self._sites.items()},
        }

    async def restore(self, state: dict[str, Any]) -> None:
        shift = asyncio.get_running_loop().time() - state["now"]
        for node, failures in state["failures"].items():
            self.site(node).failures.restore(failures)
        self.failure_schedule.restore(state["schedule"], state["failures"], shift)

    async def clear_parts(self) -> None:
        await self.drain_orphaned_calls()
        await super().clear_parts()
        for site in self._sites.values():
            site.context.parts.clear()
            site.persistent_objects.clear()

    async def restart_all_nodes(self) -> list[Any]:
        self._restarts += 1
        for node in self._sites:
            self._end_and_keep_records(node)
            self._sites[node].persistent_objects.clear()
        self.collectives = self._make_collectives()
        return [record for node in self._sites for record in self.take_records_of_dead(node)]

    def _make_collectives(self) -> InProcessCollectives:
        generation = (lambda rank: self.site(f"worker{rank}").generation) if self.cluster.may_fail else None
        return InProcessCollectives(generation)

    def _kill(self, node: str) -> None:
        self._end_and_keep_records(node)
        if self._sites[node].rank is not None:
            self.collectives.fail_collectives_awaiting(self._sites[node].rank)

    def _end_and_keep_records(self, node: str) -> None:
        self.records[node] = [*self.records.get(node, []), *self._sites[node].end()]
