"""Whether two tables hold the same."""

import numpy as np


def same(a, b):
    """Tables or their rows: equal in ids, values, optimiser state and timestamps."""
    a, b = (each.export() if hasattr(each, "export") else each for each in (a, b))
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("ids", "values", "state", "stamps"))
