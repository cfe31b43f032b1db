"""Benchmarks: ratios against a peer or a limit, measured in one run. Each is a function that yields rows of figures."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from lib import paths
from lib.errors import unknown

if TYPE_CHECKING:
    import pandas as pd

ALL = ("store", "virtual")
"""Modules of this package."""


def run(name: str, **options: Any) -> pd.DataFrame:
    """Measure, and keep the figures with their provenance under the reports folder."""
    if name not in ALL:
        raise unknown("benchmark", name, ALL)
    import pandas as pd

    from lib.results.provenance import machine

    table = pd.DataFrame(importlib.import_module(f"notebooks.bench.{name}").measure(**options))
    folder = paths.reports() / "bench"
    paths.write_text_atomic(folder / f"{name}.csv", table.to_csv(index=False))
    paths.write_text_atomic(folder / f"{name}.json", json.dumps(machine(), indent=1))
    return table
