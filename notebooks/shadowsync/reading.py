"""Trainers that make their own batches, and trainers that get them from a reader service (Sec. 3.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from notebooks.shadowsync import tasks

TRAINERS = 4


def job(milliseconds: float, readers: int, seed: int, *, each: int) -> dict[str, Any]:
    """A timing run of S-EASGD in which a sample costs a core so many milliseconds to read, a reader's or, without any, the
    trainer's; either way a batch is made ahead for each thread."""
    made = tasks.speed_job(tasks.rule("s-easgd"), TRAINERS, seed, each=each)
    there = made["cluster"]
    slow = {role: replace(getattr(there, role), reading=milliseconds / 1e3) for role in ("worker", "server")}
    return made | {"cluster": replace(there, **slow), "reader_nodes": readers, "prefetch": 1}
