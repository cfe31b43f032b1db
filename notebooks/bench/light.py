"""What a step of the light click model costs on a virtual cluster, next to the same model through torch's autograd."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import lib
from lib.tasks.clicks import LightClicks
from notebooks.bench.pairs import at_most

LIMITS = {"sync": 0.35, "gba": 0.35, "s-easgd": 0.5}
"""Milliseconds of one core that a step of 64 samples may take."""


@dataclass(frozen=True, kw_only=True)
class ThroughAutograd(LightClicks):
    def model(self, seed: int) -> torch.nn.Module:
        model = super().model(seed)
        model.gradients = None
        return model


def measure(steps: int, workers: int = 16) -> Iterator[dict]:
    torch.set_num_threads(1)
    for protocol, limit in LIMITS.items():
        spent = {}
        for kind in (LightClicks, ThroughAutograd):
            for many in (100, steps):  # what is imported and compiled late is not measured
                cluster, start = lib.VirtualCluster(workers=workers, slowdown=0.6), time.process_time()
                lib.train(kind(samples=64 * many), protocol, cluster, save=False)
            spent[kind] = 1_000 * (time.process_time() - start) / steps
        row = {"what": f"ms of one core a step, {protocol}, {workers} workers"}
        yield row | at_most(limit, spent[LightClicks]) | {"through autograd": spent[ThroughAutograd]}
