"""How accurate virtual time is: a model of a real cluster, made from one run on it and compared with other runs."""

from collections.abc import Iterable, Mapping
from itertools import permutations

import pandas as pd

from lib import Cluster, Node, Run, VirtualCluster, Workload, train

ENDLESS = 1e18
"""Bytes or operations per second of what costs nothing compared with what was measured."""


def model_of(run: Run, workload: Workload, speed: float = 1.0) -> dict[str, Node]:
    """The nodes of a virtual cluster on which one worker takes the times that it took in `run`.

    From a run of a server rule with one worker, slowed as steadily as the workers that are to be predicted: a processor that
    has slept finds its caches cold. Computing takes what it took in the median, less that slowness. What lies between two
    computations (getting parameters, making the batch, the event loop) becomes latency: there are two calls, there and back.
    What a server needs to apply a gradient is its own time.
    """
    spans = run.trace.assign(seconds=run.trace["end"] - run.trace["start"])
    steady = spans[spans["batch"] >= spans["batch"].max() // 4]  # the first calls compile and allocate
    median = steady.groupby("kind")["seconds"].median()
    compute = steady[steady["kind"] == "compute"].sort_values("start")
    cycle = compute["start"].diff().median()
    latency = max(0.0, cycle - median["compute"]) / 4
    alone = median["compute"] * speed
    worker = Node(flops=workload.work().flops / alone, core_memory=ENDLESS, bandwidth=ENDLESS, latency=latency)
    server = Node(flops=ENDLESS, core_memory=_apply_rate(run, median), bandwidth=ENDLESS, latency=latency, cores=1)
    return {"worker": worker, "server": server}


def compare(cluster: Cluster, workload: Workload, protocols: Iterable[str], nodes: Mapping[str, Node]) -> list[dict]:
    """Throughput of each protocol on a real cluster and on its model, with the same injected slowdowns."""
    weather = {"slowdown": cluster.slowdown, "speeds": cluster.speeds}
    modelled = VirtualCluster(workers=cluster.workers, collective="ring", **weather, **nodes)  # as gloo
    setting = {"cluster": cluster.name, "workers": cluster.workers, "slowdown": cluster.slowdown.sigma}
    rows = []
    for protocol in protocols:
        # A measurement of the machine as it is now: a saved one would be of another time.
        real = throughput(train(workload, protocol, cluster, force=True), workload)
        model = throughput(train(workload, protocol, modelled), workload)
        found = {"protocol": protocol, "measured": real, "predicted": model, "error": model / real - 1}
        rows.append(setting | found)
    return rows


def throughput(run: Run, workload: Workload) -> float:
    """Samples a second after the first quarter of the batches, in which a real run warms up."""
    ends = run.trace.loc[run.trace["kind"] == "compute", "end"].sort_values().to_numpy()
    first = len(ends) // 4
    return workload.batch_size * (len(ends) - 1 - first) / (ends[-1] - ends[first])


def order_kept(rows: Iterable[Mapping], tie: float = 0.1) -> bool:
    """Whether the model ranks the protocols of each setting as they really came; within `tie` they are equal."""
    table = pd.DataFrame(rows)
    for _, setting in table.groupby(["cluster", "workers", "slowdown"]):
        for one, other in permutations(setting.to_dict("records"), 2):
            clearly = one["measured"] > (1 + tie) * other["measured"]
            if clearly and one["predicted"] <= other["predicted"]:
                return False
    return True


def _apply_rate(run: Run, median: pd.Series) -> float:
    """Bytes per second at which a server applies one worker's gradient, by the bytes that such a gradient has."""
    pushed = sum(size for kind, size in run.summary["bytes_by_kind"].items() if kind.startswith("push"))
    return 3 * pushed / run.summary["issued"] / max(median.get("apply", 0.0), 1e-6)
