"""Several protocols in one run, one after another: by a schedule, or as a controller chooses.

A switch is what continual training does when it inherits a checkpoint, in the middle of a run. The workers take no further
batch, everything that is under way comes to its end, the old rule settles what it holds as at the end of the data, and the
model moves to the parts that the next protocol needs. What goes over: see `lib.drivers.model_state`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lib import protocols
from lib.errors import BadOption
from lib.protocols.rule import Pair, Rule
from lib.store.optim import Optimizer
from lib.switching.controller import Automatic
from lib.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One protocol for a stretch of a run: to the end of the data, or to one of the four limits."""

    protocol: Rule | Pair | str
    workers: int | None = None
    """Workers that take part, the cluster's first; None: all."""
    batch_size: int | None = None
    """Samples of a worker's step; None: the workload's."""
    dense_optimizer: Optimizer | None = None
    """None: the workload's."""
    row_optimizer: Optimizer | None = None
    """None: the workload's."""
    until_day: int | None = None
    """The day of the stream before which it ends."""
    until_samples: int | None = None
    """The place in the stream before which it ends."""
    steps: int | None = None
    """How many steps it lasts: global batches where the protocol has such, else batches."""
    seconds: float | None = None
    """How long it lasts on the cluster's clock; batches that have begun are finished."""

    def __post_init__(self):
        if isinstance(self.protocol, str):
            object.__setattr__(self, "protocol", protocols.get(self.protocol))
        if not isinstance(self.protocol, (Rule, Pair)):
            raise BadOption(f"phase: protocol must be a registered name or a rule, not {self.protocol!r}")
        limits = [name for name in LIMITS if getattr(self, name) is not None]
        if len(limits) > 1:
            raise BadOption(f"phase {self.name!r}: it ends at one limit, not at {' and '.join(limits)}")
        for name in ("workers", "batch_size", *limits):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value > 0 or value != value):
                raise BadOption(f"phase {self.name!r}: {name} must be positive, not {value!r}")
        for name in ("dense_optimizer", "row_optimizer"):
            if not isinstance(getattr(self, name), Optimizer | None):
                raise BadOption(f"phase {self.name!r}: {name} must be an optimiser of lib.store.optim")

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
class Schedule:
    """Phases in their order; the last one goes on to the end of the data unless it has a limit of its own."""

    phases: tuple[Phase, ...]
    restart: float = 0.0
    """Seconds that a switch takes beside what the cluster makes of its pause and of the model's way."""

    def __post_init__(self):
        _check("schedule", self, 1)
        for phase in self.phases[:-1]:
            if all(getattr(phase, name) is None for name in LIMITS):
                raise BadOption(f"schedule: phase {phase.name!r} never ends; give it one of {', '.join(LIMITS)}")

    @property
    def name(self) -> str:
        return " > ".join(dict.fromkeys(phase.name for phase in self.phases))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Phases between which a controller chooses, as often as it likes, to the end of the data; it begins with the first.

    The workers take their batches from one queue, which hears how long each computation took, and which hands out no more
    when the controller wants another phase.
    """

    phases: tuple[Phase, ...]
    rule: Automatic
    """Its `cost` should be what a switch costs: `restart`, the pause until the slowest worker is done, and the model's way."""
    every: float
    """Seconds between two decisions: several in the `cost` of a switch, and in a `window` of steps."""
    restart: float = 0.0
    """Seconds that a switch takes beside what the cluster makes of its pause and of the model's way."""

    def __post_init__(self):
        _check("choice", self, 2)
        for phase in self.phases:
            if given := [name for name in LIMITS if getattr(phase, name) is not None]:
                raise BadOption(f"choice: phase {phase.name!r} has {given[0]}, but the controller says when it ends")
            if phase.protocol.dense.family == "pipeline":
                raise BadOption(f"choice: {phase.name!r} drives one device, whose readers ask no queue; leave it out")
        if not isinstance(self.rule, Automatic):
            raise BadOption(f"choice: rule must be an Automatic(...), not {self.rule!r}")
        if isinstance(self.every, bool) or not self.every > 0:
            raise BadOption(f"choice: every must be positive seconds, not {self.every!r}")

    @property
    def name(self) -> str:
        return " | ".join(dict.fromkeys(phase.name for phase in self.phases))


def _check(what: str, thing: Schedule | Choice, least: int) -> None:
    if not isinstance(thing.phases, Iterable):
        raise BadOption(f"{what}: phases must be a sequence of Phase(...), not {thing.phases!r}")
    object.__setattr__(thing, "phases", tuple(thing.phases))
    if len(thing.phases) < least or not all(isinstance(phase, Phase) for phase in thing.phases):
        number = ("one", "two")[least - 1]
        raise BadOption(f"{what}: phases must be {number} Phase(...) or more, not {thing.phases!r}")
    if not thing.restart >= 0:
        raise BadOption(f"{what}: restart must be 0 seconds or more, not {thing.restart!r}")


def single(protocol: Rule | Pair) -> Schedule:
    """One protocol all along."""
    return Schedule(phases=(Phase(protocol=protocol),))
