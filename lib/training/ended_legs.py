"""Legs that are over, kept beside the cuts of the one under way: a run that was stopped goes on in the leg that it had come to.

The folder of a run's cuts holds

    done-0002       what the parts of a leg that is over had written down
    world           how many legs are over, and the world as the last of them left it
    leg-0003/cut-*  the newest cut of the leg under way

A leg is over once `world` says so; a run that is stopped before that goes on from the leg's last cut.
"""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import replace

from lib.cluster.base import World
from lib.cluster.spec import Usage
from lib.drivers.cut import KINDS, Cuts
from lib.drivers.record import Finished
from lib.store import checkpoint
from lib.switching.controller import Automatic, AutomaticState, Mode
from lib.training.watch import Decision, Watch

LEG = (*KINDS, Finished, Usage, Watch, Decision, Automatic, AutomaticState, Mode)
"""The dataclasses that a leg may leave."""


class EndedLegs:
    """The legs that a stopped run had ended, to be gone through again without training; true while there are any."""

    def __init__(self, world: World, cuts: Cuts | None):
        self._world, self._cuts = world, cuts
        self._over: deque[tuple[float, Finished]] = deque()
        world.keeps = cuts is not None
        if cuts and cuts.resume and (cuts.folder / "world").is_dir():
            self._return()

    def __bool__(self) -> bool:
        return bool(self._over)

    def now(self) -> float:
        """When the next leg begins, or began."""
        return self._over[0][0] if self._over else self._world.now()

    def recall(self) -> Finished:
        """The next leg."""
        return self._over.popleft()[1]

    def keep(self, leg: int, began: float, finished: Finished) -> None:
        """A leg is over; nothing is under way."""
        if self._cuts is None:
            return
        folder = self._cuts.folder
        checkpoint.save(folder / f"done-{leg:04}", {"leg": {"began": began, "finished": finished}})
        world = {"legs": leg + 1, "now": self._world.now(), "state": self._world.cut()}
        checkpoint.save(folder / "world", {"world": world})
        shutil.rmtree(self._cuts.of(leg).folder, ignore_errors=True)

    def _return(self) -> None:
        folder = self._cuts.folder
        world = checkpoint.load(folder / "world")["world"]
        self._world.go_on(world["state"])
        shift = self._world.now() - world["now"]  # a wall clock does not stand still between two processes
        for leg in range(world["legs"]):
            kept = checkpoint.load(folder / f"done-{leg:04}", LEG)["leg"]
            self._over.append((kept["began"] + shift, _shifted(kept["finished"], shift)))


def _shifted(finished: Finished, seconds: float) -> Finished:
    if not seconds:
        return finished
    for record in finished.records:
        record.shift(seconds)
    watch = finished.watch and finished.watch.shifted(seconds)
    return replace(finished, start=finished.start + seconds, end=finished.end + seconds, watch=watch)
