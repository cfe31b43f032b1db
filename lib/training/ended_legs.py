"""Legs that are over, kept beside the cuts of the one under way: a run that was stopped goes on in the leg that it had come to.

The folder of a run's cuts holds

    done-0002  what the parts of a leg that is over had written down
    world      how many legs are over, and the world as the last of them left it
    leg-0003   the newest cut of the leg under way

A leg is over once `world` says so; a run that is stopped before that goes on from the leg's last cut.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

from lib.cluster.base import World
from lib.cluster.spec import Usage
from lib.drivers.run.cut import KINDS
from lib.drivers.run.cuts import Cuts
from lib.drivers.run.record import Finished
from lib.store import checkpoint
from lib.switching.controller import Automatic, AutomaticState, Mode
from lib.training.watch import Decision, Watch

LEG = (*KINDS, Finished, Usage, Watch, Decision, Automatic, AutomaticState, Mode)
"""The dataclasses that a leg may leave."""


class EndedLegs:
    """The legs that a stopped run had ended, to be gone through again without training; true while there are any."""

    def __init__(self, world: World, cuts: Cuts | None):
        self._world, self._cuts = world, cuts
        self._over: deque[Finished] = deque()
        world.keeps = cuts is not None

    async def find(self) -> None:
        """Go back to where the last of them left the world, if the run is to be resumed."""
        if not (self._cuts and self._cuts.resume):
            return
        for unfinished in self._cuts.folder.glob(".*"):  # saves that were interrupted
            unfinished.unlink()
        if not self._file("world").exists():
            return
        world = checkpoint.load(self._file("world"))
        await self._world.go_on(world["state"])
        for leg in range(world["legs"]):
            self._over.append(checkpoint.load(self._file(f"done-{leg:04}"), LEG)["finished"])

    def __bool__(self) -> bool:
        return bool(self._over)

    def recall(self) -> Finished:
        """The next leg."""
        return self._over.popleft()

    def keep(self, leg: int, finished: Finished) -> None:
        """A leg is over; nothing is under way."""
        if self._cuts is None:
            return
        checkpoint.save(self._file(f"done-{leg:04}"), {"finished": finished})
        checkpoint.save(self._file("world"), {"legs": leg + 1, "state": self._world.cut()})
        replace(self._cuts, leg=leg).newest.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._cuts.folder / f"{name}.safetensors"
