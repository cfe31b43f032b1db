"""Slowdowns of real clusters, fitted to public traces, from `presets.yaml`; `python -m data_prep trace` fits one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lib.cluster.slowdowns.base import Slowdown
from lib.errors import unknown
from lib.options.checked import Checked
from lib.options.document import load


@dataclass(frozen=True, kw_only=True)
class Preset(Checked):
    """A fitted slowdown and where it comes from."""

    slowdown: Slowdown
    source: str
    """The trace: who recorded what, where it is published."""
    carries: str
    """How far it is from what it was not fitted to. A distance (KS) is the largest one of two distributions of the factor."""


@cache
def presets() -> Mapping[str, Preset]:
    """All there are, by name."""
    document = load(Path(__file__).with_suffix(".yaml"))
    return {name: document.read(Preset, name) for name in document.data}


def get(name: str, scale: float = 1.0) -> Slowdown:
    """The preset of that name, in a time that runs `scale` times as long as the trace's."""
    if name not in presets():
        raise unknown("slowdown preset", name, presets())
    slowdown = presets()[name].slowdown
    return slowdown if scale == 1.0 else slowdown.scaled(scale)
