"""Training without gradients: what two modes reach on workers that are slowed down, step by step."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib.cluster.slowdowns import SamplePath, Slowdown
from lib.drivers.trainer import Computation
from lib.training.controller import Automatic, AutomaticState, Mode


@dataclass(frozen=True, kw_only=True)
class ByHour(Slowdown):
    """Busy and vacant stretches by turns, each with its own slowdown."""

    vacant: Slowdown
    busy: Slowdown
    hours: Any
    """Which stretches are busy; over and over. A list may go on growing."""
    hour: float

    def sample_path(self, seed: int, node: str, rank: int, nth_of_kind: int = 0) -> SamplePath:
        return _ByHour(self, [each.sample_path(seed, node, rank) for each in (self.vacant, self.busy)])


class _ByHour(SamplePath):
    def __init__(self, kind: ByHour, courses: list[SamplePath]):
        self._kind, self._courses = kind, courses

    def stretch(self, start: float, seconds: float) -> float:
        hours = self._kind.hours
        return self._courses[hours[int(start / self._kind.hour) % len(hours)]].stretch(start, seconds)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A step takes `batch` x `per_sample` seconds on an undisturbed worker, and the mode's overhead."""

    slowdown: Slowdown
    workers: int = 8
    per_sample: float = 0.01
    overhead: tuple[float, ...]
    """Seconds of each mode's step that are no computation."""
    modes: tuple[Mode, ...] = (Mode(waits=True, batch=100), Mode(waits=False, batch=100))

    def train(self, seconds: float, choose: Callable, every: float, cost: float, seed: int = 0) -> np.ndarray:
        """Samples in each interval of `every` seconds. `choose(steps, now, samples)` gives the mode to be in; a switch
        drops what is under way, and `choose(None, now, 0)` hears that it is over."""
        courses = [self.slowdown.sample_path(seed, f"worker{rank}", rank) for rank in range(self.workers)]
        intervals = np.zeros(round(seconds / every))
        now, mode = 0.0, choose([], 0.0, 0)
        under_way = self._begin(courses, mode, now)
        while now < seconds:
            now, steps = now + every, []
            while under_way[0][0] <= now:
                end, start, ranks, took = under_way[0]
                steps += [
                    Computation(rank, each, self.modes[mode].batch) for rank, each in zip(ranks, took, strict=True)
                ]
                _spread(intervals, start, end, self.modes[mode].batch * len(ranks), every)
                heapq.heapreplace(under_way, self._step(courses, mode, end, ranks))
            following = choose(steps, now, sum(step.samples for step in steps))
            if following != mode:
                now, mode = now + cost, following
                choose(None, now, 0)
                under_way = self._begin(courses, mode, now)
        return intervals

    def _begin(self, courses, mode: int, now: float) -> list[tuple]:
        """The first steps: one of all workers together, or one of each."""
        ranks = range(self.modes[mode].workers or self.workers)
        groups = [tuple(ranks)] if self.modes[mode].waits else [(rank,) for rank in ranks]
        under_way = [self._step(courses, mode, now, group) for group in groups]
        heapq.heapify(under_way)
        return under_way

    def _step(self, courses, mode: int, start: float, ranks: tuple[int, ...]) -> tuple:
        """(end, start, workers, seconds that each of them computes)."""
        took = [courses[rank].stretch(start, self.modes[mode].batch * self.per_sample) for rank in ranks]
        return start + max(took) + self.overhead[mode], start, ranks, took

    def table(self, seconds: float, every: float, seed: int = 0) -> np.ndarray:
        """What each mode alone reaches per second, interval by interval."""
        alone = [self.train(seconds, lambda *_, m=mode: m, every, 0.0, seed) for mode in range(len(self.modes))]
        return np.array(alone) / every

    def controlled(self, rule: Automatic, seconds: float, every: float, seed: int = 0) -> Controlled:
        controlled = Controlled(rule, rule.init(self.modes, self.workers))
        controlled.samples = self.train(seconds, controlled, every, rule.cost, seed).sum()
        return controlled


class Controlled:
    """Drives a rule as a driver would."""

    def __init__(self, rule: Automatic, state: AutomaticState):
        self.rule, self.state, self.samples = rule, state, 0.0
        self.switches: list[tuple[float, int]] = []

    def __call__(self, steps, now: float, samples: float) -> int:
        if steps is None:
            self.state = self.rule.on_switch(self.state, now)
            return self.state.present
        for step in steps:
            self.state = self.rule.on_step(self.state, step)
        before = self.state.present
        self.state, mode = self.rule.decide(self.state, now, samples)
        if mode != before:
            self.switches.append((now, mode))
        return mode


def _spread(intervals: np.ndarray, start: float, end: float, samples: float, every: float) -> None:
    rate = samples / (end - start)
    for place in range(int(start / every), min(int(end / every) + 1, len(intervals))):
        overlap = min(end, (place + 1) * every) - max(start, place * every)
        intervals[place] += rate * max(0.0, overlap)
