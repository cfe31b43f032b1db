"""One part of a run, where protocols follow one another."""

from __future__ import annotations

from dataclasses import dataclass

from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Finished


@dataclass(frozen=True, slots=True)
class Leg:
    """What was planned, and what became of it."""

    plan: Plan
    finished: Finished
