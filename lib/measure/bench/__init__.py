"""Benchmarks: ratios against a peer or a limit, measured in one run. Each is a function that yields rows of figures."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from lib import paths
from lib.errors import unknown
from lib.measure.bench import checkpoint, ray, store, virtual
from lib.results.provenance import machine

ALL = {"checkpoint": checkpoint.measure, "ray": ray.measure, "store": store.measure, "virtual": virtual.measure}


def run(name: str, **options: Any) -> pd.DataFrame:
    """Measure, and keep the figures with their provenance under the reports folder."""
    if name not in ALL:
        raise unknown("benchmark", name, ALL)
    table = pd.DataFrame(ALL[name](**options))
    folder = paths.reports() / "bench"
    paths.write_text_atomic(folder / f"{name}.csv", table.to_csv(index=False))
    paths.write_text_atomic(folder / f"{name}.json", json.dumps(machine(), indent=1))
    return table
