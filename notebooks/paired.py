"""The only way that a page's table of differences is made: run by run with one seed, in one world.

    data = paired.less(data, ["auc"], ["task", "seed"], protocol="sync")  # with a column "auc less sync's"

Worlds differ by far more than modes do, so that means or ranges of each mode alone, set side by side, show the worlds.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from notebooks import study


def less(data: pd.DataFrame, columns: Sequence[str], same: Sequence[str], **base: Any) -> pd.DataFrame:
    """The data, and each of the columns less that of the row that is the `base` and has the `same` values, by a name that says
    so; not a number where there is no such row."""
    whose = ", ".join(map(str, base.values()))
    apart = {f"{name} less {whose}'s": data[name] - study.beside(data, name, same, **base) for name in columns}
    return data.assign(**apart)
