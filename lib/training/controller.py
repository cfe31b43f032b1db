"""Which protocol to be in, from the cluster's status: what Su et al., "GBA: A Tuning-free Approach to Switch between Synchronous
and Asynchronous Training for Recommendation Models", NeurIPS 2022, leave as future work.

The rule in one sentence: predict every mode's throughput from the workers' recent times, and switch as soon as the best
past that ends in the present mode is one that has just come from another mode.

Prediction. A mode that waits for all trains `workers x batch` samples in the expected maximum of one draw from each worker's
recent times; one that does not trains at the sum of its workers' own speeds. Both are ideals: what they leave out (network,
servers, framework) is seconds for each sample, which are learnt while the mode is there and remembered afterwards. They do not
change with the workers' speed: a link that vacant workers wait for is no obstacle to slow ones. Reached / ideal, the mode's
efficiency, therefore rises when the workers become slower.
A mode that was never there has the optimistic efficiency `prior`: it is tried when what it might gain has paid for the
switch, and never where even its ideal would be slower, so no trial is wasted on it.

Decision. A mode is `behind` by the samples that the best past ending in it, switches and all, has lost to the best past of
all (the work function of Borodin, Linial and Saks, An Optimal On-line Algorithm for Metrical Task Systems, JACM 1992). For
two modes that is accumulated regret: never below 0, and after a switch 2 x price from the next one.

Guarantee, for K modes whose throughputs are predicted exactly and change only where decisions are taken, every h seconds.
Let X be the best mode's throughput, `rho` its largest over its smallest, e = h / cost, and `lost` the samples by which a
schedule stays behind one that is always in the best mode and switches for nothing. With patience 1,

    lost <= (1 + (K - 1)(2 + e) rho) x lost by the best schedule in hindsight + (1 + (K - 1)(2 + e)) x cost x max X

where every switch costs `cost` x X at once: 3 x for two modes, the least that any deterministic controller can have, as h
becomes small and X does not change. Where a switch takes time, in which the cluster changes too, and cost is a multiple of
h, the hindsight's part is multiplied by 1 + rho. With patience a it is
max(1, a)(1 + (K - 1)(1 + a + e) rho / a) and the rest (a + (K - 1)(1 + a + e)) x cost x max X. A `cost` that is wrong by a
factor has the effect of that patience.

Why. While it stays, a mode loses what its own work function rises by; when it is left it stands at most a price and an
interval above the lowest, and the lowest has risen by a price since K - 1 switches ago.

Limits. Predictions lag by about half a window. Workers' times are taken for independent: where all change together, several times
in a window, the prediction of a mode that waits is too slow. What a mode loses is what it lost when it was last there; if that
was bad luck, the mode comes back only when the cluster has changed by more than that. A rule that waits for some workers, or for
some steps (Hop-BW, Hop-BS), lies between the two ideals.

Where it sits. At the queue of a stage, `WatchedQueue`: it gets the seconds of every computation, and ends the stage by handing
out no more batches. A worker says how long its last computation took when it asks for its next batch: the controller needs no
messages of its own, and does not see the last computation before the data ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lib.cluster.base import Site
from lib.drivers.trainer import Computation, WorkQueue
from lib.errors import BadOption
from lib.options.checked import Checked, Count, Positive
from lib.options.units import Seconds
from lib.protocols.server_rule import with_value

TRIAL = 5
"""Steps of all workers that the prior efficiency counts for: the first step of a mode must not be taken for a stall."""


@dataclass(frozen=True, kw_only=True)
class Mode(Checked):
    """The facts of a protocol from which its throughput is predicted."""

    waits: bool
    """Whether a step ends with its slowest worker (`Rule.blocks`)."""
    batch: Count
    """Samples in one worker's batch."""
    workers: Count | None = None
    """How many workers it uses, the first ones; None: all."""


@dataclass(frozen=True, slots=True)
class AutomaticState:
    """What the controller remembers."""

    modes: tuple[Mode, ...]
    present: int
    """The mode that training is in, or on its way to."""
    now: float
    """Up to when everything is reckoned."""
    active: frozenset[int]
    """Workers that have not left."""
    recent: tuple[tuple[float, ...], ...]
    """Each worker's latest seconds per sample."""
    fresh: tuple[int, ...]
    """How many of them are newer than `learnt`."""
    behind: tuple[float, ...]
    """Samples that the best past ending in each mode has lost to the best past of all."""
    reached: tuple[float, ...]
    """Samples that each mode trained while it was there, older ones counting less,"""
    ideal: tuple[float, ...]
    """those that it would ideally have trained in that time,"""
    spent: tuple[float, ...]
    """and that time."""
    learnt: float
    """Up to when these are known,"""
    trained: float = 0.0
    """and the samples trained since."""


@dataclass(frozen=True, kw_only=True)
class Automatic(Checked):
    """Chooses the mode with the best throughput, and counts what a switch costs.

    A driver calls `on_step` for each computation, `decide` several times in the `cost` of a switch and in a `window` of steps,
    and `on_switch` when a switch is over; it does not call `decide` during a switch.
    """

    name: ClassVar = "automatic"
    cite: ClassVar = (
        "Borodin, Linial and Saks, Metrical Task Systems, JACM 1992; Su et al., GBA, NeurIPS 2022, future work"
    )

    cost: Seconds = 10.0
    """Seconds that a switch takes, in which nothing is trained."""
    window: Count = 20
    """Steps of each worker that tell what it will do next; an efficiency is remembered from as many."""
    patience: Positive = 1.0
    """How many times its cost a switch is taken to cost; more is calmer where predictions are bad."""
    prior: Positive = 1.0
    """Efficiency of a mode that was never there."""

    def init(self, modes: Iterable[Mode], workers: int, present: int = 0, now: float = 0.0) -> AutomaticState:
        modes = tuple(modes)
        for mode in modes:
            if mode.workers is not None and mode.workers > workers:
                raise BadOption(f"automatic: a mode for {mode.workers} workers, where there are {workers}")
        if not 0 <= present < len(modes):
            raise BadOption(f"automatic: it cannot begin in mode {present} of {len(modes)}; modes count from 0")
        trial = tuple(float(TRIAL * mode.batch * (mode.workers or workers)) for mode in modes)
        return AutomaticState(
            modes=modes,
            present=present,
            now=now,
            active=frozenset(range(workers)),
            recent=((),) * workers,
            fresh=(0,) * workers,
            behind=(0.0,) * len(modes),
            reached=tuple(self.prior * samples for samples in trial),
            ideal=trial,
            spent=(0.0,) * len(modes),
            learnt=now,
        )

    def on_step(self, state: AutomaticState, step: Computation) -> AutomaticState:
        if not (step.seconds > 0 and step.samples > 0):
            raise BadOption(f"automatic: a step of {step.samples} samples in {step.seconds} s; both must be above 0")
        times = (*state.recent[step.worker], step.seconds / step.samples)[-self.window :]
        fresh = min(state.fresh[step.worker] + 1, self.window)
        return replace(
            state,
            recent=with_value(state.recent, step.worker, times),
            fresh=with_value(state.fresh, step.worker, fresh),
        )

    def on_leave(self, state: AutomaticState, worker: int) -> AutomaticState:
        return replace(state, active=state.active - {worker})

    def on_join(self, state: AutomaticState, worker: int) -> AutomaticState:
        """A worker is there again, and what it was like before says nothing."""
        return replace(
            state,
            active=state.active | {worker},
            recent=with_value(state.recent, worker, ()),
            fresh=with_value(state.fresh, worker, 0),
        )

    def decide(self, state: AutomaticState, now: float, new_samples: float) -> tuple[AutomaticState, int]:
        """The mode to be in from `now`, given the samples trained since the last call (or since `on_switch`)."""
        state = self._learn_fraction_of_ideal(replace(state, trained=state.trained + new_samples), now)
        return self.choose_mode(state, now, self.predict(state))

    def on_switch(self, state: AutomaticState, now: float) -> AutomaticState:
        """End a switch: the seconds that it took are no evidence about the mode."""
        return replace(state, now=now, learnt=now, trained=0.0, fresh=(0,) * len(state.fresh))

    def predict(self, state: AutomaticState) -> tuple[float, ...]:
        """Samples per second that each mode would reach now; all 0 before the first computation."""
        ideals = [_throughput(mode, self._times(state, mode)) for mode in state.modes]
        return tuple(self._reachable_rate(state, mode, ideal) if ideal else 0.0 for mode, ideal in enumerate(ideals))

    def fraction_of_ideal(self, state: AutomaticState, mode: int) -> float:
        """What the mode reached of its ideal when it was last there."""
        return state.reached[mode] / state.ideal[mode]

    def choose_mode(self, state: AutomaticState, now: float, mode_rates: Sequence[float]) -> tuple[AutomaticState, int]:
        """The decision alone: the mode to be in, if the modes' throughputs have been `mode_rates` since the last decision."""
        best = max(mode_rates)
        modes = zip(state.behind, mode_rates, strict=True)
        lost = [behind + (best - rate) * (now - state.now) for behind, rate in modes]
        least = min(lost)
        price = self.patience * self.cost * best
        left = lost[state.present] - least
        present = lost.index(least) if left > 0 and left >= price else state.present
        behind = tuple(min(each - least, price) for each in lost)
        return replace(state, present=present, now=now, behind=behind), present

    def _reachable_rate(self, state: AutomaticState, mode: int, ideal: float) -> float:
        """What a mode reaches of an ideal throughput: each sample takes longer than ideally by as much as it did before. One
        that was never there, or reached more than its ideal, goes by its efficiency."""
        efficiency = self.fraction_of_ideal(state, mode)
        longer = (1 / efficiency - 1) * state.spent[mode] / state.ideal[mode]
        return 1 / (1 / ideal + longer) if longer > 0 else efficiency * ideal

    def _learn_fraction_of_ideal(self, state: AutomaticState, now: float) -> AutomaticState:
        """Compare what the mode reached with the ideal of the same steps, as soon as every worker has made one: with steps of
        another time, the mode would be blamed for a change of the cluster."""
        index, mode = state.present, state.modes[state.present]
        ranks = self._ranks(state, mode)
        if not ranks or not all(state.fresh[rank] for rank in ranks):
            return state
        rate = _throughput(mode, [state.recent[rank][-state.fresh[rank] :] for rank in ranks])
        seconds = now - state.learnt
        spent = state.spent[index] or state.ideal[index] / rate  # the prior is one of the present conditions
        kept = math.exp(-state.trained / (len(ranks) * mode.batch * self.window))
        return replace(
            state,
            reached=with_value(state.reached, index, kept * state.reached[index] + state.trained),
            ideal=with_value(state.ideal, index, kept * state.ideal[index] + rate * seconds),
            spent=with_value(state.spent, index, kept * spent + seconds),
            learnt=now,
            trained=0.0,
            fresh=(0,) * len(state.fresh),
        )

    def _ranks(self, state: AutomaticState, mode: Mode) -> list[int]:
        return sorted(state.active)[: mode.workers]

    def _times(self, state: AutomaticState, mode: Mode) -> list[Sequence[float]]:
        """The mode's workers' times; a worker without a computation is taken to be like all the others together."""
        everyone = [seconds for rank in sorted(state.active) for seconds in state.recent[rank]]
        return [state.recent[rank] or everyone for rank in self._ranks(state, mode)] if everyone else []


def expected_max(draws: Sequence[Sequence[float]]) -> float:
    """The exact expectation of the maximum of one value from each of `draws`, all values of one being equally likely.

    The maximum's distribution function is the product of theirs; it steps up at each value, by that factor by which the
    value's own function does.
    """
    counts = np.array([len(values) for values in draws])
    values = np.concatenate([np.sort(values) for values in draws])
    places = np.concatenate([np.arange(1, count + 1) for count in counts])
    # Below the largest of the minima the product is 0; from there on every function has made its first step.
    first = values[places == 1].max()
    growth = np.log(places / np.maximum(places - 1, 1))
    order = np.argsort(values, kind="stable")
    values = values[order]
    below = np.exp(np.cumsum(growth[order]) - np.log(counts).sum())
    below[values < first] = 0.0
    return float(values @ np.diff(below, prepend=0.0))


def _throughput(mode: Mode, times: Sequence[Sequence[float]]) -> float:
    """Samples per second if nothing but computation took time, given each worker's seconds per sample."""
    if not times:
        return 0.0
    if mode.waits:
        return len(times) / expected_max(times)
    return sum(len(each) / sum(each) for each in times)


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
class ControllerState:
    """The state of a choice, which goes from stage to stage."""

    rule: Automatic
    every: float
    state: AutomaticState
    decisions: tuple[Decision, ...] = ()
    """Decisions of the last finished stage."""

    @property
    def batch_queue_type(self) -> type[WatchedQueue]:
        """The part that hands out the batches of a stage."""
        return WatchedQueue

    @property
    def chosen_phase(self) -> int:
        """The phase to be in."""
        return self.state.present


class WatchedQueue(WorkQueue):
    """The queue of a stage that a controller may end."""

    def __init__(self, site: Site, batches: int, watch: ControllerState):
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

    async def take(self, until_batch: int, step: Computation | None = None) -> int | None:
        """Hand out a batch, as every queue; `step` is the last computation of the worker that asks."""
        now = self._site.now()
        if step:
            self._state = self._rule.on_step(self._state, step)
            self._samples += step.samples
        if self._decided is None:
            self._state, self._decided = self._rule.on_switch(self._state, now), now
        elif now >= self._decided + self._every and self._stays_in_phase:
            self._decide(now)
        return await super().take(until_batch) if self._stays_in_phase else None

    async def note_change(self, rank: int, change: str) -> None:
        """Note that a worker was lost or has returned."""
        became = self._rule.on_join if change == "comes back" else self._rule.on_leave
        self._state = became(self._state, rank)

    async def next_stage_state(self) -> ControllerState:
        """The state with which the next stage begins."""
        return ControllerState(self._rule, self._every, self._state, tuple(self._decisions))

    @property
    def _stays_in_phase(self) -> bool:
        return self._state.present == self._begin

    def _decide(self, now: float) -> None:
        self._state, phase = self._rule.decide(self._state, now, self._samples)
        self._decided, self._samples = now, 0
        self._decisions.append(Decision(now, phase, self._rule.predict(self._state)))
