"""Threads of a worker, which may have to stand still while it mixes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Up to so many at once, or one alone; in the order of asking."""

    def __init__(self, permits: int):
        self._permits = permits
        self.shared = asyncio.Semaphore(permits)
        self._lone = asyncio.Lock()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._lone:
            held = 0
            try:
                while held < self._permits:
                    await self.shared.acquire()
                    held += 1
                yield
            finally:
                for _ in range(held):
                    self.shared.release()
