"""Several protocols in one run, one after another: by a schedule, or as a controller chooses.

A switch is what continual training does when it inherits a checkpoint, in the middle of a run. The workers take no further
batch, everything that is under way comes to its end, the old rule settles what it holds as at the end of the data, and the
model moves to the parts that the next protocol needs. What goes over: see `lib.drivers.model_state`.
"""

from dataclasses import dataclass, replace

from lib.errors import BadOption
from lib.options.checked import Checked, Count
from lib.options.units import PositiveSeconds, Seconds
from lib.protocols.rule import Pair, Rule
from lib.store.optim import Optimizer
from lib.tasks.workload import Workload
from lib.training.controller import Automatic


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

    def last(self, workload: Workload, first: int, workers: int) -> int:
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
        _at_least(1, self)
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
        _at_least(2, self)
        for phase in self.phases:
            if given := [name for name in LIMITS if getattr(phase, name) is not None]:
                raise BadOption(f"choice: phase {phase.name!r} has {given[0]}, but the controller says when it ends")
            if phase.protocol.dense.family == "pipeline":
                raise BadOption(f"choice: {phase.name!r} drives one device, whose readers ask no queue; leave it out")

    @property
    def name(self) -> str:
        return " | ".join(dict.fromkeys(phase.name for phase in self.phases))


def _at_least(least: int, thing: Schedule | Choice) -> None:
    if len(thing.phases) < least:
        raise BadOption(
            f"{thing.owner()}: phases must be {('one', 'two')[least - 1]} Phase(...) or more, not {thing.phases!r}"
        )


def single(protocol: Rule | Pair) -> Schedule:
    """One protocol all along."""
    return Schedule(phases=(Phase(protocol=protocol),))
