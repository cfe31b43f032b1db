"""What a server answers when a worker's step begins, and what it remembers of it until its gradient is in the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lib.drivers.servers.shard import Gradient, Read
from lib.protocols.server_rule import Apply


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a worker gets before a step."""

    weightless: ClassVar = ("token", "waited", "lead")
    token: int
    waited: float
    """Seconds at the gate."""
    dense: np.ndarray | None
    rows: dict[str, Any]
    """Table -> the rows, as their codec sends them."""
    lead: int = 0
    """Steps by which the worker was ahead of the slowest one, where its rule lets it keep a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What is decided and not yet in the store."""

    decision: Apply
    gradients: list[Gradient]
    step: int
    """Updates decided before it."""
    worker: int
    """Whose call set it off."""
    done: asyncio.Future


@dataclass(slots=True, eq=False)
class Started:
    """A step whose gradient is to come."""

    token: int
    lead: int = 0
    read: Read | None = None
    """What it was computed from, once that has been read."""
