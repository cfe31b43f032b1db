"""A law of what staying apart costs, one for each family, as simple as it can be.

Derivation. Adam makes steps of the learning rate's length, whatever the gradient's size.

1. *Smaller updates.* Where noise is most of a gradient, a step has the rate's length in noise, and along the slope the rate times
   the ratio of slope to noise, which goes with the root of the batch. So what is left of the error at rate r, with updates
   `larger` times smaller than Sync's, is what Sync has left at r * sqrt(larger): it is read off Sync's own curve over the
   rates, and nothing is fitted.
2. *Old gradients, replicas apart.* A gradient that is `distance` old was computed where the model was by distance * rate
   elsewhere, and so were replicas that part for as long. The loss grows with how far that is, as a power: between one, where
   errors add up, and two, where they are noise. A mean over replicas of which few have met a row shortens its steps, which a
   larger rate makes up for: there the power of the rate is negative. What a unit costs differs from protocol to protocol:

       cost = scale[protocol] * distance ** u * rate ** w * updates ** v

Fitted are ln(scale) of each protocol, and u, w and v of each family, by least squares over the means of seeds, each in units of
its own uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import optimize, stats

CELL = ["way", "updates", "rate"]
FLOOR, SHARE = 1e-4, 0.2
"""AUC, and a share of the cost: no mean is taken for more exact than that when a law is fitted, else the few cells decide that
are known best, or where training breaks down."""
POWERS = {"distance": (0.0, 3.0), "rows": (-2.0, 3.0), "updates": (-2.0, 1.0)}
"""What each is raised to, within what is credible."""


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

    scales: Mapping[str, float]
    """Protocol -> ln(scale)."""
    powers: Mapping[str, float]

    def cost(self, there: pd.DataFrame, smaller: np.ndarray) -> np.ndarray:
        """Of cells, given what smaller updates cost them; a protocol that was not fitted has none."""
        scales = there["protocol"].map(self.scales).to_numpy(float)
        return smaller + _power(there, scales, np.array([*self.powers.values()]))


def _power(there: pd.DataFrame, scales: np.ndarray, powers: np.ndarray) -> np.ndarray:
    logs = np.log(there[[*POWERS]].clip(lower=1e-12).to_numpy(float))
    return np.exp(np.clip(scales + logs @ powers, -60, 2))


def smaller_updates(there: pd.DataFrame, sync: pd.DataFrame) -> np.ndarray:
    """What updates that are `larger` times smaller cost each cell, by Sync's AUC at the length's rates (updates, rate, auc)."""
    curves = {updates: group.groupby("rate")["auc"].mean() for updates, group in sync.groupby("updates")}

    def cost(updates: int, rate: float, larger: float) -> float:
        curve = curves[updates]
        at = np.interp(np.log([rate, rate * math.sqrt(larger)]), np.log(curve.index), curve)
        return float(at[0] - at[1])

    return np.array([cost(*place) for place in there[["updates", "rate", "larger"]].itertuples(index=False)])


def fitted(there: pd.DataFrame, smaller: np.ndarray) -> dict[str, Law]:
    """Family -> its law, by these cells."""
    laws = {}
    for family, group in there.assign(smaller=smaller).groupby("family", sort=False):
        names = list(dict.fromkeys(group["protocol"]))
        which = group["protocol"].map(names.index).to_numpy()
        units = np.sqrt(group["error"] ** 2 + FLOOR**2 + (SHARE * group["cost"]) ** 2).to_numpy()
        aim = (group["cost"] - group["smaller"]).to_numpy()
        # A power that all cells have alike cannot be told from the scale.
        free = [name for name in POWERS if group[name].nunique() > 1]

        def misses(numbers: np.ndarray, group=group, which=which, units=units, aim=aim, free=free) -> np.ndarray:
            powers = _powers(free, numbers[-len(free) :])
            return (_power(group, numbers[which], powers) - aim) / units

        first = [*[-5.0] * len(names), *[1.0 if name != "updates" else 0.0 for name in free]]
        least, most = (
            [*[side] * len(names), *[POWERS[name][end] for name in free]] for side, end in ((-40, 0), (40, 1))
        )
        numbers = optimize.least_squares(misses, first, bounds=(least, most), loss="soft_l1").x
        powers = dict(zip(POWERS, _powers(free, numbers[-len(free) :]), strict=True))
        laws[family] = Law(dict(zip(names, numbers, strict=False)), powers)
    return laws


def _powers(free: list[str], numbers: np.ndarray) -> np.ndarray:
    given = dict(zip(free, numbers, strict=True))
    return np.array([given.get(name, 0.0) for name in POWERS])


def foretold(laws: Mapping[str, Law], there: pd.DataFrame, smaller: np.ndarray) -> pd.DataFrame:
    """The cells with what the laws say of them, and whether it lies in the measured interval."""
    there = there.assign(foretold=np.nan)
    for family, law in laws.items():
        mine = (there["family"] == family).to_numpy()
        there.loc[mine, "foretold"] = law.cost(there[mine], smaller[mine])
    return there.assign(inside=there["foretold"].between(there["low"], there["high"]))
