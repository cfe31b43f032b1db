"""Advice held against trying everything: python -m notebooks.bench.advised, on conditions that nobody chose.

In each condition `lib.advise` says whom to use; and every protocol is tuned, trained at its own best rate on one seed, and on all
of them if it was nearly as soon there as the soonest. The first choice is right where it takes at most 3 % longer to the goal
than the soonest; and what a single run foretold is set beside what was found. A run that both ask for is made once. The laptop's
table, some hour and a half of two cores, is kept beside this file.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import lib
from lib import Lognormal, Node, paths
from lib.command_line import carry_out
from lib.workloads import PROFILES
from notebooks.advisor.advice import FEW
from notebooks.advisor.compare import best_rate, measure, tune
from notebooks.advisor.trial import Trial
from notebooks.clusters import GBIT

DRAWN_BY = "fb3d8c9f112eaa167705ca9788ca952281a641c0"
"""The commit that last changed what an advice is; it alone draws the conditions, so that nobody chooses them."""
GOAL, NEAR = 0.9, 0.03
HOPELESS = 0.5
"""Who takes so much longer than the soonest on one seed, each at its best rate, is not run on others."""
SIZES = {"smoke": (40, 2, 1), "laptop": (FEW, 5, 30), "full": (10 * FEW, 8, 30)}
"""Batches of every worker in a run, seeds, conditions. With fewer than FEW an advice doubts itself."""
TABLE = Path(__file__).with_suffix(".csv")
LEAST = 640
"""Samples for each of these batches, at least: few workers with small ones have as many more, or they learn little."""


def condition(commit: str, number: int) -> dict:
    """What a user may ask about, by the commit and the number alone: workers, some of them slow, jitter, network, step, model."""
    chance = random.Random(f"{commit} {number}")

    def between(low: float, high: float) -> float:
        return low * (high / low) ** chance.random()

    workers, batch = chance.choice((4, 8, 12, 16, 24)), chance.choice((32, 64, 128))
    slow = chance.choice((0, 0, 1, workers // 4))
    speeds = (*[1.0] * (workers - slow), *[1 / between(1.2, 4)] * slow)
    model = {"dim": chance.choice((4, 8, 16)), "hidden": chance.choice(((16,), (64,), (128,)))}
    step = lib.workloads.get("clicks-light", batch_size=batch, **model).work().flops
    node = {"bandwidth": between(0.3, 40) * GBIT, "latency": between(20e-6, 2e-3)}
    worker = Node(flops=step / between(0.5e-3, 20e-3), **node)
    slowdown = Lognormal(sigma=chance.choice((0.0, between(0.1, 1.0))))
    cases = {"workers": workers, "speeds": speeds, "slowdown": slowdown, "worker": worker}
    return {"batch_size": batch, **model, **cases, "server": Node(cores=8, **node)}


def row(number: int, updates: int, seeds: int, keep: int = 4) -> dict:
    """One condition's row: the choice, the fastest protocol, how much longer the choice takes, its predicted and measured
    time."""
    setting = condition(DRAWN_BY, number)
    setting |= {"samples": updates * max(LEAST, setting["workers"] * setting["batch_size"])}
    advice = lib.advise("clicks-light", "virtual", keep=keep, seeds=seeds, goal=GOAL, **setting)
    choice = advice.comparison.choice()
    able = ["sync", *(name for name in advice.tried["protocol"] if name != "sync")]
    trials = {name: Trial.of("clicks-light", name, "virtual", setting) for name in able}
    rates = {name: (best_rate(runs),) for name, runs in tune(trials).items()}
    once = _over_sync(trials, rates, 1)
    near = {choice, *once.index[once <= (1 + HOPELESS) * once.iloc[0]]}
    over = _over_sync({name: trial for name, trial in trials.items() if name in {"sync", *near}}, rates, seeds)
    foretold = advice.tried.set_index("protocol")["time"]
    return {
        **described(number),
        "choice": choice,
        "soonest": over.index[0],
        "takes longer": over.get(choice, np.inf) / over.iloc[0] - 1,
        "Sync takes longer": over["sync"] / over.iloc[0] - 1,
        "foretold": foretold[choice],
        "found": over.get(choice, np.nan),
    }


def described(number: int) -> dict:
    """A condition in numbers: the workers, how much longer each of the slow ones takes, jitter, network, step and model."""
    setting = condition(DRAWN_BY, number)
    slow = [1 / speed for speed in setting["speeds"] if speed < 1]
    step = lib.workloads.get("clicks-light", **{name: setting[name] for name in ("batch_size", "dim", "hidden")}).work()
    return {
        "drawn by": DRAWN_BY[:7],
        "condition": number,
        "workers": setting["workers"],
        "slow": f"{len(slow)}\u00a0×\u00a0{slow[0]:.2g}" if slow else "0",
        "sigma": round(setting["slowdown"].sigma, 2),
        "Gbit/s": round(setting["worker"].bandwidth / GBIT, 2),
        "step, ms": round(1e3 * step.flops / setting["worker"].flops, 2),
        "batch": setting["batch_size"],
        "dim": setting["dim"],
        "hidden": setting["hidden"][0],
    }


def _over_sync(trials: Mapping[str, Trial], rates: Mapping[str, Sequence[float]], seeds: int) -> pd.Series:
    """Protocol -> its time to the goal over Sync's, the fastest first, if every seed reaches the goal."""
    found = measure(trials, rates, seeds, GOAL).paired()
    times = found.groupby("protocol")["seconds"].agg(lambda of: of.mean(skipna=False))
    return (times / times["sync"]).dropna().sort_values()


CAPTION = (
    "Slow: how many workers take how much longer. Sigma: of each step's lognormal jitter. Takes longer: the choice, and Sync, "
    "than the soonest, each at its own best rate. Foretold by one run, and found: the choice's time over Sync's."
)
"""Below the table."""


def load() -> pd.DataFrame:
    """The laptop's table, with the commit whose advice it judges."""
    return pd.read_csv(TABLE)


def table(table: pd.DataFrame) -> pd.DataFrame:
    """As a person reads it: first what became of the choice, then where."""
    first = ["choice", "soonest", "takes longer", "Sync takes longer", "foretold", "found", "workers", "slow", "sigma"]
    return table.set_index("condition")[[*first, "Gbit/s", "step, ms", "batch"]].round(3)


def sentence(table: pd.DataFrame) -> str:
    right, off = (table["takes longer"] <= NEAR).sum(), (table["foretold"] / table["found"] - 1).abs()
    more, sync = 100 * table["takes longer"], 100 * table["Sync takes longer"].mean()
    longer = (
        f"takes {more.mean():.1f} % longer on average, {more.max():.0f} % at most, where Sync takes {sync:.0f} % longer"
    )
    first = f"the first choice is within {100 * NEAR:.0f} % of the soonest in {right} of {len(table)} conditions, and {longer}"
    errors = f"{100 * off.median():.0f} % (median), {100 * off.max():.0f} % at most"
    return f"{first}; the time that one run foretold is off by {errors}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.bench.advised", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--profile", choices=PROFILES, default="smoke", help="how long the runs are, and how many conditions"
    )
    parser.add_argument("--conditions", type=int, help="so many instead")
    parser.set_defaults(command=_bench)
    return carry_out(parser.parse_args(arguments))


def _bench(options: argparse.Namespace) -> None:
    updates, seeds, count = SIZES[options.profile]
    rows = []
    for number in range(options.conditions or count):
        rows.append(row(number, updates, seeds))
        table = pd.DataFrame(rows)
        paths.write_text_atomic(paths.results() / "advised" / f"{options.profile}.csv", table.to_csv(index=False))
        if options.profile == "laptop" and len(rows) == count:
            paths.write_text_atomic(TABLE, table.to_csv(index=False))
        print(table.tail(1).round(3).to_string(index=False, header=not number), flush=True)
    print(sentence(table))


if __name__ == "__main__":
    sys.exit(main())
