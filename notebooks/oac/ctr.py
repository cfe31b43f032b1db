"""Click models in a pipeline, beyond the paper: rows in the host's memory, dense parameters on the device."""

from lib import Adagrad, workloads
from notebooks.oac.tasks import ESTIMATED, SETUPS

NETWORKS = ("deepfm", "dlrm", "ffnn")

MODES = ("sequential", "pipelined", "oac", "frozen")
"""Frozen trains nothing: from there to the best is all that can be lost."""


def job(network: str, protocol: str, seed: int, samples: int, **options) -> dict:
    """One pass on a machine of setup 1's sizes by data sheets, and as many batches are in flight as it has cores."""
    setup, rates = SETUPS["setup 1"], dict.fromkeys(("dense_optimizer", "row_optimizer"), Adagrad(lr=0.03))
    size = {"samples": samples, "batch_size": 64, "days": 1, "drift": 0.0, **options}
    task = workloads.get("ctr-synthetic", network=network, **size, **rates, world=seed)
    rule = protocol if protocol == "frozen" else setup.rule(protocol)
    return {"workload": task, "protocol": rule, "cluster": setup.cluster(task, ESTIMATED), "seed": seed, "trace": False}
