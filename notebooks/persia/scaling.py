"""How Persia's modes grow with the GPUs, in timing runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import pandas as pd

from lib import Lognormal, Run, Work, sweep
from lib.drivers.trainer import FORWARD
from lib.tasks.click_models import TABLE
from lib.tasks.flat_model import FlatModel
from notebooks import study
from notebooks.persia.tasks import MODES, speed_job


def step_parts(job: Mapping) -> dict[str, float]:
    """Seconds of the parts of a step, from operations, bytes and latencies alone: to compute, to average the network, both where
    buckets are averaged during backward, how much of it crosses what rows cross, to step the network, to bring a machine's rows,
    or to take their gradients back, one GPU's part of that, and how long servers answer the other machines before the last."""
    task, cluster = job["workload"], job["cluster"]
    node, machines = cluster.worker, len(cluster.uplinks) or cluster.workers
    each = cluster.workers // machines  # GPUs that share an interface
    interface = cluster.uplinks[0].bandwidth if cluster.uplinks else node.bandwidth

    def averaged(parameters: int) -> tuple[float, float]:
        levels = ((each, node.bandwidth), (machines, interface))
        inside, between = (2 * (n - 1) * (4 * parameters / n / speed + node.latency) for n, speed in levels)
        return inside + between, between

    model, ids = FlatModel(task.model(0)), task.batch(job["seed"], 0).ids[TABLE]
    sizes = [each.stop - each.start for each in model.buckets(MODES["hybrid"].buckets)]
    compute, end = node.device.seconds(task.work()), 0.0
    for size, done in zip(sizes, accumulate(sizes), strict=True):
        end = max(end, compute * (FORWARD + (1 - FORWARD) * done / model.size)) + averaged(size)[0]
    average, between = averaged(model.size)
    stepped = node.device.seconds(Work(bytes=3 * 4 * (model.size + task.dense_optimizer.columns(model.size))))
    size = each * ids.size * (4 * task.dim + ids.itemsize)
    answer = (machines - 1) * size / (cluster.servers * cluster.server.bandwidth)
    part = {"compute": compute, "average": average, "both": end, "between": between, "step": stepped}
    return part | {"rows": size / interface, "own": size / each / interface, "answer": answer}


def predict(job: Mapping) -> dict[str, float]:
    """The hybrid's speed as a multiple of sync's, by hand.

    The bound is what no system can pass, (C + A + 2 R) / max(C, A + R): sync does one part after the other, and all rows of a
    machine are there at once. Four things keep the simulator from it:

    - An interface carries one GPU's rows after the other's. So the last GPU of a machine begins when all rows have come, and when
      it has computed its own are the last to go back: the others' went while it computed.
    - Those go during the average, of which what crosses the interface has half of it meanwhile.
    - The last buckets are averaged after backward, together with the rows that are queued then.
    - Servers answer one machine after the other, and the network takes its step.
    """
    part = step_parts(job)
    sync, network = part["compute"] + part["average"] + 2 * part["rows"], part["average"] + part["rows"]
    back = max(part["average"] + min(part["between"], part["own"]), part["own"])
    hybrid = max(part["both"] + min(part["between"], part["rows"]), network)
    return part | {
        "bound": sync / max(part["compute"], network),
        "foretold": (part["rows"] + part["answer"] + part["compute"] + back + part["step"]) / (hybrid + part["step"]),
    }


def check_predictions(settings: Mapping[str, Mapping], seed: int) -> tuple[pd.DataFrame, list[Run]]:
    """Compare the prediction of each setting with runs whose steps all take equally long."""
    even = [job | {"cluster": replace(job["cluster"], slowdown=Lognormal(sigma=0.0))} for job in settings.values()]
    runs = sweep([job | {"protocol": MODES[mode]} for mode in ("sync", "hybrid") for job in even])
    pairs = zip(runs[: len(even)], runs[len(even) :], strict=True)
    data = pd.DataFrame([predict(job) for job in even]).assign(subject=[*settings], seed=seed)
    data["run"] = [hybrid.steady_qps / sync.steady_qps for sync, hybrid in pairs]
    return data.assign(**{"over foretold": data["run"] / data["foretold"]}), runs


def with_slow_servers(
    modes: Sequence[str], sizes: Sequence[int], waits: Sequence[float], seed: int, width: int
) -> pd.DataFrame:
    """Throughput over sync's with eight GPUs on Kwai's data, by samples of a GPU's step and by milliseconds that servers take
    more for each request; and with embedding workers in between."""
    spots = study.grid(protocol=modes, samples=sizes, wait=waits, between=(False,), seed=[seed])
    spots += study.grid(protocol=modes, samples=sizes, wait=(0,), between=(True,), seed=[seed])

    def job(protocol: str, samples: int, wait: float, between: bool, seed: int) -> dict:
        shape = {"batch": samples, "steps": 16, "width": width}
        return speed_job("kwai", protocol, 8, seed, wait=wait / 1e3, between=between, **shape)

    data, _ = study.run_grid(job, spots, qps=study.pace)
    base = study.baseline(data, "qps", ["samples", "wait", "between", "seed"], protocol="sync")
    return data.assign(**{"over sync": data["qps"] / base})


def utilisation(run: Run) -> float:
    """The share of its time, from its first gradient to its last, in which a GPU computes gradients."""
    work = run.trace[run.trace["kind"] == "compute"].assign(computed=lambda t: t["end"] - t["start"])
    each = work.groupby("node", observed=True).agg({"computed": "sum", "start": "min", "end": "max"})
    return float((each["computed"] / (each["end"] - each["start"])).mean())


def efficiencies(data: pd.DataFrame) -> pd.DataFrame:
    """Of each mode and step from one crew to the next: its throughput over what the smaller one's would come to."""
    data = data.sort_values(["subject", "seed", "workers"])
    few = data.groupby(["subject", "seed"])[["workers", "qps"]].shift()
    efficiency = data["qps"] * few["workers"] / (few["qps"] * data["workers"])
    data = data.assign(efficiency=efficiency, few=few["workers"]).dropna(subset=["few"]).astype({"few": int})
    steps = data["subject"] + ", " + data["few"].astype(str) + " to " + data["workers"].astype(str)
    return data.assign(subject=steps)[["subject", "seed", "efficiency"]]
