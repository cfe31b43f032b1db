"""Several protocols in one run, one after another: by a schedule, or as a controller chooses.

A switch is what continual training does when it inherits a checkpoint, in the middle of a run. The workers take no further
batch, everything that is under way comes to its end, the old rule settles what it holds as at the end of the data, and the
model moves to the parts that the next protocol needs. What goes over: see `lib.drivers.model_state`.

The stages of a run: stretches under one protocol, at whose ends the next protocol's parts begin with the model.

Finished stages are saved next to the checkpoints of the current one, so a run that was stopped resumes in the stage that it had
reached. In addition to the files of `lib.drivers.checkpoints`, the folder of a run's checkpoints holds

    finished  what the parts of the finished stages wrote down, and the world's state after the last of them

A stage is finished once this file has it; a run that is stopped before that resumes from the stage's last checkpoint.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lib.cluster.base import World
from lib.drivers import pipeline_loop, replica_loop, server_loop
from lib.drivers.checkpoints import Attempt, CheckpointFolder
from lib.drivers.execution import run_with_restarts
from lib.drivers.model_state import ModelState, model_of
from lib.drivers.plan import Plan, Stage
from lib.drivers.record import Finished
from lib.errors import BadOption
from lib.options.checked import Checked, Count
from lib.options.units import PositiveSeconds, Seconds
from lib.protocols.rule import Pair, Rule
from lib.store import checkpoint
from lib.store.optim import Optimizer
from lib.tasks.workload import Workload
from lib.training.controller import Automatic, ControllerState, Mode


@dataclass(frozen=True, kw_only=True)
class Phase(Checked):
    """One protocol for a stretch of a run: to the end of the data, or to one of the four limits."""

    protocol: Rule | Pair
    workers: Count | None = None
    """Workers that take part, the cluster's first; None: all."""
    batch_size: Count | None = None
    """Samples of a worker's step; None: the workload's."""
    dense_optimizer: Optimizer | None = None
    """None: the workload's."""
    row_optimizer: Optimizer | None = None
    """None: the workload's."""
    until_day: Count | None = None
    """The day of the stream before which it ends."""
    until_samples: Count | None = None
    """The place in the stream before which it ends."""
    steps: Count | None = None
    """How many steps it lasts: global batches where the protocol has such, else batches."""
    seconds: PositiveSeconds | None = None
    """How long it lasts on the cluster's clock; batches that have begun are finished."""

    def __post_init__(self):
        limits = [name for name in LIMITS if getattr(self, name) is not None]
        if len(limits) > 1:
            raise BadOption(f"phase {self.name!r}: it ends at one limit, not at {' and '.join(limits)}")

    @property
    def name(self) -> str:
        return self.protocol.name

    def workload(self, workload: Workload) -> Workload:
        """The workload as this phase trains it."""
        own = {name: getattr(self, name) for name in ("batch_size", "dense_optimizer", "row_optimizer")}
        return replace(workload, **{name: value for name, value in own.items() if value is not None})

    def end_sample(self, workload: Workload, first: int, workers: int) -> int:
        """The place before which it ends if it begins at `first`; its seconds may end it before."""
        last = workload.samples
        if self.until_day is not None:
            last = workload.day_begins(self.until_day)
        elif self.until_samples is not None:
            last = self.until_samples
        elif self.steps is not None:
            last = first + self.steps * self.protocol.dense.batches_a_step(workers) * workload.batch_size
        return min(last, workload.samples)


LIMITS = ("until_day", "until_samples", "steps", "seconds")


@dataclass(frozen=True, kw_only=True)
class Schedule(Checked):
    """Phases in their order; the last one lasts to the end of the data unless it has a limit of its own."""

    phases: tuple[Phase, ...]
    restart: Seconds = 0.0
    """Seconds that a switch takes in addition to the pause and to the model's transfer."""

    def __post_init__(self):
        _check_phase_count(1, self)
        for phase in self.phases[:-1]:
            if all(getattr(phase, name) is None for name in LIMITS):
                raise BadOption(f"schedule: phase {phase.name!r} never ends; give it one of {', '.join(LIMITS)}")

    @property
    def name(self) -> str:
        return " > ".join(dict.fromkeys(phase.name for phase in self.phases))


@dataclass(frozen=True, kw_only=True)
class Choice(Checked):
    """Phases between which a controller chooses, as often as it likes, to the end of the data; it begins with the first.

    The workers take their batches from one queue. It gets the seconds of each computation, and hands out no more batches when
    the controller wants another phase.
    """

    phases: tuple[Phase, ...]
    rule: Automatic
    """Its `cost` should be what a switch costs: `restart`, the pause until the slowest worker is done, and the model's way."""
    every: PositiveSeconds
    """Seconds between two decisions: several in the `cost` of a switch, and in a `window` of steps."""
    restart: Seconds = 0.0
    """Seconds that a switch takes in addition to the pause and to the model's transfer."""

    def __post_init__(self):
        _check_phase_count(2, self)
        for phase in self.phases:
            if given := [name for name in LIMITS if getattr(phase, name) is not None]:
                raise BadOption(f"choice: phase {phase.name!r} has {given[0]}, but the controller says when it ends")
            if phase.protocol.dense.family == "pipeline":
                raise BadOption(f"choice: {phase.name!r} drives one device, whose readers ask no queue; leave it out")

    @property
    def name(self) -> str:
        return " | ".join(dict.fromkeys(phase.name for phase in self.phases))


def _check_phase_count(least: int, thing: Schedule | Choice) -> None:
    if len(thing.phases) < least:
        number = ("one", "two")[least - 1]
        raise BadOption(f"{thing.error_label()}: phases must be {number} Phase(...) or more, not {thing.phases!r}")


def single_phase_schedule(protocol: Rule | Pair) -> Schedule:
    """One protocol all along."""
    return Schedule(phases=(Phase(protocol=protocol),))


BATCH = 64
"""The samples that take as long as what a batch takes whatever its size, about, with the kit's own models."""
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
        model, next_sample = self.model, self.plan.first
        finished_stages = FinishedStages(world, self.plan.checkpoints)
        await finished_stages.load()
        for phase in self.phases(stages):
            end = self.phase_end(phase, next_sample)
            if next_sample >= end:
                continue
            if stages and self.schedule.restart and not finished_stages.left:
                await asyncio.sleep(self.schedule.restart)
            plan = self.stage_plan(phase, next_sample, end, stages)
            if finished_stages.left:
                finished = finished_stages.left.popleft()
            else:
                drive = DRIVERS[plan.protocol.dense.family]
                finished = await run_with_restarts(world, plan, drive, model and model.for_optimizers_of(plan))
                await world.clear_parts()
                if first_untaken_sample(plan, finished) < self.end_sample:
                    finished_stages.save(plan.stage, finished)
            next_sample = first_untaken_sample(plan, finished)
            stages.append(Stage(replace(plan, end_sample=next_sample), finished))
            if next_sample < self.end_sample or self.keep:
                model = model_of(plan, finished.records, next_sample)
        if not stages:
            raise BadOption(f"schedule: every phase ends before sample {next_sample}, where this run begins")
        return stages, model if self.keep else None

    @property
    def end_sample(self) -> int:
        """The sample before which it ends."""
        return self.plan.first + self.plan.samples

    def samples_and_batch_sizes(self) -> list[tuple[int, int]]:
        """The samples of each phase, unless its seconds end it before, and of its batch; a choice is taken for its first."""
        place, found = self.plan.first, []
        for phase in self.schedule.phases:
            end = self.phase_end(phase, place) if isinstance(self.schedule, Schedule) else self.end_sample
            found.append((max(0, end - place), phase.workload(self.plan.workload).batch_size))
            place = max(place, end)
        return found

    def phase_end(self, phase: Phase, first: int) -> int:
        """The sample before which a phase ends that begins at `first`, unless its seconds end it before."""
        own = phase.end_sample(phase.workload(self.plan.workload), first, self.workers(phase))
        return min(self.end_sample, own)

    @property
    def work(self) -> int:
        """How long it takes, in the time of a sample: a batch takes as long as `BATCH` samples in addition to its own."""
        return sum(samples + BATCH * -(-samples // batch) for samples, batch in self.samples_and_batch_sizes())

    def phases(self, stages: Sequence[Stage]) -> Iterator[Phase]:
        """The phases in their order; a choice's next phase follows from the stages so far."""
        if isinstance(self.schedule, Schedule):
            yield from self.schedule.phases
            return
        yield self.schedule.phases[0]
        while stages[-1].plan.end_sample < self.end_sample:
            yield self.schedule.phases[stages[-1].finished.watch.chosen_phase]

    def next_stage_state(self, stages: Sequence[Stage]) -> ControllerState | None:
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
        return ControllerState(rule, self.schedule.every, rule.init(modes, self.plan.workers))

    def workers(self, phase: Phase) -> int:
        """Workers that take part in a phase; a pipeline has one device, however many workers the others have."""
        return 1 if phase.protocol.dense.family == "pipeline" else phase.workers or self.plan.workers

    def stage_plan(self, phase: Phase, first: int, end: int, stages: Sequence[Stage]) -> Plan:
        """The plan of a phase from sample `first` of the stream on; it ends before sample `end` at the latest."""
        return replace(
            self.plan,
            workload=phase.workload(self.plan.workload),
            protocol=phase.protocol,
            workers=self.workers(phase),
            first=first,
            end_sample=end,
            seconds=phase.seconds,
            watch=self.next_stage_state(stages),
            stage=len(stages),
            eval_at=tuple(samples - first for samples in self.plan.eval_at if first < samples < end),
            checkpoints=self.plan.checkpoints and replace(self.plan.checkpoints, stage=len(stages)),
            attempt=Attempt(),
        )


def first_untaken_sample(plan: Plan, finished: Finished) -> int:
    """The first sample that no worker of a stage has taken."""
    if not plan.may_end_early:
        return plan.end_sample
    taken = 1 + max((index for record in finished.records for index in record.taken), default=-1)
    return min(plan.end_sample, plan.first + taken * plan.workload.batch_size)


class FinishedStages:
    """The stages that a stopped run had finished: a resumed run goes through them again without training."""

    def __init__(self, world: World, checkpoints: CheckpointFolder | None):
        self._world, self._checkpoints = world, checkpoints
        self._done: list[Finished] = []
        self.left: deque[Finished] = deque()
        """Those that the resumed run has not gone through yet."""
        world.checkpoints = checkpoints is not None

    async def load(self) -> None:
        """Restore the world as the last of them left it, if the run is to be resumed."""
        if not (self._checkpoints and self._checkpoints.resume):
            return
        for unfinished in self._checkpoints.folder.glob(".*"):  # saves that were interrupted
            unfinished.unlink()
        if self._file.exists():
            found = checkpoint.load(self._file)
            await self._world.restore(found["world"])
            self._done = found["stages"]
            self.left.extend(self._done)

    def save(self, stage: int, finished: Finished) -> None:
        """Save a stage that has just finished; nothing is under way."""
        if self._checkpoints is not None:
            self._done.append(finished)
            checkpoint.save(self._file, {"stages": self._done, "world": self._world.state()})
            replace(self._checkpoints, stage=stage).delete_stage_checkpoint()

    @property
    def _file(self) -> Path:
        return self._checkpoints.folder / "finished.pt"
