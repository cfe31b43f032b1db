"""A protocol on a workload and a cluster, to be run at several rates and on several seeds; and the time until a quality."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from lib import BadOption, Cluster, Job, Pair, Rule, Run, Workload
from lib.protocols import get
from lib.training.resolve import applicable, resolve
from lib.training.train import Options
from notebooks import study

METRICS = ("auc", "accuracy", "f1", "mrr")
"""What is compared: the first of these that the workload is evaluated by."""
FEW = 100
"""Updates below which a run says little of longer ones (`02_regime`)."""
LEAST = 64_000
"""Samples of a run that does not say how many: so many, or FEW batches of every worker; never more than a pass."""


@dataclass(frozen=True)
class Trial:
    """One protocol on the workload and the cluster."""

    workload: Workload
    protocol: Rule | Pair
    cluster: Cluster
    settings: Mapping

    @classmethod
    def of(
        cls, workload: Workload | str, protocol: Rule | Pair | str, cluster: Cluster | str, options: Mapping
    ) -> Self:
        """With those of the options that something of it has."""
        own = applicable(Options, workload, protocol, cluster, options)
        *made, _ = resolve(Options, workload, protocol, cluster, own)
        known = {field.name for field in fields(Options)}
        settings = {name: value for name, value in own.items() if name.partition(".")[0] in known}
        # Rates are tried until they are too large for a protocol.
        return cls(*made, {"evaluations": study.marks(10), "trace": False, "on_nan": "skip"} | settings)

    def job(self, rate: float, seed: int, **changed) -> dict:
        workload = self.workload
        faster = {
            name: replace(own := getattr(workload, name), lr=own.lr * rate)
            for name in ("dense_optimizer", "row_optimizer")
        }
        world = {"world": seed} if hasattr(workload, "world") and not getattr(workload, "data", None) else {}
        given = {"workload": replace(workload, **faster, **world), "protocol": self.protocol, "cluster": self.cluster}
        return study.job(**given, seed=seed, **self.settings) | changed

    @property
    def update(self) -> int:
        """Samples of one batch of every worker."""
        return Job.of(**self.job(1.0, 0)).staged_run.plan.workers * self.workload.batch_size

    @property
    def samples(self) -> int:
        """Of a run."""
        return self.settings.get("samples") or self.workload.samples

    def untrained(self, seed: int) -> dict:
        """A pass that trains nothing."""
        return self.job(1.0, seed, protocol=get("frozen"), samples=self.workload.batch_size, evaluations=1)


def with_samples(
    workload: Workload | str, protocol: Rule | Pair | str, cluster: Cluster | str, options: Mapping
) -> dict:
    """The options with a number of samples, unless they or a profile say how many."""
    if options.keys() & {"samples", "profile"}:
        return dict(options)
    trial = Trial.of(workload, protocol, cluster, options)
    return {**options, "samples": min(trial.workload.samples, max(LEAST, FEW * trial.update))}


def metric_of(run: Run) -> str:
    if (found := next((name for name in METRICS if name in run.summary), None)) is None:
        raise BadOption(f"compare: the workload is evaluated by none of {', '.join(METRICS)}")
    return found


def seconds_to(run: Run, metric: str, start: float, goal: float) -> float:
    """The seconds until a run that began at `start` is at the goal; nan: it never is."""
    course = run.history[["time", run.history_column(metric)]].dropna().to_numpy()
    reached = crossing(np.array([(0.0, start), *course]), goal)
    return math.nan if reached is None else float(reached[0])


def crossing(course: np.ndarray, goal: float) -> np.ndarray | None:
    """The other columns of a course where its last column, the metric, first reaches the goal, interpolated between rows.
    None if it never does; the first row if it starts there."""
    above = course[:, -1] >= goal
    if not above.any():
        return None
    at = int(above.argmax())
    before, after = course[max(at - 1, 0)], course[at]
    share = (goal - before[-1]) / (after[-1] - before[-1]) if at else 1.0
    return (before + share * (after - before))[:-1]
