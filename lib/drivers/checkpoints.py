"""The checkpoints of a run on a disk, and what the earlier attempts of the run left.

The folder of a run's checkpoints holds, of the stage under way,

    stage-0003-00000120/  a file of each part, which the part wrote itself, from whatever node it is on
    stage-0003            the newest checkpoint: the run and the world, and which parts belong to it, by their files' digests

A checkpoint counts once the second is there, which replaces the last one's; only then are the parts of that one deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.record import PartLog
from lib.errors import LockstepError
from lib.store import checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """One that is complete."""

    run: dict[str, Any]
    """The batch at which the run paused, and the state of the run and of the world."""
    parts: dict[str, str]
    """Each part that wrote something -> its file's digest."""
    folder: Path
    kinds: tuple[type, ...]
    """The dataclasses that it may hold, in addition to the package's own."""
    travels: bool = False
    """The run's clock runs while the run goes back: parts' states are sent to them, which takes its time."""

    def state(self, name: str) -> dict[str, Any]:
        return checkpoint.load(*self._file(name)) if name in self.parts else {}

    async def restore(self, name: str, part: Handle) -> None:
        if self.travels:
            await part.load(self.state(name))
        elif name in self.parts:
            await part.read_checkpoint(*self._file(name))

    def _file(self, name: str) -> tuple[Path, tuple[type, ...], str]:
        """As `checkpoint.load` takes it."""
        return self.folder / f"{name}.pt", self.kinds, self.parts[name]


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """When a run writes a checkpoint, and where each stage's newest one is."""

    every: int
    """Batches between two checkpoints; where workers share the data by rank, as many whole rounds as that needs."""
    folder: Path
    stage: int = 0
    resume: bool = False
    """Go on from the newest checkpoint, if there is one."""

    @property
    def manifest_path(self) -> Path:
        return self.folder / f"stage-{self.stage:04}.pt"

    def part_path(self, batch: int, name: str) -> Path:
        """Where a part writes its state at the pause before that batch."""
        return self._parts(batch) / f"{name}.pt"

    def commit(self, run: dict[str, Any], written: Iterable[str]) -> None:
        """Make this the newest checkpoint, once all these parts have been written."""
        parts = {}
        for name in written:
            if not (file := self.part_path(run["batch"], name)).exists():
                raise LockstepError(
                    f"{name} has written {file} on its node, and the driver does not find it: the folder of the reports "
                    "(LOCKSTEP_REPORTS) must be one that all machines of a run share"
                )
            parts[name] = checkpoint.stored_checksum(file)
        checkpoint.save(self.manifest_path, {"run": run, "parts": parts})
        self._delete_others(self._parts(run["batch"]))

    def find(self, kinds: tuple[type, ...] = ()) -> Checkpoint | None:
        """The newest checkpoint, if there is one; `kinds` are further dataclasses that it may hold."""
        if not self.manifest_path.exists():
            return None
        state = checkpoint.load(self.manifest_path, kinds)
        return Checkpoint(**state, folder=self._parts(state["run"]["batch"]), kinds=kinds)

    def delete_stage_checkpoint(self) -> None:
        """Delete the stage's checkpoint, as the stage is over and saved as a whole."""
        self.manifest_path.unlink(missing_ok=True)
        self._delete_others()

    def _parts(self, batch: int) -> Path:
        return self.folder / f"stage-{self.stage:04}-{batch:08}"

    def _delete_others(self, but: Path | None = None) -> None:
        for old in self.folder.glob(f"stage-{self.stage:04}-*"):
            if old != but:
                shutil.rmtree(old, ignore_errors=True)


@dataclass(slots=True)
class Attempt:
    """One attempt at a run, and what the attempts before it left."""

    number: int = 0
    started: float | None = None
    """When the training clock of the first one started."""
    issued: int = 0
    """Most gradients that the attempts before had issued, those before their checkpoint included; once this attempt has resumed,
    those that its checkpoint holds."""
    undone: int = 0
    """Gradients whose work the attempts before took back."""
    lost: list[PartLog] = field(default_factory=list)
    """Logs of parts that died."""
    current: bool = False
    """True once this process has written or loaded the newest checkpoint; then recovery keeps the running clock."""
    left_out: bool = False
    """Whether a worker was away for a while, so that its share of the data was left out."""

    def start_clock(self, world: World) -> float:
        """Start the training clock, unless it runs; when it started."""
        if self.started is None:
            world.start_failure_clock()
            self.started = world.now()
        return self.started

    def resume_from(self, issued: int = 0) -> None:
        """Begin with a state that holds so many gradients; those that the attempts before issued beyond it are undone."""
        self.undone += max(0, self.issued - issued)
        self.issued = issued

    def save(self) -> dict[str, Any]:
        return {"number": self.number, "undone": self.undone, "lost": self.lost, "left_out": self.left_out}

    def load_counters(self, state: dict[str, Any]) -> None:
        """Be the attempt that was saved, in another process."""
        self.number, self.undone, self.started = state["number"], state["undone"], state["start"]
        self.current = True

    def next_attempt(self, logs: Iterable[PartLog]) -> Attempt:
        """The attempt after this one, which left these logs."""
        most = max(self.issued, count_issued([*logs, *self.lost]))  # it may have ended before it resumed
        return replace(self, number=self.number + 1, issued=most, lost=[], left_out=False)


def count_issued(logs: Iterable[PartLog]) -> int:
    return sum(log.ledger["issued"] for log in logs)
