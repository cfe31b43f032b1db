"""The stages of a run: stretches under one protocol, at whose ends the next protocol's parts begin with the model.

Finished stages are saved beside the checkpoints of the current one, so a run that was stopped resumes in the stage that it had
reached. In addition to the files of `lib.drivers.checkpoints`, the folder of a run's checkpoints holds

    done-0002  what the parts of a finished stage wrote down
    world      how many stages are finished, and the world's state after the last of them

A stage is finished once `world` says so; a run that is stopped before that resumes from the stage's last checkpoint.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lib.cluster.base import World
from lib.drivers import pipeline_loop, replica_loop, server_loop
from lib.drivers.checkpoints import Attempt, CheckpointFolder
from lib.drivers.execution import carry_through
from lib.drivers.model_state import ModelState, model_of
from lib.drivers.plan import Plan, Stage
from lib.drivers.record import Finished
from lib.errors import BadOption
from lib.store import checkpoint
from lib.training.controller import Mode, Watch
from lib.training.schedule import Choice, Phase, Schedule

DRIVERS = {"server": server_loop.drive, "replica": replica_loop.drive, "pipeline": pipeline_loop.drive}
"""Family of the dense rule -> what carries a protocol out."""


@dataclass(frozen=True, kw_only=True)
class StagedRun:
    """A whole run: phases over a stretch of the stream, evaluated on the way."""

    schedule: Schedule | Choice
    plan: Plan
    """What all stages have in common, with all workers of the run."""
    model: ModelState | None = None
    """The model at the start; None: a fresh one."""
    keep: bool = False
    """Whether the model at the end is wanted."""

    async def run(self, world: World) -> tuple[list[Stage], ModelState | None]:
        """Carry out all stages; return them, and the model at the end if it is wanted."""
        stages: list[Stage] = []
        model, place = self.model, self.plan.first
        finished_stages = FinishedStages(world, self.plan.checkpoints)
        await finished_stages.load()
        for phase in self.phases(stages):
            end = min(self.last, phase.last(phase.workload(self.plan.workload), place, self.workers(phase)))
            if place >= end:
                continue
            if stages and self.schedule.restart and not finished_stages.left:
                await asyncio.sleep(self.schedule.restart)
            plan = self.stage_plan(phase, place, end, stages)
            if finished_stages.left:
                finished = finished_stages.left.popleft()
            else:
                drive = DRIVERS[plan.protocol.dense.family]
                finished = await carry_through(world, plan, drive, model and model.for_plan(plan))
                await world.clear()
                if end_of(plan, finished) < self.last:
                    finished_stages.save(plan.stage, finished)
            place = end_of(plan, finished)
            stages.append(Stage(replace(plan, last=place), finished))
            if place < self.last or self.keep:
                model = model_of(plan, finished.records, place)
        if not stages:
            raise BadOption(f"schedule: every phase ends before sample {place}, where this run begins")
        return stages, model if self.keep else None

    @property
    def last(self) -> int:
        """The sample before which it ends."""
        return self.plan.first + self.plan.samples

    def phases(self, stages: Sequence[Stage]) -> Iterator[Phase]:
        """The phases in their order; a choice's next phase follows from the stages so far."""
        if isinstance(self.schedule, Schedule):
            yield from self.schedule.phases
            return
        yield self.schedule.phases[0]
        while stages[-1].plan.last < self.last:
            yield self.schedule.phases[stages[-1].finished.watch.present]

    def watch(self, stages: Sequence[Stage]) -> Watch | None:
        """The controller's state after the last stage; None: a schedule has no controller."""
        if isinstance(self.schedule, Schedule):
            return None
        if stages:
            return stages[-1].finished.watch
        modes = [
            Mode(
                waits=phase.protocol.sparse.blocks or phase.protocol.dense.blocks,
                batch=phase.workload(self.plan.workload).batch_size,
                workers=phase.workers,
            )
            for phase in self.schedule.phases
        ]
        rule = self.schedule.rule
        return Watch(rule, self.schedule.every, rule.init(modes, self.plan.workers))

    def workers(self, phase: Phase) -> int:
        """Workers that take part in a phase; a pipeline has one device, however many workers the others have."""
        return 1 if phase.protocol.dense.family == "pipeline" else phase.workers or self.plan.workers

    def stage_plan(self, phase: Phase, place: int, end: int, stages: Sequence[Stage]) -> Plan:
        """The plan of a phase from one place of the stream to another, before which the stage may end."""
        return replace(
            self.plan,
            workload=phase.workload(self.plan.workload),
            protocol=phase.protocol,
            workers=self.workers(phase),
            first=place,
            last=end,
            seconds=phase.seconds,
            watch=self.watch(stages),
            stage=len(stages),
            eval_at=tuple(samples - place for samples in self.plan.eval_at if place < samples < end),
            checkpoints=self.plan.checkpoints and replace(self.plan.checkpoints, stage=len(stages)),
            attempt=Attempt(),
        )


def end_of(plan: Plan, finished: Finished) -> int:
    """The first sample that no worker of a stage has taken."""
    if not plan.open:
        return plan.last
    taken = 1 + max((index for record in finished.records for index in record.taken), default=-1)
    return min(plan.last, plan.first + taken * plan.workload.batch_size)


class FinishedStages:
    """The stages that a stopped run had finished: a resumed run goes through them again without training."""

    def __init__(self, world: World, checkpoints: CheckpointFolder | None):
        self._world, self._checkpoints = world, checkpoints
        self.left: deque[Finished] = deque()
        """Those that the resumed run has not gone through yet."""
        world.checkpoints = checkpoints is not None

    async def load(self) -> None:
        """Restore the world as the last of them left it, if the run is to be resumed."""
        if not (self._checkpoints and self._checkpoints.resume):
            return
        for unfinished in self._checkpoints.folder.glob(".*"):  # saves that were interrupted
            unfinished.unlink()
        if not self._file("world").exists():
            return
        world = checkpoint.load(self._file("world"))
        await self._world.restore(world["state"])
        for stage in range(world["stages"]):
            self.left.append(checkpoint.load(self._file(f"done-{stage:04}"))["finished"])

    def save(self, stage: int, finished: Finished) -> None:
        """Save a stage that has just finished; nothing is under way."""
        if self._checkpoints is None:
            return
        checkpoint.save(self._file(f"done-{stage:04}"), {"finished": finished})
        checkpoint.save(self._file("world"), {"stages": stage + 1, "state": self._world.state()})
        replace(self._checkpoints, stage=stage).drop()

    def _file(self, name: str) -> Path:
        return self._checkpoints.folder / f"{name}.pt"
