"""The planted control of every equivalence: the mode that others are held against, made to leave a share of its work out, so that
it loses by construction. Sync without some of its updates, or Persia's hybrid, where that is the reference, without some of its
rows' gradients.

A test of equivalence that does not see this control lose cannot tell: `reports/claims/__init__.py`. Its dose is chosen on tuning
seeds, so that it loses about two margins by `dose`, before the rule is committed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lib import Drop, Push, Rule, Run
from lib.options.checked import Share
from lib.protocols.baselines import Async, Sync
from lib.protocols.persia import Hybrid
from lib.protocols.server_rule import Decisions, ServerState
from lib.seeds import not_judging
from notebooks import study

CONTROL = "control"
"""What notebooks and claims call it."""


@dataclass(frozen=True, kw_only=True)
class PlantedControl(Sync):
    """Sync that leaves a share of its updates out, with all their gradients.

    To leave out single gradients would not do: the mean of the others is as large, so that most of what Adam learns is kept
    until nearly all are gone.
    """

    name: ClassVar = "planted-control"
    cite: ClassVar = "none: the control of every equivalence"
    drops: ClassVar = True

    dropped: Share = 0.5
    """The share of updates that are left out, chosen by their first batch, alike in every run."""

    def _mean(self, state: ServerState) -> tuple[ServerState, Decisions]:
        if _uniform(0, min(push.batch for push in state.pending)) >= self.dropped:
            return super()._mean(state)
        return replace(state.release(), step=state.step), (Drop(state.pending),)


@dataclass(frozen=True, kw_only=True)
class LosingRows(Async):
    """Async that throws a share of its gradients away."""

    name: ClassVar = "losing-rows"
    drops: ClassVar = True

    dropped: Share = 0.5
    """The share that is thrown away, chosen by worker and batch."""

    def on_push(self, state: ServerState, push: Push) -> tuple[ServerState, Decisions]:
        if _uniform(push.worker, push.batch) < self.dropped:
            return state.drop(push), (Drop((push,)),)
        return super().on_push(state, push)


@dataclass(frozen=True, kw_only=True)
class PlantedHybrid(Hybrid):
    """The hybrid with a share of its rows' gradients thrown away, the control where the hybrid is the reference. One made from
    Sync would not do: Sync's AUC is further above the hybrid's than such a control loses."""

    name: ClassVar = "planted-hybrid"
    cite: ClassVar = "none: the control of equivalences with the hybrid"
    drops: ClassVar = True

    dropped: Share = 0.5

    @property
    def rows(self) -> LosingRows:
        return LosingRows(pull_ahead=self.tau, dropped=self.dropped)


def _uniform(worker: int, batch: int) -> float:
    """A number from 0 to 1 that only these two decide."""
    mixed = (batch * 0x9E3779B97F4A7C15 + worker * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    mixed = ((mixed ^ (mixed >> 31)) * 0xD6E8FEB86659FD93) % 2**64
    return (mixed ^ (mixed >> 29)) / 2**64


def dose(
    job: Callable[[Any, int], Mapping[str, Any]],
    quality: Callable[[Run], float],
    share: float,
    seeds: Iterable[int],
    doses: Iterable[float] = (0.1, 0.25, 0.5, 0.75, 0.9),
    reference: Rule | str = "sync",
    planted: Callable[..., Rule] = PlantedControl,
) -> tuple[float, dict[float, float]]:
    """The dose with which two margins are lost, and what each dose loses as a share of the gain.

    `job(protocol, seed)` is a run of the page under a rule; "frozen" and the reference are run too. Between two doses a straight
    line.
    """
    seeds, doses = not_judging(seeds, "the dose of a planted control"), list(doses)
    rules = {"reference": reference, "frozen": "frozen"} | {each: planted(dropped=each) for each in doses}
    runs = study.run({(name, seed): job(rule, seed) for name, rule in rules.items() for seed in seeds})
    means = {name: float(np.mean([quality(runs[name, seed]) for seed in seeds])) for name in rules}
    gain = means["reference"] - means["frozen"]
    lost = {each: (means["reference"] - means[each]) / gain for each in doses}
    return float(np.interp(2 * share, [0.0, *lost.values()], [0.0, *doses])), lost
