"""Consistent cuts of a running training, and going on from one.

At a cut the run pauses: workers take no batch beyond the mark, every step, push and mix that has begun comes to its end, and
then nothing is under way. What is left is each part's state between two steps (parameters, optimisers, rule state, gradients
that wait for their update, positions in the data and in the schedule, the record with its ledger) and the world's (its clock,
its queues' books, where each random stream stands). Saving it costs the run no time, the wait for the slowest worker does.

Guaranteed under virtual time: a run that was stopped after a cut and goes on from it equals the run that paused there and was
never stopped, to the bit, in its parameters and in its records. A run without cuts makes no pauses and is another run.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.cluster.base import Handle, World
from lib.drivers.bank import Gradient
from lib.drivers.plan import Plan
from lib.drivers.record import Finished, Record, Snapshot
from lib.errors import BadOption
from lib.protocols.rules import HostState, Push, ServerState
from lib.store import checkpoint

KINDS = (ServerState, HostState, Push, Gradient, Record, Snapshot)
"""The dataclasses that a cut may hold."""


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """When a run is cut, and where its cuts are kept: the newest alone."""

    every: int
    """Batches between two cuts; where workers share the data by rank, as many whole rounds as that needs."""
    folder: Path
    resume: bool = False
    """Go on from the newest cut in the folder, if there is one."""

    def marks(self, plan: Plan) -> list[int]:
        """The batches before which the run pauses; the last is its end."""
        by_rank = plan.data == "split" and plan.protocol.dense.family != "pipeline"
        step = -(-self.every // plan.workers) * plan.workers if by_rank else self.every
        return [*range(step, plan.batches, step), plan.batches]


async def carry_out(
    world: World, plan: Plan, workers: list[Handle], others: dict[str, Handle], silent: dict[str, Handle]
) -> Finished:
    """Start the clock, let the workers run to their end, stop it, and collect what every part but the silent wrote down."""
    cuts = plan.cuts
    marks = cuts.marks(plan) if cuts else [plan.batches]
    reporting = {**{f"worker{rank}": worker for rank, worker in enumerate(workers)}, **others}
    parts = {**reporting, **silent}
    start, world.keeps = world.now(), cuts is not None
    if cuts and cuts.resume and (found := checkpoint.latest(cuts.folder)) is not None:
        start, done = await _go_on(world, found, parts)
        marks = [mark for mark in marks if mark > done]
    for mark in marks:
        await asyncio.gather(*(worker.run(mark) for worker in workers))
        if mark < plan.batches:
            await _cut(world, cuts, mark, start, parts)
    end, usage = world.now(), world.usage()
    records = await asyncio.gather(*(part.report() for part in reporting.values()))
    return Finished(start, end, list(records), usage)


async def _cut(world: World, cuts: Cuts, mark: int, start: float, parts: dict[str, Handle]) -> None:
    here = world.cut()
    states = dict(zip(parts, await asyncio.gather(*(part.save() for part in parts.values())), strict=True))
    world.go_on(here)  # as if nobody had asked
    name = cuts.folder / f"cut-{mark:012}"
    checkpoint.save(name, {"run": {"mark": mark, "start": start, "now": world.now(), "world": here}, **states})
    for old in cuts.folder.glob("cut-*"):
        if old != name:
            shutil.rmtree(old, ignore_errors=True)


async def _go_on(world: World, folder: Path, parts: dict[str, Handle]) -> tuple[float, int]:
    """Put every part where it was; when the training clock had started, and the mark that was reached."""
    states: dict[str, Any] = checkpoint.load(folder, KINDS)
    run = states.pop("run")
    if states.keys() != parts.keys():
        raise BadOption(
            f"the checkpoint {folder} holds the parts {', '.join(sorted(states))}; this run has {', '.join(sorted(parts))}"
        )
    world.go_on(run["world"])
    shift = world.now() - run["now"]  # a wall clock does not stand still between two processes
    for state in states.values():
        if shift and "record" in state:
            state["record"].shift(shift)
    await asyncio.gather(*(part.load(states[name]) for name, part in parts.items()))
    world.go_on(run["world"])  # as if nothing had been sent
    return run["start"] + shift, run["mark"]
