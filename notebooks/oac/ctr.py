"""Click models in a pipeline, beyond the paper: rows in the host's memory, dense parameters on the device."""

from __future__ import annotations

from typing import Any

from lib import workloads
from lib.store.optim import Adagrad
from notebooks.oac.tasks import SETUPS

NETWORKS = ("deepfm", "dlrm", "ffnn")

MODES = ("sequential", "pipelined", "oac", "frozen")
"""Frozen trains nothing: from there to the best is all that can be lost."""


def job(network: str, mode: str, seed: int, samples: int) -> dict[str, Any]:
    """One pass on setup 1's machine: stages last as long as there, and as many batches are in flight as it has cores."""
    setup, rate = SETUPS["setup 1"], Adagrad(lr=0.03)
    task = workloads.get(
        "ctr-synthetic",
        network=network,
        samples=samples,
        batch_size=64,
        days=1,
        drift=0.0,
        dense_optimizer=rate,
        row_optimizer=rate,
        world=seed,
    )
    protocol = mode if mode == "frozen" else setup.rule(mode)
    return {"workload": task, "protocol": protocol, "cluster": setup.cluster(task), "seed": seed, "trace": False}
