"""GBA's convergence theory on a quadratic, where its bounds can be computed and what they speak of measured.

Paper -> code: Eq. 2 and 4 -> `floor`, `bound`; Eq. 3 -> `watched`; the loss one step after a switch (Theorems 3 and 4, Eq. 24,
25, 37 and 38) -> `after_switch`; zeta of Eq. 3 and Corollary 1 -> `updated_twice`. A sample's gradient has noise of one variance
everywhere, so Theta is 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import ClassVar

import numpy as np
import pandas as pd

from lib import Phase, Rule, Schedule, ServerRule, VirtualCluster, Workload, train
from lib.protocols import get as protocol
from lib.protocols.baselines import Async, Sync
from lib.protocols.gba import GBA
from lib.tasks.quadratic import Quadratic, QuadraticBowl
from lib.tasks.workload import dense_parameters
from notebooks import study
from notebooks.gba.tasks import Task


def floor(task: QuadraticBowl, eta: float, batch: float, share: float = 1.0) -> float:
    """Eq. 2's error floor for a global batch; Eq. 4's with gamma' for `share`."""
    return eta * task.dim * task.noise**2 * task.condition / (2 * share * batch)


def bound(task: QuadraticBowl, eta: float, batch: float, updates, start: float, share: float = 1.0):
    """Eq. 2 after so many updates, from a loss of `start`; Eq. 4 with gamma' for `share`."""
    least = floor(task, eta, batch, share)
    return least + (1 - eta * share / task.condition) ** updates * (start - least)


def figures(task: QuadraticBowl, curve: pd.DataFrame) -> dict:
    """What claims read of one run's curve (update, loss and bound, from the start on): the floor over the second half; that over
    the one which a quadratic has without staleness, where a direction of curvature a has eta s^2 / (2 batch (2 - eta a)); the
    largest ratio of the loss to the bound; and the logarithm of the decay before the floor over that of 1 - eta c."""
    start, loss = curve.iloc[0], curve["loss"].to_numpy()
    end = loss[curve["update"] > curve["update"].max() / 2].mean()
    curvatures = np.geomspace(1 / task.condition, 1, task.dim)
    settles = (start["eta"] * task.noise**2 / (2 * start["batch"] * (2 - start["eta"] * curvatures))).sum()
    far = int(np.flatnonzero(loss > 10 * end)[-1])
    rate = np.log(loss[far] / loss[0]) / curve["update"].iloc[far] if far else np.nan
    found = {"subject": start["protocol"], "seed": start["seed"], "start": loss[0]}
    found |= {
        "floor": end,
        "exact": end / settles,
        "above": (loss / curve["bound"])[1:].max(),
        "decay": rate / np.log(1 - start["eta"] / task.condition),
    }
    found |= {"eta": start["eta"], "batch": start["batch"], "log_floor": np.log(end)}
    return found | {"log_ratio": np.log(start["eta"] / start["batch"])}


def table(runs: pd.DataFrame, stepped: pd.DataFrame, means: pd.DataFrame) -> pd.DataFrame:
    """What the claims read: the first run of each mode, Sync's by batch and by rate, what never trains, and one step's losses
    and bounds."""
    first = runs.drop_duplicates(["subject", "seed"])
    sync = runs[runs["subject"] == "sync"]
    eta, batch = sync[["eta", "batch"]].iloc[0]
    swept = [sync[sync["eta"] == eta].assign(subject="sync by batch")]
    swept.append(sync[sync["batch"] == batch].assign(subject="sync by rate"))
    frozen = first[first["subject"] == "sync"].assign(subject="frozen", floor=lambda t: t["start"])
    rises = {who: means.loc[who, "bound"] / means.loc[who.partition(" to ")[0], "bound"] for who in means.index}
    bounds = [{"subject": f"bound, {who}", "seed": first["seed"].iloc[0], "rises": rise} for who, rise in rises.items()]
    switches = {"sync to async": "after sync", "async to sync": "after async"}
    stays = [stepped[stepped["subject"] == who].assign(subject=f"instead of {to}") for to, who in switches.items()]
    return pd.concat([first, *swept, frozen[["subject", "seed", "floor"]], stepped, *stays, pd.DataFrame(bounds)])


def after_switch(task: QuadraticBowl, eta: float, workers: int, at: Mapping[str, float]) -> dict[str, float]:
    """The bounds on the loss one step later without a switch and with one, as Eq. 24, 25, 37 and 38 are printed. `at` has the
    loss, the gradient's squared norm there and where Async's gradients were computed (`squared`, `stale`), and Eq. 3's gamma.

    Eq. 25 has one worker's whole variance in addition to an Nth of it, where a mean over N has the Nth alone."""
    loss, squared = at["loss"], at["squared"]
    noise = eta**2 * task.dim * task.noise**2 / (2 * task.batch_size)
    fresh, own = eta * (1 - eta / 2) * squared, eta / 2 * (1 - at["gamma"]) * squared
    mixed = (eta**2 / 2 - eta / (2 * workers)) * squared
    return {
        "async": loss - own + noise - eta / 4 * at["stale"],
        "async to sync": loss - own + noise * (1 + 1 / workers) + mixed - eta / (4 * workers) * at["stale"],
        "sync": loss - fresh + noise / workers,
        "sync to async": loss - fresh + noise,
    }


def watch(kind: type[ServerRule], model: Quadratic, **options) -> tuple[ServerRule, list[tuple[float, float, float]]]:
    """The rule, and a list that fills as it trains: of each gradient that is applied, the squared norms of the true gradient's
    change since its parameters were read, of the true gradient now, and of that then. The training is not changed."""
    matrix, optimum = model.matrix.numpy(), model.optimum.numpy()
    seen: list[tuple[float, float, float]] = []

    class Watched(kind):
        def compensate(
            self, gradient: np.ndarray, now: np.ndarray, read: np.ndarray, memory: np.ndarray
        ) -> tuple[np.ndarray, None]:
            new, old = ((at - optimum) @ matrix for at in (now, read))
            seen.append((float((new - old) @ (new - old)), float(new @ new), float(old @ old)))
            return gradient, None

    return Watched(**options), seen


def one_step(task: QuadraticBowl, crew: VirtualCluster, seed: int, until: int, alone: bool = False) -> list[dict]:
    """From where Sync has settled, and where Async has, the loss after one more update of each; with `alone` Async has one
    worker, so that nothing is stale. A row for each: who goes on, the loss before and after, and what `after_switch` takes."""
    rows, size = [], task.batch_size * crew.workers
    for mode, kind in (("sync", Sync), ("async", Async)):
        own = replace(crew, workers=1) if alone and mode == "async" else crew
        rule, seen = watch(kind, task.model(seed))
        before = train(task, _phase(rule, own, until * size), own, seed=seed, trace=False, keep=True, save=False)
        change, now, then = np.array(seen)[-50 * crew.workers :].mean(axis=0)
        at = {name: before.summary[name] for name in ("loss", "squared")} | {"gamma": change / now, "stale": then}
        for to, cluster, more in (("sync", crew, size), ("async", own, task.batch_size)):
            phase = _phase(protocol(to), cluster, until * size + more)
            run = train(task, phase, cluster, seed=seed, start=before, trace=False)
            who = mode if to == mode else f"{mode} to {to}"
            rows.append({"subject": who, "seed": seed, **at, "after": run.summary["loss"]})
    return rows


def _phase(rule: Rule, cluster: VirtualCluster, until: int) -> Schedule:
    return Schedule(phases=(Phase(protocol=rule, workers=cluster.workers, until_samples=until),))


class PlainDecay(GBA):
    """GBA whose rows are decayed as the dense parameters are, by the token and the global step."""

    name: ClassVar = "gba-plain"
    row_weights: ClassVar = None


def row_decays(task: Task, profile: str, seeds: Iterable[int]) -> pd.DataFrame:
    """What it does to rows that each is decayed by its own last update, as Algorithm 2 has it: rows' gradients left out of an
    update, and the AUC after two days from scratch, with a small iota among very unequal workers."""
    rows = []
    for kind, seed in product((GBA, PlainDecay), seeds):
        rule = kind(iota=1, rows_divided_by=task.rows_divided_by)
        run = train(**task.job(profile, "gba", seed, 1.5, protocol=rule, until_day=2))
        updates = run.summary["samples"] / (task.others[0] * task.others[1])
        left_out = run.summary["row_gradients_decayed"] / updates
        rows.append({"decayed by": kind.name, "rows left out, an update": left_out, "auc": study.quality(run, "auc")})
    return pd.DataFrame(rows).groupby("decayed by", sort=False).mean()


def updated_twice(task: Workload, workers: int, updates: int, seed: int) -> tuple[float, float]:
    """Eq. 3's zeta, of rows: the share of those met in so many updates that an update has and the one before it too, on average;
    and Corollary 1's p1: the dense share of all these parameters."""
    met = {name: [] for name in task.tables()}
    for first in range(0, updates * workers, workers):
        batches = [task.batch(seed, first + k, task.batch_size) for k in range(workers)]
        for name, sets in met.items():
            sets.append(np.unique(np.concatenate([batch.ids[name] for batch in batches])))
    rows = {name: np.unique(np.concatenate(sets)).size for name, sets in met.items()}
    twice = sum(np.intersect1d(*pair).size for sets in met.values() for pair in pairwise(sets)) / (updates - 1)
    dense = dense_parameters(task)
    sparse = sum(count * task.tables()[name].dim for name, count in rows.items())
    return twice / sum(rows.values()), dense / (dense + sparse)
