"""Nodes that may die: what ends with them, what they leave, and when they are there again. The same in every world."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NoReturn

from lib.cluster.faults.failures import NodeFailures, Window, window_of
from lib.errors import MemberLost, NodeLost, first_cause


class NodeContext:
    """A node from its start to its death, in this process: its parts, and the calls that run on it."""

    def __init__(self, node: str):
        self.node = node
        self.over = False
        self.parts: list[Any] = []
        self.calls: dict[asyncio.Task, None] = {}
        """In the order in which they began: so they end, and those who asked hear of it."""

    def call(self, coroutine: Coroutine) -> Coroutine:
        """Begin a call, which ends with this node, not with the one that it came from; what it came to is to be awaited. So is
        that the node is dead already: who makes several calls hears of it where it waits for them all."""
        if self.over:
            coroutine.close()
            return self._lost()
        task = asyncio.get_running_loop().create_task(coroutine)
        self.calls[task] = None
        task.add_done_callback(self.calls.pop)
        return self._outcome(task)

    async def _lost(self) -> NoReturn:
        raise NodeLost(self.node)

    async def _outcome(self, call: asyncio.Task) -> Any:
        """What a call came to; that the node was lost. Who is itself to end does so, though the node may be over as well."""
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if self.over and not asyncio.current_task().cancelling():
                raise NodeLost(self.node) from None
            call.add_done_callback(_let_go)
            raise

    def end(self) -> list[Any]:
        """Nothing more happens here; what the parts have written down stays to be read."""
        self.over = True
        for call in list(self.calls):
            call.cancel()
        return [part.record for part in self.parts if hasattr(part, "record")]


def _let_go(call: asyncio.Task) -> None:
    """Nobody hears any more that a call met a dead node; all else that goes wrong is still an error."""
    error = None if call.cancelled() else call.exception()
    if error is not None and not isinstance(first_cause(error), (NodeLost, MemberLost)):
        call.get_loop().call_exception_handler({"message": "a call failed that nobody waited for", "exception": error})


class Health:
    """How the computations of one node get on, beside its slowdown."""

    def __init__(self, plan: NodeFailures, batches: int = 0):
        """`batches`: what the node had computed in the generations before."""
        self._plan = plan
        self._degradation = self._plan.degradation()
        self.batches = batches
        self._begun: list[Window] = []
        """What began with a batch."""

    def __bool__(self) -> bool:
        """Whether it can be ill at all."""
        return self._degradation is not None

    def stretch(self, start: float, seconds: float) -> float:
        """How long a computation takes that begins so long after the training."""
        return self._degradation.stretch(start, seconds) if self._degradation else seconds

    def dies_after(self, batches: int) -> bool:
        return any(self._plan.kills(failure) for failure in self._plan.after_batch(batches))

    def computed(self, now: float) -> int:
        """The node has computed one more batch; how many it has."""
        self.batches += 1
        for failure in self._plan.after_batch(self.batches):
            if not self._plan.kills(failure):
                self._begin(window_of(failure, now))
        return self.batches

    def save(self) -> dict[str, Any]:
        return {"batches": self.batches, "begun": [tuple(window) for window in self._begun]}

    def load(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]
        for window in state["begun"]:
            self._begin(Window(*window))

    def _begin(self, window: Window) -> None:
        self._begun.append(window)
        self._degradation.begin(window)


class FailureSchedule:
    """Carries out who dies when, and says when a node is there again."""

    def __init__(self, plan_of: Callable[[str], NodeFailures], kill: Callable[[str], None]):
        """`plan_of`: what is to befall a node; `kill` ends one at once. Both are called with its name."""
        self._plan_of, self._kill = plan_of, kill
        self.running = False
        self.start = 0.0
        """When the training started, on the loop's clock."""
        self._plans: dict[str, NodeFailures] = {}
        self._deaths: dict[str, Iterator[Window]] = {}
        self._next: dict[str, Window] = {}
        """The first death that lies ahead of each node,"""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """and what strikes then, while the node is alive."""
        self._returns: dict[str, float] = {}
        """Dead nodes, and when they are there again."""

    def start_clock(self, nodes: Iterable[str]) -> None:
        """The training starts now, unless it has; these nodes are there."""
        if not self.running:
            self.running, self.start = True, asyncio.get_running_loop().time()
        for node in nodes:
            plan = self._plan_of(node)
            if plan.failures and node not in self._plans:
                self._plans[node], self._deaths[node] = plan, plan.deaths()
            if node in self._plans and node not in self._timers:
                self._await_next(node)

    def computed(self, node: str, batches: int) -> None:
        """A worker has computed that many batches."""
        plan = self._plans.get(node)
        for failure in plan.after_batch(batches) if plan else ():
            if plan.kills(failure):
                self._strike(node, math.inf if failure.lasts is None else failure.lasts)

    def is_dead(self, node: str) -> bool:
        return node in self._returns

    async def wait_until_up(self, node: str) -> bool:
        """Wait until a node is there; False if it never will be."""
        loop = asyncio.get_running_loop()
        if node not in self._returns:
            return node in self._plans
        when = self._returns[node]
        if when == math.inf:
            return False
        await asyncio.sleep(max(0.0, when - loop.time()))
        if self._returns.pop(node, None) is not None:
            self._await_next(node)
        return True

    def save(self) -> dict[str, Any]:
        return {"start": self.start, "returns": dict(self._returns), "awaited": list(self._timers)}

    def load(self, state: dict[str, Any], nodes: Iterable[str], shift: float) -> None:
        """Be as when that was saved, with these nodes; a loop's clock may say so many seconds more by now."""
        self.running, self.start = True, state["start"] + shift
        self._returns = {node: when + shift for node, when in state["returns"].items()}
        self._plans.clear()
        self._next.clear()
        # Deaths of the same moment come in the order in which they were awaited.
        self.start_clock([*state["awaited"], *nodes])

    def pause(self, *nodes: str) -> None:
        """Nothing strikes these nodes, or any, until they begin again; what would have struck meanwhile, never does."""
        for node in nodes or list(self._timers):
            if timer := self._timers.pop(node, None):
                timer.cancel()

    def _await_next(self, node: str) -> None:
        """Let the first death that lies ahead strike, where the node is alive."""
        if node in self._returns:
            return
        loop = asyncio.get_running_loop()
        window = self._next.pop(node, None) or next(self._deaths[node], None)
        while window is not None and self.start + window.start < loop.time():  # when it was dead, or before a cut
            window = next(self._deaths[node], None)
        if window is not None:
            self._next[node] = window
            lasts = window.end - window.start
            self._timers[node] = loop.call_at(self.start + window.start, self._strike, node, lasts)

    def _strike(self, node: str, lasts: float) -> None:
        if timer := self._timers.pop(node, None):
            timer.cancel()
        if node not in self._returns:
            self._returns[node] = asyncio.get_running_loop().time() + lasts
            self._kill(node)
