"""A controller at the queue: it gets the seconds of every computation, and ends a stage by handing out no more batches.

So what was handed out is always the stream's beginning, and a stage ends as one does whose seconds are over. A worker says how
long its last computation took when it asks for its next batch: the controller needs no messages of its own, and does not
see the last computation before the data ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib.cluster.base import Site
from lib.drivers.feed import Computation, WorkQueue
from lib.tasks.workload import Workload
from lib.training.controller import Automatic, AutomaticState, Mode
from lib.training.schedule import Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """The controller's decision at one moment."""

    time: float
    """On the cluster's clock."""
    phase: int
    """The phase to be in from then on."""
    predicted: tuple[float, ...]
    """Samples per second of each phase."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of a choice, which goes from stage to stage."""

    rule: Automatic
    every: float
    state: AutomaticState
    decisions: tuple[Decision, ...] = ()
    """Decisions of the last finished stage."""

    @classmethod
    def of(cls, choice: Choice, workload: Workload, workers: int) -> Watch:
        """Before the first stage."""
        modes = [
            Mode(
                waits=phase.protocol.sparse.blocks or phase.protocol.dense.blocks,
                batch=phase.workload(workload).batch_size,
                workers=phase.workers,
            )
            for phase in choice.phases
        ]
        return cls(choice.rule, choice.every, choice.rule.init(modes, workers))

    @property
    def queue(self) -> type[Watched]:
        """The part that hands out the batches of a stage."""
        return Watched

    @property
    def present(self) -> int:
        """The phase to be in."""
        return self.state.present


class Watched(WorkQueue):
    """The queue of a stage that a controller may end."""

    def __init__(self, site: Site, batches: int, watch: Watch):
        super().__init__(site, batches)
        self._rule, self._every, self._state = watch.rule, watch.every, watch.state
        self._begin = self._state.present
        self._decided: float | None = None
        """When the last decision was made, or the stage began."""
        self._samples = 0
        """Computed since then, as far as is known."""
        self._decisions: list[Decision] = []
        for rank in set(range(len(self._state.recent))) - self._state.active:
            self._state = self._rule.on_join(self._state, rank)  # a worker that is still away leaves at once

    async def take(self, until: int, step: Computation | None = None) -> int | None:
        """Hand out a batch, as every queue; `step` is the last computation of the worker that asks."""
        now = self._site.now()
        if step:
            self._state = self._rule.on_step(self._state, step)
            self._samples += step.samples
        if self._decided is None:
            self._state, self._decided = self._rule.on_switch(self._state, now), now
        elif now >= self._decided + self._every and self._stays:
            self._decide(now)
        return await super().take(until) if self._stays else None

    async def tell(self, rank: int, change: str) -> None:
        """Note that a worker was lost or has returned."""
        became = self._rule.on_join if change == "comes back" else self._rule.on_leave
        self._state = became(self._state, rank)

    async def watch(self) -> Watch:
        """The state with which the next stage begins."""
        return Watch(self._rule, self._every, self._state, tuple(self._decisions))

    @property
    def _stays(self) -> bool:
        return self._state.present == self._begin

    def _decide(self, now: float) -> None:
        self._state, phase = self._rule.decide(self._state, now, self._samples)
        self._decided, self._samples = now, 0
        self._decisions.append(Decision(now, phase, self._rule.predict(self._state)))
