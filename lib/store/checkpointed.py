"""Objects that declare which of their attributes a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from lib.store import checkpoint


class Checkpointed:
    """An object with a state between two steps."""

    in_checkpoint: ClassVar[tuple[str, ...]] = ()
    """Attributes that a checkpoint holds: plain data, or objects with `dump()` and `restore(state)`, also in a dictionary."""

    def dump(self) -> dict[str, Any]:
        return {name.lstrip("_"): _dumped(getattr(self, name)) for name in self.in_checkpoint}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.in_checkpoint:
            setattr(self, name, _restored(getattr(self, name), state[name.lstrip("_")]))


class Part(Checkpointed):
    """A part of a run, which a cluster hosts, and which writes and reads its own checkpoint where it is hosted."""

    async def save(self) -> dict[str, Any]:
        """The state, at a moment when nothing is under way."""
        return self.dump()

    async def load(self, state: dict[str, Any]) -> None:
        self.restore(state)

    async def write_checkpoint(self, file: Path) -> Mapping[str, int] | None:
        """Write the state; the ledger of the part's log, if it has one. None: there is nothing to write."""
        if not (state := await self.save()):
            return None
        checkpoint.save(file, state)
        return self.record.ledger if hasattr(self, "record") else {}

    async def read_checkpoint(self, file: Path, kinds: Iterable[type], digest: str) -> None:
        """Go on from what `write_checkpoint` wrote; `kinds` and `digest` as in `checkpoint.load`."""
        await self.load(checkpoint.load(file, kinds, digest))


def _dumped(value: Any) -> Any:
    if hasattr(value, "restore"):  # numpy's arrays have a `dump` of another meaning
        return value.dump()
    if type(value) is dict:
        return {key: _dumped(each) for key, each in value.items()}
    return value


def _restored(value: Any, state: Any) -> Any:
    """The same object with its own state, where it has one; else the state."""
    if hasattr(value, "restore"):
        value.restore(state)
        return value
    if type(value) is dict and any(hasattr(each, "restore") for each in value.values()):
        return {key: _restored(each, state[key]) for key, each in value.items()}
    return state
