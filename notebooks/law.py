"""A law of what staying apart costs, one for each family, as simple as it can be.

Derivation. Adam makes steps of the learning rate's length, whatever the gradient's size.

1. *Smaller updates.* Who updates for each batch makes more steps than Sync, each by fewer samples, and ends in more noise. That
   has nothing to do with staying apart, and is no part of what is fitted: a control shows it, one worker with the same
   batches, none of whose gradients is old (`CONTROL`). What it costs is read off, between the lengths and the rates that it ran
   at along straight lines in their logarithms; beyond the longest it goes on as a power of the length.
2. *Old gradients, replicas apart.* A gradient that is `distance` old was computed where the model was by the `moved` of it
   elsewhere: distance * rate * sqrt(larger), since many small steps wander. The loss grows with that as a power, and falls as
   the run forgets its start:

       cost = scale * moved ** u * updates ** v

3. *Short steps.* Where replicas have rows of their own, their mean is over many of which few have met a row: its step is short,
   and a larger rate makes up for it. So rate and distance have powers of their own there, that of the rate below zero:

       cost = scale * distance ** u * rate ** w * updates ** v

Fitted are a family's ln(scale) and powers, by least squares over the means of seeds, each in units of its own uncertainty. What
loses more than `COLLAPSE` is another matter, and is neither fitted nor judged: see `stable`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

from notebooks import study

CELL = ["way", "updates", "rate"]
COLLAPSE = 0.02
"""AUC: what loses more does not lose by a law of small distances."""
FLOOR, SHARE = 1e-4, 0.2
"""AUC, and a share of the cost: no mean is taken for more exact than that when a law is fitted, else the few cells decide that
are known best."""
CONTROL = "async, 1 worker"
"""Updates as small as Async's, and no gradient is old."""
ROWS_OF_THEIR_OWN = "replicas with rows"
POWERS = {"moved": (1.0, 2.0), "distance": (0.0, 1.0), "rows": (-1.0, 0.0), "updates": (-1.0, 0.0)}
"""What is raised to a power, and within what: displacements cost between as much as they are, where errors add up, and their
square, where they are noise; a step that is n times too short is made up for by a rate n times as large, at most; and what is
lost early is forgotten no faster than the mean over the updates is."""
RANGE = ("distance", "rows", "updates")
"""What must lie inside what was fitted, or nothing is known."""


def cells(data: pd.DataFrame) -> pd.DataFrame:
    """A row for each way, length and rate: the mean cost over the seeds, and the ends of its 95 % interval."""
    of = data.groupby(CELL, sort=False)
    found = of[["family", "protocol", "rows", "larger"]].first()
    found["distance"], found["cost"], found["seeds"] = of["distance"].mean(), of["cost"].mean(), of.size()
    error = of["cost"].std(ddof=1) / np.sqrt(found["seeds"])
    half = error * stats.t.ppf(0.975, found["seeds"] - 1)
    return found.assign(error=error, low=found["cost"] - half, high=found["cost"] + half).reset_index()


@dataclass(frozen=True)
class Law:
    """What was fitted of one family."""

    scale: float
    """Its logarithm."""
    powers: Mapping[str, float]
    range: Mapping[str, tuple[float, float]]
    """Of what was fitted."""

    def cost(self, there: pd.DataFrame, smaller: np.ndarray) -> np.ndarray:
        """Of cells, given what smaller updates cost them."""
        return smaller + _power(there, np.array([self.scale, *self.powers.values()]), [*self.powers])

    def knows(self, longest: int, **place: float) -> bool:
        """Whether the place lies inside what was fitted, and is no longer than what the law was judged on."""
        ends = {**self.range, "updates": (self.range["updates"][0], longest)}
        return all(ends[name][0] <= place[name] <= ends[name][1] for name in RANGE)


def _power(there: pd.DataFrame, numbers: np.ndarray, names: list[str]) -> np.ndarray:
    told = there.assign(moved=there["distance"] * there["rows"] * np.sqrt(there["larger"]))
    logs = np.log(told[names].clip(lower=1e-12).to_numpy(float))
    return np.exp(np.clip(numbers[0] + logs @ numbers[1:], -60, 2))


def smaller_updates(there: pd.DataFrame, control: pd.DataFrame) -> np.ndarray:
    """What smaller updates cost each cell, by the cells of the control, one worker with such updates: its `cost` by (updates,
    rate). Nothing where updates are no smaller; nan for sizes other than the control's."""
    curves = {rate: group.set_index("updates")["cost"].sort_index() for rate, group in control.groupby("rate")}
    [size] = control["larger"].unique()

    def cost(updates: int, rate: float, larger: float) -> float:
        if larger == 1:
            return 0.0
        if larger != size:
            return math.nan
        ran = {each: curve for each, curve in curves.items() if updates <= curve.index[-1] or each == 1}
        return float(np.interp(math.log(rate), np.log([*ran]), [_along(curve, updates) for curve in ran.values()]))

    return np.array([cost(*place) for place in there[["updates", "rate", "larger"]].itertuples(index=False)])


def _along(curve: pd.Series, updates: int) -> float:
    """A cost at a length; beyond the longest as the power that the last two lengths show, which no more than stays as it is."""
    lengths, costs = np.log(curve.index.to_numpy(float)), curve.to_numpy()
    if updates <= curve.index[-1] or costs[-2:].min() <= 0:
        return float(np.interp(math.log(updates), lengths, costs))
    power = np.diff(np.log(costs[-2:]))[0] / np.diff(lengths[-2:])[0]
    return float(costs[-1] * math.exp(np.clip(power, *POWERS["updates"]) * (math.log(updates) - lengths[-1])))


def fit(there: pd.DataFrame, smaller: np.ndarray) -> dict[str, Law]:
    """Family -> its law, by those of the cells that have not collapsed, nor have by smaller updates alone."""
    there = there.assign(smaller=smaller)
    there = there[(there["cost"] < COLLAPSE) & (there["smaller"].abs() < COLLAPSE)]
    return {str(family): _law(str(family), group) for family, group in there.groupby("family", sort=False)}


def _law(family: str, there: pd.DataFrame) -> Law:
    names = ["distance", "rows", "updates"] if family == ROWS_OF_THEIR_OWN else ["moved", "updates"]
    units = np.sqrt(there["error"] ** 2 + FLOOR**2 + (SHARE * there["cost"]) ** 2).to_numpy()
    aim = (there["cost"] - there["smaller"]).to_numpy()
    starts = [(-5.0, *[np.clip(first, *POWERS[name]) for name in names]) for first in (0.5, 1.0, 2.0)]
    least, most = ([side * 40, *[POWERS[name][end] for name in names]] for side, end in ((-1, 0), (1, 1)))

    def misses(numbers: np.ndarray) -> np.ndarray:
        return (_power(there, numbers, names) - aim) / units

    tries = [optimize.least_squares(misses, each, bounds=(least, most), loss="soft_l1") for each in starts]
    scale, *powers = min(tries, key=lambda each: each.cost).x
    span = {name: (float(there[name].min()), float(there[name].max())) for name in RANGE}
    return Law(scale, dict(zip(names, powers, strict=True)), span)


def predict(laws: Mapping[str, Law], there: pd.DataFrame, smaller: np.ndarray) -> pd.DataFrame:
    """The cells with the laws' predictions, and whether they lie in the measured interval; next to them two guesses: that
    nothing is lost, and that the cost stays as in the next shorter runs."""
    there = there.assign(predicted=np.nan)
    for family, law in laws.items():
        mine = (there["family"] == family).to_numpy()
        there.loc[mine, "predicted"] = law.cost(there[mine], smaller[mine])
    stays = there.sort_values("updates").groupby(["way", "rate"])["cost"].shift(1)
    guesses = there.assign(inside=there["predicted"], nothing=0.0, stays=stays)[["inside", "nothing", "stays"]]
    within = guesses.apply(lambda guess: guess.between(there["low"], there["high"]).where(guess.notna()))
    return there.assign(**within, collapsed=there["cost"] >= COLLAPSE, miss=(there["predicted"] - there["cost"]).abs())


def stable(old: float, momentum: float = 0.9) -> float:
    """The largest stable product of rate and curvature when a share `old` of the gradients is one step old.

    Momentum m averages what comes, so a step is x' = x + m (x - before) - (1 - m) k ((1 - old) x + old * before), k being the
    product. The roots of z^2 - (1 + m - a (1 - old)) z + m + a old, with a = (1 - m) k, lie in the unit circle while
    m + a old < 1, which is k < 1 / old, and a (1 - 2 old) < 2 (1 + m): without old gradients k < 38 at momentum 0.9.
    """
    bounds = [1 / old] if old else []
    return min([*bounds, *([2 * (1 + momentum) / ((1 - momentum) * (1 - 2 * old))] if old < 0.5 else [])])


def collapse_rates(data: pd.DataFrame) -> pd.DataFrame:
    """For each way, its age in its own updates, and the rate, in Sync's best, from which on it loses `COLLAPSE` to Sync at
    its best. Rates are interpolated in their logarithms; infinite if no tried rate was enough."""
    best = study.baseline(data, "auc", ["updates", "seed"], way="sync", rate=1)
    rows = []
    for way, runs in data.assign(lost=best - data["auc"]).groupby("way", sort=False):
        lost = runs.groupby("rate")["lost"].mean().sort_index().loc[1 / 2 :]
        much = np.flatnonzero(lost >= COLLAPSE)
        at = slice(max(much[0] - 1, 0), much[0] + 1) if len(much) else slice(0)
        begin = np.exp(np.interp(COLLAPSE, lost.iloc[at], np.log(lost.index[at]))) if len(much) else math.inf
        rows.append({"way": way, "age": (runs["distance"] * runs["larger"]).mean(), "begins": begin})
    return pd.DataFrame(rows)
