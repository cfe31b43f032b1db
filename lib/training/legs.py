"""The legs of a run: stretches under one protocol, at whose ends the model goes over to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from lib.cluster.base import World
from lib.drivers.run.attempt import Attempt
from lib.drivers.run.leg import Leg
from lib.drivers.run.model_state import ModelState, left_by
from lib.drivers.run.plan import Plan
from lib.drivers.run.record import Finished
from lib.drivers.run.retries import carry_through
from lib.errors import BadOption
from lib.protocols.rule import Pair, Rule
from lib.training.ended_legs import EndedLegs
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
        past = EndedLegs(world, self.plan.cuts)
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
            marks=tuple(mark - place for mark in self.plan.marks if place < mark < end),
            cuts=self.plan.cuts and replace(self.plan.cuts, leg=len(legs)),
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
