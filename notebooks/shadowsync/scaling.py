"""How throughput grows with the trainers: how much of it each keeps, and until where."""

import pandas as pd

from lib import Run


def lines(data: pd.DataFrame) -> pd.DataFrame:
    """For each protocol and seed: what a trainer of the largest crew keeps of the speed of one of the smallest; and where growth
    ends, the most examples per second in trainers that are as fast as in the smallest crew."""
    rows = []
    for (protocol, seed), group in data.sort_values("trainers").groupby(["protocol", "seed"], sort=False):
        trainers, eps = group["trainers"].to_numpy(), group["eps"].to_numpy()
        one = eps[0] / trainers[0]
        found = {"efficiency": eps[-1] / trainers[-1] / one, "bend": eps.max() / one}
        rows.append({"subject": protocol, "seed": seed, **found})
    return pd.DataFrame(rows)


def speed(run: Run, size: int) -> dict[str, float]:
    """Examples per second, and the sync gap: counted, and by the paper's formula (Sec. 4.1.1), steps over the copies of `size`
    bytes that the sync servers' traffic holds: of what they take alone, or of what they take and give. The paper does not say
    which it counts."""
    moved, steps = run.summary["bytes_by_kind"], run.summary["issued"]
    taken, given = (moved.get(kind, 0) for kind in ("mix dense", "mix answers"))
    ways = {"taken": taken, "taken and given": taken + given}
    found = {"eps": run.steady_qps, "gap": run.summary["sync_gap"]}
    return found | {way: steps * size / of if of else float("nan") for way, of in ways.items()}
