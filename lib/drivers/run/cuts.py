"""What a run goes back to: its cuts as they lie on a disk, and what the tries before this one left.

The folder of a run's cuts holds, of the leg under way,

    leg-0003-00000120/  a file of each part, which the part wrote itself, from whatever node it stands on
    leg-0003            the newest cut: the run and the world, and which parts belong to it, by their files' digests

A cut counts once the second is there, which replaces the last one's; only then do the parts of that one go.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.run.record import Record
from lib.errors import LockstepError
from lib.store import checkpoint


@dataclass(frozen=True)
class Cut:
    """One that is complete."""

    run: dict[str, Any]
    """The mark that was reached, and how the run and the world stood."""
    parts: dict[str, str]
    """Each part that wrote something -> its file's digest."""
    layout: tuple[str, ...]
    """All parts that the run had, those included that were dead, or had nothing to write."""
    folder: Path
    kinds: tuple[type, ...]
    """The dataclasses that it may hold."""
    travels: bool = False
    """A run goes back to it while its clock runs: what parts held is sent to them, which takes its time."""

    def file(self, name: str) -> tuple[Path, str, tuple[type, ...]]:
        """Where a part's state is, as `checkpoint.load` takes it: with the dataclasses that it may hold, and its digest."""
        return _file(self.folder, name), self.kinds, self.parts[name]

    def state(self, name: str) -> dict[str, Any]:
        return checkpoint.load(*self.file(name)) if name in self.parts else {}

    async def give(self, name: str, part: Handle) -> None:
        """Let a part be as it was."""
        if self.travels:
            await part.load(self.state(name))
        elif name in self.parts:
            await part.recall(*self.file(name))


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """When a run is cut, and where each leg's newest cut is kept."""

    every: int
    """Batches between two cuts; where workers share the data by rank, as many whole rounds as that needs."""
    folder: Path
    leg: int = 0
    resume: bool = False
    """Go on from the newest cut, if there is one."""

    @property
    def newest(self) -> Path:
        return _file(self.folder, f"leg-{self.leg:04}")

    def place(self, mark: int, name: str) -> Path:
        """Where a part writes itself."""
        return _file(self._parts(mark), name)

    def commit(self, run: dict[str, Any], there: Iterable[str], layout: Collection[str]) -> None:
        """All parts that are there have been written: from here on this is the newest cut."""
        parts = {}
        for name in there:
            if not (file := self.place(run["mark"], name)).exists():
                raise LockstepError(
                    f"{name} has written {file} where it stands, and it is not to be found from here: the folder of the reports "
                    "(LOCKSTEP_REPORTS) must be one that all machines of a run share"
                )
            parts[name] = checkpoint.digest_of(file)
        checkpoint.save(self.newest, {"run": run, "parts": parts, "layout": tuple(sorted(layout))})
        self._tidy(self._parts(run["mark"]))

    def find(self, kinds: tuple[type, ...]) -> Cut | None:
        """The newest cut, if there is one; `kinds` are the dataclasses that it may hold."""
        if not self.newest.exists():
            return None
        kept = checkpoint.load(self.newest, kinds)
        return Cut(**kept, folder=self._parts(kept["run"]["mark"]), kinds=kinds)

    def drop(self) -> None:
        """The leg is over, and kept as a whole."""
        self.newest.unlink(missing_ok=True)
        self._tidy()

    def _parts(self, mark: int) -> Path:
        return self.folder / f"leg-{self.leg:04}-{mark:08}"

    def _tidy(self, but: Path | None = None) -> None:
        for old in self.folder.glob(f"leg-{self.leg:04}-*"):
            if old != but:
                shutil.rmtree(old, ignore_errors=True)


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
    """What parts wrote down that are no more."""
    own: bool = False
    """Whether the newest cut is this process's, be it that it went on from it: then its world has come beyond it."""
    left_out: bool = False
    """Whether a worker was not there for a while, so that its share of the data was left out."""

    def begin(self, world: World) -> float:
        """Start the training clock, unless it runs."""
        if self.started is None:
            world.start_clock()
            self.started = world.now()
        return self.started

    def stand(self, held: int = 0) -> None:
        """The try starts from a state with so many gradients, which the tries before had come beyond."""
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


def role(name: str) -> str:
    """Of a part: "worker" of "worker3"."""
    return name.rstrip("0123456789")


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"
