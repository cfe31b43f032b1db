"""All families of protocols against sequential training in plain torch, on a folder of real data, at equal tuning budgets."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import torch

from lib import Adagrad, VirtualCluster, Workload, protocols, workloads
from lib.tasks.workload import evaluate
from notebooks import setting, study

PLAIN = "plain torch"
"""Sequential training by torch's own modules, embeddings and Adagrad; everything else is this kit."""
WORKERS = 4
"""Of the protocols with workers, whose batches together are one of sequential training."""
FAMILIES = ("sync", "gba", "hop-bs", "async", "hybrid", "s-easgd", "ds-sync", "prague")
PIPELINES = ("sequential", "pipelined", "oac")
ALL = (*FAMILIES, *PIPELINES)
RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Of Adagrad for rows and dense parameters: the budget of every protocol and of plain torch, on one tuning seed."""
MODELS: Mapping[str, tuple[str, str, dict]] = {
    "clicks": ("criteo-deepfm", "auc", {"batch_size": 128}),
    "triples": ("freebase86m-graphsage", "mrr", {"batch_size": 1_024, "negatives": 256, "dim": 50, "scale": 0.1}),
}
"""Kind of data -> workload, metric, options; setup 1 of OAC is GraphSage under DistMult."""
EPOCHS = {
    "smoke": {"clicks": 1, "triples": 1},
    "laptop": {"clicks": 1, "triples": 10},
    "full": {"clicks": 1, "triples": 10},
}


def kind() -> str:
    """What the folder holds."""
    return setting.served({name: name for name in MODELS})[0]


def metric() -> str:
    return MODELS[kind()][1]


def workload(rate: float, profile: str, parts: int = 1) -> Workload:
    """The folder's task, each batch cut in so many parts."""
    name, _, options = MODELS[kind()]
    own = options | {"batch_size": options["batch_size"] // parts}
    rates = dict.fromkeys(("dense_optimizer", "row_optimizer"), Adagrad(lr=rate))
    made = workloads.get(name, **setting.with_data(name, own | rates))
    passes = EPOCHS[profile][kind()]
    return workloads.get(name, **setting.with_data(name, own | rates | {"samples": passes * made.samples}))


def job(protocol: str, rate: float, seed: int, profile: str) -> dict:
    parts = 1 if protocol in PIPELINES else WORKERS
    cluster = VirtualCluster(workers=None if protocol in PIPELINES else WORKERS, slowdown=0.4)
    return study.job(workload(rate, profile, parts), protocols.get(protocol), cluster, seed)


def plain_torch(rate: float, seed: int, profile: str) -> float:
    """Train the same model on the same batches in their order, and return the metric at the end."""
    task = workload(rate, profile)
    batches = [task.batch(seed, index) for index in range(task.batches())]
    held_out = task.evaluation_ids(seed)
    known = {
        name: np.unique(np.concatenate([*(batch.ids[name] for batch in batches), held_out[name]]))
        for name in task.tables()
    }
    generator = torch.Generator().manual_seed(seed)
    rows = {
        name: torch.nn.Parameter(
            torch.empty(len(known[name]), spec.dim).uniform_(-spec.scale, spec.scale, generator=generator)
        )
        for name, spec in task.tables().items()
    }
    model = task.model(seed)
    optimizer = torch.optim.Adagrad([*model.parameters(), *rows.values()], lr=rate)
    for batch in batches:
        own = {name: rows[name][torch.from_numpy(np.searchsorted(known[name], batch.ids[name]))] for name in rows}
        moved = batch.to(torch.device("cpu"))
        optimizer.zero_grad()
        model.loss(moved, model(moved, own)).backward()
        optimizer.step()
    final = {
        name: values.detach().numpy()[np.searchsorted(known[name], held_out[name])] for name, values in rows.items()
    }
    return evaluate(task, model, final, seed)[metric()]


def values(cases: Iterable[study.Case], profile: str) -> list[float]:
    """The metric at the end of each case: a protocol or plain torch, a rate and a seed."""
    keys = [(case["protocol"], case["rate"], case["seed"]) for case in cases]
    runs = study.run({key: job(*key, profile) for key in keys if key[0] != PLAIN})
    return [runs[key].summary[metric()] if key in runs else plain_torch(*key[1:], profile) for key in keys]


def tune(names: Iterable[str], profile: str, rates: Iterable[float], seeds: Iterable[int]) -> pd.DataFrame:
    """The metric of each protocol at each rate, on tuning seeds."""
    cases = study.grid(protocol=names, rate=rates, seed=seeds)
    return pd.DataFrame(cases).assign(value=values(cases, profile))


def compare(curve: pd.DataFrame, profile: str, seeds: Iterable[int]) -> pd.DataFrame:
    """Each protocol at its own best rate on other seeds, and minus plain torch with the same seed."""
    means = curve.groupby(["protocol", "rate"], sort=False)["value"].mean().unstack()
    cases = [
        {"protocol": name, "rate": float(rate), "seed": seed}
        for name, rate in means.idxmax(axis=1).items()
        for seed in seeds
    ]
    data = pd.DataFrame(cases).assign(**{metric(): values(cases, profile)})
    return study.differences(data, [metric()], ["seed"], protocol=PLAIN)
