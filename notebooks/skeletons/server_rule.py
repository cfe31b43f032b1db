"""A server rule to copy: what becomes of a gradient when it comes to the servers.

The module's docstring names the paper, the rule in one sentence, what it guarantees, and where it departs from the paper.
"""

from dataclasses import dataclass
from typing import ClassVar

from lib import Apply, Drop, ServerRule
from lib.options.checked import Count


@dataclass(frozen=True, kw_only=True)
class Mine(ServerRule):
    """Apply a gradient at arrival, unless it is older than `limit` updates."""

    name: ClassVar = "mine"
    cite: ClassVar = "none: a skeleton"
    # Promises; the tests measure them once the rule is in `lib.protocols.ALL`.
    blocks: ClassVar = False
    """Whether a worker may have to wait for others."""
    drops: ClassVar = True
    """Whether a gradient may be thrown away."""
    data: ClassVar = "queue"
    """How workers share the batches: "split" by rank, or from one "queue"."""

    limit: Count = 8
    """Updates that may come between reading the parameters and the gradient's arrival."""

    def on_push(self, state, push):
        # Count it first; then decide about each gradient once, now or later, what becomes of it.
        if state.step - push.read > self.limit:
            return state.drop(push), (Drop((push,)),)
        return state.receive(push).release(), (Apply((push,), (1.0,), 1),)
