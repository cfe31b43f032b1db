"""Threads of a worker, which may have to stand still while it mixes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Many at once, or one alone: who is to be alone waits for those inside, and whoever comes later waits for it."""

    def __init__(self):
        self._closed = asyncio.Lock()
        self._left = asyncio.Event()
        self._inside = 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._closed:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._closed:
            while self._inside:
                self._left.clear()
                await self._left.wait()
            yield
