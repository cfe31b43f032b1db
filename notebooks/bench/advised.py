"""Advice compared with exhaustive search: python -m notebooks.bench.advised, on conditions drawn at random.

In each condition `lib.advise` names the fastest protocol; and every protocol is tuned and trained at its own best rate, on one
seed, and on more if it was nearly as fast as the fastest. The seeds that choose are not those that judge: the *ceiling* is the
time, on the judging seeds, of the protocol that is the fastest on the choosing seeds, which is what exhaustive search reaches.
The advice is right where its choice takes at most 3 % longer than the ceiling; the *control* is the one protocol that is right
most often. The laptop's table takes some two hours of two cores and is stored next to this file."""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import lib
from lib import Lognormal, Node, paths
from lib.command_line import run_command
from lib.seeds import judging
from lib.workloads import PROFILES
from notebooks.advisor.compare import best_rate, measure, tune
from notebooks.advisor.trial import FEW, Trial
from notebooks.clusters import GBIT

DRAWN_BY = "32d3e06e32cb6ad090fb7da248769376763b8d1c"
"""The commit that last changed what an advice is. It alone draws the conditions, so that they are not chosen by hand."""
GOAL, NEAR = 0.9, 0.03
HOPELESS = 0.5
"""A protocol that takes so much longer than the fastest on one seed, each at its best rate, runs on no other."""
SIZES = {"smoke": (40, 2, 1), "laptop": (FEW, 5, 30), "full": (10 * FEW, 8, 30)}
"""Updates of a run, seeds that choose and as many that judge, conditions. With fewer than FEW an advice doubts itself."""
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


def rows(number: int, updates: int, seeds: int, keep: int = 4) -> list[dict]:
    """A row for each protocol of one condition: its time to the goal over Sync's on the seeds that choose and on those that judge
    (nan: it misses the goal, or was too slow on one seed to be run on more), and whether it is the advice's choice."""
    setting = condition(DRAWN_BY, number)
    setting |= {"samples": updates * max(LEAST, setting["workers"] * setting["batch_size"])}
    advice = lib.advise("clicks-light", "virtual", keep=keep, seeds=seeds, goal=GOAL, **setting)
    choice = advice.comparison.fastest()["protocol"].split(" = ")[0]
    able = ["sync", *(name for name in advice.tried["protocol"] if name != "sync")]
    trials = {name: Trial.of("clicks-light", name, "virtual", setting) for name in able}
    rates = {name: (best_rate(runs),) for name, runs in tune(trials).items()}
    once = _over_sync(trials, rates, judging(1))
    near = {"sync", choice, *once.index[once <= (1 + HOPELESS) * once.min()]}
    few = {name: trial for name, trial in trials.items() if name in near}
    every = judging(2 * seeds)
    times = [_over_sync(few, rates, part) for part in (every[:seeds], every[seeds:])]
    return [
        {
            **described(number),
            "protocol": name,
            "choosing": times[0].get(name, np.nan),
            "judging": times[1].get(name, np.nan),
            "choice": name == choice,
        }
        for name in able
    ]


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


def _over_sync(trials: Mapping[str, Trial], rates: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> pd.Series:
    """Protocol -> its time to the goal over Sync's, of those that reach the goal on every seed."""
    found = measure(trials, rates, seeds, GOAL).paired()
    times = found.groupby("protocol")["seconds"].agg(lambda of: of.mean(skipna=False))
    return (times / times["sync"]).dropna()


CAPTION = (
    "Slow: how many workers take how much longer. Sigma: of each step's lognormal jitter. Longer: the time to the goal of the "
    "advice's choice, and of Sync, over the ceiling's, minus one. The ceiling is the protocol that exhaustive search chooses on "
    "other seeds."
)
"""Below the table."""


def load() -> pd.DataFrame | None:
    """The laptop's rows, with the commit whose advice they judge; None before their run."""
    return pd.read_csv(TABLE) if TABLE.exists() else None


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each condition: the choice, the ceiling, and how much longer than the ceiling the choice, Sync and the control
    take."""
    control = best_single(rows)
    found = []
    for number, mine in rows.groupby("condition"):
        by_name = mine.set_index("protocol")["judging"]
        ceiling, choice = mine.loc[mine["choosing"].idxmin(), "protocol"], mine.loc[mine["choice"], "protocol"].iloc[0]
        longer = {name: by_name[each] / by_name[ceiling] - 1 for name, each in
                  (("longer", choice), ("Sync longer", "sync"), ("control longer", control))}  # fmt: skip
        where = mine.iloc[0][["workers", "slow", "sigma", "Gbit/s", "step, ms", "batch"]].to_dict()
        found.append({"condition": number, "choice": choice, "ceiling": ceiling, **longer, **where})
    return pd.DataFrame(found)


def best_single(rows: pd.DataFrame) -> str:
    """The protocol that is within 3 % of the ceiling in most conditions; of several, the fastest on average."""
    ceilings = rows.loc[rows.groupby("condition")["choosing"].idxmin()].set_index("condition")["judging"]
    over = rows["judging"] / rows["condition"].map(ceilings)
    score = pd.DataFrame({"protocol": rows["protocol"], "near": over <= 1 + NEAR, "over": over.fillna(np.inf)})
    means = score.groupby("protocol").mean().sort_values(["near", "over"], ascending=[False, True])
    return str(means.index[0])


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """As a person reads it."""
    return judged(rows).set_index("condition").round(3)


def sentence(rows: pd.DataFrame) -> str:
    found, control = judged(rows), best_single(rows)
    near, same = ((found[name] <= NEAR).sum() for name in ("longer", "control longer"))
    more, sync = 100 * found["longer"], 100 * found["Sync longer"].mean()
    return (
        f"The choice is within {100 * NEAR:.0f} % of the ceiling in {near} of {len(found)} conditions. It takes "
        f"{more.mean():.1f} % longer on average and {more.max():.0f} % at most; Sync takes {sync:.0f} % longer. The best single "
        f"protocol, {control}, is within {100 * NEAR:.0f} % in {same}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m notebooks.bench.advised", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--profile", choices=PROFILES, default="smoke", help="how long the runs are, and how many conditions"
    )
    parser.add_argument("--conditions", type=int, help="so many instead")
    parser.set_defaults(command=_bench)
    return run_command(parser.parse_args(arguments))


def _bench(options: argparse.Namespace) -> None:
    updates, seeds, count = SIZES[options.profile]
    found: list[dict] = []
    for number in range(wanted := options.conditions or count):
        found += rows(number, updates, seeds)
        table = pd.DataFrame(found)
        paths.write_text_atomic(paths.results() / "advised" / f"{options.profile}.csv", table.to_csv(index=False))
        print(judged(table).tail(1).round(3).to_string(index=False, header=not number), flush=True)
    if options.profile == "laptop" and wanted == count:
        paths.write_text_atomic(TABLE, table.to_csv(index=False))
    print(sentence(table))


if __name__ == "__main__":
    sys.exit(main())
