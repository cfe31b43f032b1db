"""How long an iteration takes: in the paper's Table 4, and in timing runs of its models on its cluster.

The paper's code averages tensor after tensor. Each is a ring in chunks of its own, whose steps take a latency each; that latency
is fitted to BSP's seconds on CIFAR-10 with sixteen nodes, and what a step computes to BSP's with four. No figure of DS-Sync is
used: all of its seconds are predicted, and BSP's of the other models with sixteen nodes.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd

from lib import Rule, Run
from lib.protocols.all_reduce import AllReduce
from lib.protocols.baselines import Async
from lib.protocols.dssync import DSSync
from lib.protocols.mixing import Buckets
from notebooks import clusters, study
from notebooks.dssync import vector
from notebooks.dssync.vector import MODELS

NODES = (4, 16)

STEPS = 6
"""Of a worker in a run."""

SIGMA = 0.02
"""Of the logarithm of a step's time, an estimate: GPUs of one kind on a quiet cluster."""

BUCKET = 25e6
"""Bytes in which PyTorch's DDP averages a gradient."""

LATENCY = 81e-6
"""Seconds of each of a ring's steps: Table 4's BSP with sixteen nodes less that with four, on CIFAR-10, less 3 / 8 of D / B, over
142 tensors and 24 steps."""

COMPUTE = (0.367, 0.369, 0.42, 0.67, 3.994)
"""Seconds of a step of each of `MODELS`: Table 4's of BSP with four nodes less 3 / 2 of D / B and six latencies a tensor."""

TABLE_4 = {(model, nodes): tuple(row) for model, nodes, *row in study.paper_table("dssync", "table 4")}
"""Model and nodes -> BSP's iterations and wall seconds until it has converged, then DS-Sync's."""

Options = Mapping


def rules(model: str, buckets: Buckets = "tensor") -> dict[str, Rule]:
    """BSP and DS-Sync as the paper's code has them; BSP in PyTorch's buckets, after backward and during it; ASP, whose vectors
    travel whole, and a DS-Sync whose vectors do."""
    ddp = max(1, round(4 * sum(MODELS[model]) / BUCKET))
    return {
        "bsp": AllReduce(buckets=buckets, overlapped=False),
        "bsp, buckets": AllReduce(buckets=ddp, overlapped=False),
        "bsp, overlapped": AllReduce(buckets=ddp),
        "ds-sync": DSSync(buckets=buckets),
        "ds-sync, whole": DSSync(),
        "asp": Async(),
    }


RULES = tuple(rules("CIFAR-10"))


def unit(model: str, gbit: float = 10.0) -> float:
    """D / B: seconds in which a link of the paper's carries the model's parameters once."""
    return 4 * sum(MODELS[model]) / (gbit * clusters.GBIT)


def job(
    model: str,
    protocol: str,
    nodes: int,
    seed: int,
    *,
    seconds: float | None = None,
    buckets: Buckets = "tensor",
    gbit: float = 10.0,
    **options,
) -> dict:
    """Links take as long for our vector as the paper's for the model's."""
    if seconds is None:
        seconds = dict(zip(MODELS, COMPUTE, strict=True))[model]
    cluster = vector.cluster(nodes, unit(model, gbit), **{"sigma": SIGMA, "latency": LATENCY, **options})
    rule = rules(model, buckets)[protocol]
    return vector.job(rule, cluster, seed, steps=STEPS, seconds=seconds, tensors=tuple(MODELS[model]))


def iterations(
    models: Iterable[str],
    seeds: Iterable[int],
    protocols: Iterable[str] = RULES,
    nodes: Iterable[int] = NODES,
    **options,
) -> tuple[pd.DataFrame, list[Run]]:
    """Seconds of an iteration and BSP's over them, for each model, number of nodes, rule and seed; and the runs."""
    found, runs = study.run_grid(
        partial(job, **options),
        study.grid(model=models, nodes=nodes, protocol=protocols, seed=seeds),
        seconds=_seconds,
    )
    for name, base in (
        ("speed-up", "bsp"),
        ("against buckets", "bsp, buckets"),
        ("against overlap", "bsp, overlapped"),
    ):
        found[name] = study.baseline(found, "seconds", ["model", "nodes", "seed"], protocol=base) / found["seconds"]
    return found.assign(subject=found["protocol"] + ", " + found["model"] + ", " + found["nodes"].astype(str)), runs


def paper_table() -> pd.DataFrame:
    """Table 4's seconds of an iteration, what DS-Sync saves of them in units of D / B, and how many times as long BSP's takes;
    next to what chunked rings and hops of the whole vector save; and its seconds with sixteen nodes over BSP's with four."""
    rows = pd.DataFrame(TABLE_4).T.to_numpy().T
    data = pd.DataFrame([*TABLE_4], columns=["model", "nodes"])
    data["bsp"], data["ds-sync"] = rows[1] / rows[0], rows[3] / rows[2]
    data["speed-up"], units = data["bsp"] / data["ds-sync"], data["model"].map(unit)
    data["saved, in D / B"] = (data["bsp"] - data["ds-sync"]) / units
    data["by chunks"] = data["nodes"].map({4: 0.5, 16: 0.375})
    data["by hops"] = data["nodes"].map({4: 4, 16: 24})
    four = data[data["nodes"] == 4].set_index("model")["bsp"]
    return data.assign(
        **{"ds-sync over bsp with four": (data["ds-sync"] / data["model"].map(four)).where(data["nodes"] == 16)}
    )


def by_size(found: pd.DataFrame) -> pd.DataFrame:
    """DS-Sync's speed-up with four nodes by the model's size, the largest first, next to Table 4's; and how many numbers a model
    of so many tensors would have, for a ring of two to save what Table 4's does compared with a ring of four."""
    ours = found[(found["protocol"] == "ds-sync") & (found["nodes"] == 4)].groupby("model")["speed-up"].mean()
    printed = paper_table().query("nodes == 4").set_index("model").loc[ours.index]
    latencies = pd.Series({model: 4 * LATENCY * len(MODELS[model]) for model in ours.index})
    columns = {"numbers": pd.Series({model: sum(MODELS[model]) for model in ours.index}) / 1e6}
    columns |= {"speed-up": ours, "paper": printed["speed-up"]}
    saved = 2 * (printed["bsp"] - printed["ds-sync"] - latencies)
    columns["numbers for the paper's"] = columns["numbers"] * saved / [unit(model) for model in ours.index]
    return pd.DataFrame(columns).sort_values("numbers", ascending=False)


def refit(model: str, seed: int, options: Options) -> float:
    """Seconds that a step has to compute, so that an iteration of BSP with four nodes takes Table 4's in another world; an
    iteration is what is sent, and a barrier's factor times that. Not a number where what is sent alone takes longer."""
    tries = {seconds: job(model, "bsp", 4, seed, seconds=seconds, **options) for seconds in (0.0, 1.0)}
    sent, one = (_seconds(run) for run in study.run(tries).values())
    iterations, wall, *_ = TABLE_4[model, 4]
    left = (wall / iterations - sent) / (one - sent)
    return left if left > 0 else float("nan")


def in_other_worlds(models: Iterable[str], seeds: Iterable[int], tried: Mapping[str, Options]) -> pd.DataFrame:
    """DS-Sync's speed-up in other worlds by model and nodes, each with what its steps compute fitted anew."""
    models, seeds, found = list(models), list(seeds), {}
    for columns, options in tried.items():
        for model in models:
            seconds = refit(model, seeds[0], options)
            if not seconds > 0:
                continue
            data, _ = iterations([model], seeds, ("bsp", "ds-sync"), seconds=seconds, **options)
            ours = data[data["protocol"] == "ds-sync"]
            for nodes, mean in ours.groupby("nodes")["speed-up"].mean().items():
                found[model, nodes, columns] = mean
    keys = pd.MultiIndex.from_product([models, NODES], names=["model", "nodes"])
    return pd.Series(found).unstack().reindex(index=keys, columns=[*tried])


def _seconds(run: Run) -> float:
    return run.summary["virtual_seconds"] / STEPS
