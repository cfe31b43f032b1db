"""An event loop in virtual time: when nothing is ready, the clock jumps to the next timer.

It runs asyncio's own tasks, locks, events, conditions and queues, and nothing that needs the outside world. One thread, one
heap ordered by (time, order of scheduling): the same program gives the same run to the bit.
"""

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

from lib.errors import Deadlock


class _Callback(partial):
    """A callback that may be cancelled. The loop asks each whether it is: `bool()` says no without a frame of Python."""

    cancelled = staticmethod(bool)

    def cancel(self) -> None:
        self.cancelled = lambda: True


class VirtualLoop(asyncio.AbstractEventLoop):
    """`time()` is virtual. A loop that can never wake again raises `Deadlock` with the names of what waits."""

    get_debug = is_closed = staticmethod(bool)  # False; asyncio asks for each future

    def __init__(self):
        self.now = 0.0
        self._ready: deque[_Callback | asyncio.Future] = deque()
        """What is to be called, and futures of sleeps that are over."""
        self._timers: list[tuple[float, int, _Callback | asyncio.Future]] = []
        self._scheduled = 0
        self._error: BaseException | None = None
        self._interrupted = False
        self.events = 0

    def time(self) -> float:
        return self.now

    def set_time(self, now: float) -> None:
        """Set the clock, also backwards; no timer may be waited for."""
        if not all(callback.cancelled() for _, _, callback in self._timers):
            raise RuntimeError("time cannot be set while timers are waited for")
        self._timers.clear()
        self.now = now

    def call_soon(self, callback, *args, context=None) -> _Callback:
        callback = _Callback((contextvars.copy_context() if context is None else context).run, callback, *args)
        self._ready.append(callback)
        return callback

    def call_at(self, when, callback, *args, context=None) -> _Callback:
        callback = _Callback((contextvars.copy_context() if context is None else context).run, callback, *args)
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._scheduled, callback))
        return callback

    def call_later(self, delay, callback, *args, context=None) -> _Callback:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def sleep_until(self, when: float) -> asyncio.Future:
        """Done at that time."""
        future = asyncio.Future(loop=self)
        self._scheduled += 1
        heapq.heappush(self._timers, (when, self._scheduled, future))
        return future

    def create_future(self) -> asyncio.Future:
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None) -> asyncio.Task:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._error = self._error or context.get("exception") or RuntimeError(context.get("message"))

    def interrupt(self) -> None:
        """Stop as soon as the running callback ends; safe to call from another thread."""
        self._interrupted = True

    def run_until_complete(self, main: Coroutine) -> Any:
        events._set_running_loop(self)
        try:
            task = self.create_task(main, name="main")
            try:
                self._run(task)
            finally:
                self._cancel_the_rest()
            return task.result()
        finally:
            events._set_running_loop(None)

    def _run(self, main: asyncio.Task) -> None:
        ready, timers = self._ready, self._timers
        while not main.done():
            if self._interrupted:
                raise KeyboardInterrupt
            if self._error is not None:
                raise self._error
            if not ready:
                while timers and timers[0][2].cancelled():  # a cancelled timer moves no clock
                    heapq.heappop(timers)
                if not timers:
                    raise Deadlock(self._who_waits(main))
                self.now, _, callback = heapq.heappop(timers)
                ready.append(callback)
                while timers and timers[0][0] == self.now:
                    ready.append(heapq.heappop(timers)[2])
            self.events += len(ready)
            for _ in range(len(ready)):
                callback = ready.popleft()
                if callback.cancelled():
                    continue
                if type(callback) is asyncio.Future:
                    callback.set_result(None)
                else:
                    callback()

    def _cancel_the_rest(self) -> None:
        rest = [task for task in asyncio.all_tasks(self) if not task.done()]
        for task in rest:
            task.cancel()
        # A task that is cancelled may only clean up: its timers are not waited for.
        while self._ready:
            callback = self._ready.popleft()
            if isinstance(callback, _Callback) and not callback.cancelled():
                callback()
        self._timers.clear()

    def _who_waits(self, main: asyncio.Task) -> str:
        tasks = asyncio.all_tasks(self)
        waiting = sorted(_where(task) for task in (tasks - {main} or tasks))
        shown = "\n  ".join(waiting[:20]) + (f"\n  and {len(waiting) - 20} more" if len(waiting) > 20 else "")
        return (
            f"deadlock at virtual time {self.now:.6f} s: nothing is ready and no timer is set; waiting are\n  {shown}"
        )


def _where(task: asyncio.Task) -> str:
    """A task's name and the coroutines that it is in, outermost first."""
    chain, awaited = [], task.get_coro()
    while hasattr(awaited, "cr_code"):
        chain.append(f"{awaited.cr_code.co_qualname}:{awaited.cr_frame.f_lineno}" if awaited.cr_frame else "?")
        awaited = awaited.cr_await
    return f"{task.get_name()} in {' > '.join(chain)}"
