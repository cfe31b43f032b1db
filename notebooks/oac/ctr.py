"""Click models in a pipeline, beyond the paper: rows in the host's memory, dense parameters on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from lib import workloads
from lib.results.run import Run
from lib.store.optim import Adagrad
from lib.training.sweep import sweep
from notebooks.oac.convergence import equal
from notebooks.oac.tasks import SETUPS

NETWORKS = ("deepfm", "dlrm", "ffnn")

MODES = ("sequential", "pipelined", "oac", "frozen")
"""Frozen trains nothing: from there to the best is all that can be lost."""

DEVICES = (1, 2, 4)

WIDE = {"batch_size": 4096, "vocabulary": 100_000, "exponent": 1.0}
"""So large a batch that, as with the paper's, its rows outweigh the dense parameters by far."""


def job(network: str, mode: str, seed: int, samples: int, **options) -> dict[str, Any]:
    """One pass on setup 1's machine: stages last as long as there, and as many batches are in flight as it has cores."""
    setup, rate = SETUPS["setup 1"], Adagrad(lr=0.03)
    task = workloads.get(
        "ctr-synthetic",
        network=network,
        samples=samples,
        **{"batch_size": 64, **options},
        days=1,
        drift=0.0,
        dense_optimizer=rate,
        row_optimizer=rate,
        world=seed,
    )
    protocol = mode if mode == "frozen" else setup.rule(mode)
    return {"workload": task, "protocol": protocol, "cluster": setup.cluster(task), "seed": seed, "trace": False}


def on_devices(devices: int, seed: int, samples: int, **options) -> dict[str, Any]:
    """OAC for DeepFM on so many devices of that machine, each with a PCIe of its own; as fast to each other, an estimate."""
    made = job("deepfm", "oac", seed, samples, **options)
    here = made["cluster"]
    links = tuple(replace(here.links[0], ends=("server0", f"worker{device}")) for device in range(devices))
    worker = replace(here.worker, bandwidth=links[0].bandwidth, latency=links[0].latency)
    cluster = replace(here, worker=worker, links=links)
    return made | {"protocol": replace(made["protocol"], devices=devices), "cluster": cluster}


def several(seeds: Sequence[int], samples: int, batches: int) -> tuple[pd.DataFrame, list[Run]]:
    """On one device and on several: whether what is left after so many samples equals the replay, to the byte; and, of so many
    wide batches in a timing run, samples a second and what a batch moves over each device's link, there and back together."""
    places = [(devices, seed) for devices in DEVICES for seed in seeds]
    learning = [on_devices(devices, seed, samples) for devices, seed in places]
    wide = {**WIDE, "samples": batches * WIDE["batch_size"]}
    timing = [on_devices(devices, seed, **wide) | {"gradients": False} for devices, seed in places]
    runs = sweep([*learning, *timing])
    rows = []
    for (devices, seed), made, learnt, timed in zip(places, learning, runs, runs[len(places) :], strict=False):
        links = timed.usage[timed.usage["name"].str.contains(" - ")]  # there, and back
        moved = links["bytes_sent"].sum() / devices / batches
        subject = f"{devices} device{'s' if devices > 1 else ''}"
        same = float(equal(learnt, made["workload"], devices))
        found = {"speed": timed.steady_qps, "kB over each link": moved / 1e3, "equal": same}
        rows.append({"devices": devices, "seed": seed, "subject": subject, **found})
    return pd.DataFrame(rows), runs
