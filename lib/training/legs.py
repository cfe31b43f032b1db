"""The legs of a run: stretches under one protocol, at whose ends the model goes over to the next.

Legs that are over are kept beside the cuts of the one under way: a run that was stopped goes on in the leg that it had come to.
The folder of a run's cuts holds, beside that of `lib.drivers.run.checkpoints`,

    done-0002  what the parts of a leg that is over had written down
    world      how many legs are over, and the world as the last of them left it

A leg is over once `world` says so; a run that is stopped before that goes on from the leg's last cut.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from lib.cluster.base import World
from lib.drivers.execution import carry_through
from lib.drivers.run.checkpoints import Attempt, CheckpointFolder
from lib.drivers.run.model_state import ModelState, left_by
from lib.drivers.run.plan import Leg, Plan
from lib.drivers.run.record import Finished
from lib.errors import BadOption
from lib.protocols.rule import Pair, Rule
from lib.store import checkpoint
from lib.training.schedule import Choice, Phase, Schedule
from lib.training.watch import Watch

DRIVERS = {
    "server": "lib.drivers.server_loop",
    "replica": "lib.drivers.replica_loop",
    "pipeline": "lib.drivers.pipeline_loop",
}
"""Family -> the module whose `drive` carries it out; by name, so that a run's key leaves the others' code out."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A whole run: phases over a stretch of the stream, evaluated on the way."""

    schedule: Schedule | Choice
    plan: Plan
    """What all legs have in common; its workers are all that there are."""
    model: ModelState | None = None
    """What it starts from."""
    keep: bool = False
    """The model at the end is wanted."""

    async def run(self, world: World) -> tuple[list[Leg], ModelState | None]:
        """All legs, and the model at the end if it is kept."""
        legs: list[Leg] = []
        model, place = self.model, self.plan.first
        past = EndedLegs(world, self.plan.checkpoints)
        await past.find()
        for phase in self.turns(legs):
            end = self.end(phase, place)
            if place >= end:
                continue
            if legs and self.schedule.restart and not past:
                await asyncio.sleep(self.schedule.restart)
            plan = self.leg(phase, place, end, legs)
            finished = past.recall() if past else await self.train(world, plan, model, past)
            place = reached(plan, finished)
            legs.append(Leg(replace(plan, last=place), finished))
            if place < self.last or self.keep:
                model = left_by(plan, finished.records, place)
        if not legs:
            raise BadOption(f"schedule: every phase ends before sample {place}, where this run begins")
        return legs, model if self.keep else None

    async def train(self, world: World, plan: Plan, model: ModelState | None, past: EndedLegs) -> Finished:
        """One leg, which is kept unless it is the last."""
        finished = await carry_through(world, plan, driver(plan.protocol), model and model.for_plan(plan))
        await world.clear()
        if reached(plan, finished) < self.last:
            past.keep(plan.leg, finished)
        return finished

    @property
    def last(self) -> int:
        """The sample before which it ends."""
        return self.plan.first + self.plan.samples

    def turns(self, legs: Sequence[Leg]) -> Iterator[Phase]:
        """The phases as they follow one another, given the legs so far whenever the next one is asked for."""
        if isinstance(self.schedule, Schedule):
            yield from self.schedule.phases
            return
        yield self.schedule.phases[0]
        while legs[-1].plan.last < self.last:
            yield self.schedule.phases[legs[-1].finished.watch.present]

    def watch(self, legs: Sequence[Leg]) -> Watch | None:
        """The choice as the last leg left it."""
        if isinstance(self.schedule, Schedule):
            return None
        return legs[-1].finished.watch if legs else Watch.of(self.schedule, self.plan.workload, self.plan.workers)

    def workers(self, phase: Phase) -> int:
        """Those that take part; a pipeline has one device, however many workers others have."""
        return 1 if phase.protocol.dense.family == "pipeline" else phase.workers or self.plan.workers

    def end(self, phase: Phase, place: int) -> int:
        return min(self.last, phase.last(phase.workload(self.plan.workload), place, self.workers(phase)))

    def leg(self, phase: Phase, place: int, end: int, legs: Sequence[Leg]) -> Plan:
        """A phase from that place of the stream to its end there, unless it is over before."""
        return replace(
            self.plan,
            workload=phase.workload(self.plan.workload),
            protocol=phase.protocol,
            workers=self.workers(phase),
            first=place,
            last=end,
            seconds=phase.seconds,
            watch=self.watch(legs),
            leg=len(legs),
            eval_at=tuple(samples - place for samples in self.plan.eval_at if place < samples < end),
            checkpoints=self.plan.checkpoints and replace(self.plan.checkpoints, leg=len(legs)),
            attempt=Attempt(),
        )


def driver(protocol: Rule | Pair) -> Callable[..., Awaitable[Finished]]:
    """What carries a protocol out."""
    return import_module(DRIVERS[protocol.dense.family]).drive


def reached(plan: Plan, finished: Finished) -> int:
    """The sample that nobody has taken yet."""
    if not plan.open:
        return plan.last
    taken = 1 + max((index for record in finished.records for index in record.taken), default=-1)
    return min(plan.last, plan.first + taken * plan.workload.batch_size)


class EndedLegs:
    """The legs that a stopped run had ended, to be gone through again without training; true while there are any."""

    def __init__(self, world: World, checkpoints: CheckpointFolder | None):
        self._world, self._checkpoints = world, checkpoints
        self._over: deque[Finished] = deque()
        world.checkpoints = checkpoints is not None

    async def find(self) -> None:
        """Go back to where the last of them left the world, if the run is to be resumed."""
        if not (self._checkpoints and self._checkpoints.resume):
            return
        for unfinished in self._checkpoints.folder.glob(".*"):  # saves that were interrupted
            unfinished.unlink()
        if not self._file("world").exists():
            return
        world = checkpoint.load(self._file("world"))
        await self._world.restore(world["state"])
        for leg in range(world["legs"]):
            self._over.append(checkpoint.load(self._file(f"done-{leg:04}"))["finished"])

    def __bool__(self) -> bool:
        return bool(self._over)

    def recall(self) -> Finished:
        """The next leg."""
        return self._over.popleft()

    def keep(self, leg: int, finished: Finished) -> None:
        """A leg is over; nothing is under way."""
        if self._checkpoints is None:
            return
        checkpoint.save(self._file(f"done-{leg:04}"), {"finished": finished})
        checkpoint.save(self._file("world"), {"legs": leg + 1, "state": self._world.state()})
        replace(self._checkpoints, leg=leg).drop()

    def _file(self, name: str) -> Path:
        return self._checkpoints.folder / f"{name}.pt"
