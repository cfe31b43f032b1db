"""When a run is cut, and where its cuts are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
        return self.folder / f"leg-{self.leg:04}.safetensors"
