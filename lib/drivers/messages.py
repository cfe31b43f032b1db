"""What workers and parameter servers send each other, and what a server remembers of a step in between."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lib.protocols.server_rule import Apply
from lib.store.wire import Bags


@dataclass(frozen=True, slots=True)
class PullReply:
    """The parameters for one step of a worker."""

    weightless: ClassVar = ("token", "waited", "lead")
    token: int
    waited: float
    """Seconds at the rule's gate."""
    dense: np.ndarray | None
    rows: dict[str, Any]
    """Table -> the rows; as their codec sends them until a client has decoded them."""
    lead: int = 0
    """Steps by which the worker was ahead of the slowest one, where its rule has a cache."""


@dataclass(slots=True)
class StepInput:
    """What a step that has started is computed from; it stays at the server."""

    token: int
    lead: int = 0
    version: int = 0
    """Updates that were in the store when it was read."""
    dense: np.ndarray | None = None
    rows: dict[str, np.ndarray] = field(default_factory=dict)
    """Dense values and rows as they were read, where the rule compensates gradients for later updates."""
    bags: dict[str, Bags] = field(default_factory=dict)
    """The sums that were asked for, of tables whose rows the server sums."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a worker sends after a step."""

    weightless: ClassVar = ("worker", "token", "batch", "samples", "void", "source")
    worker: int
    token: int
    batch: int
    samples: int
    dense: np.ndarray | None = None
    rows: dict[str, tuple[np.ndarray | None, Any]] = field(default_factory=dict)
    """Table -> distinct ids, and their rows' gradients as the codec sends them; no ids where the server summed the rows."""
    void: str = ""
    """Why it has no arrays, as the ledger counts it: "dropped", since the run skips batches that are not finite; "abandoned",
    since the embedding worker that held the batch's ids is dead."""
    source: StepInput | None = None
    """What it was computed from; the server adds it on arrival."""


@dataclass(slots=True, eq=False)
class Update:
    """An update that is decided and not yet in the store."""

    decision: Apply
    gradients: list[Gradient]
    step: int
    """Updates decided before it."""
    worker: int
    """The worker whose message led to it."""
    done: asyncio.Future
    version: int = 0
    """Updates that were in the store when it began; this and the rest are known once it is done."""
    norm: float = math.nan
    """L2 norm of its dense gradient; NaN where it had none."""
    decayed: int = 0
    """Rows' gradients that were given less weight than they came with."""
