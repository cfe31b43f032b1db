"""One of the tries that a run takes: what the tries before it left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lib.cluster.base import World
from lib.drivers.run.record import Record


@dataclass(slots=True)
class Attempt:
    """One of the tries that a run takes, and what the tries before it left."""

    number: int = 0
    started: float | None = None
    """When the training clock of the first one started."""
    issued: int = 0
    """Gradients that the tries before had issued at most, those before their cut included; what the cut holds, once it stands."""
    undone: int = 0
    """Gradients whose work the tries before took back."""
    lost: list[Record] = field(default_factory=list)
    """What workers wrote down that are no more."""
    own: bool = False
    """Whether the newest cut is this process's, be it that it went on from it: then its world has come beyond it."""
    left_out: bool = False
    """Whether a worker was not there for a while, so that its share of the data was left out."""

    def begin(self, world: World) -> float:
        """Start the training clock, unless it runs."""
        if self.started is None:
            world.begin()
            self.started = world.now()
        return self.started

    def stand(self, records: Iterable[Record]) -> None:
        """The try starts from a state with these records, which the tries before had come beyond."""
        held = issued(records)
        self.undone += max(0, self.issued - held)
        self.issued = held

    def save(self) -> dict[str, Any]:
        return {"number": self.number, "undone": self.undone, "lost": self.lost, "left_out": self.left_out}

    def load(self, state: dict[str, Any]) -> None:
        """Be the try that was cut, in another process."""
        self.number, self.undone, self.started = state["number"], state["undone"], state["start"]

    def next(self, records: Iterable[Record]) -> Attempt:
        """The next try, after this one left these records."""
        most = max(self.issued, issued([*records, *self.lost]))  # it may have ended before it stood
        return replace(self, number=self.number + 1, issued=most, lost=[], left_out=False)


def issued(records: Iterable[Record]) -> int:
    return sum(record.ledger["issued"] for record in records)
