"""A run that is stopped in the middle, and whether two runs are the same to the bit."""

from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest

from lib.drivers.plan import Plan
from lib.errors import Damaged


class Killed(Exception):
    pass


@contextmanager
def killed(monkeypatch, after: int):
    """What is trained inside is killed when the next batch is made after so many."""
    made, original = [], Plan.batch

    def batch(self, index):
        made.append(index)
        if len(made) > after:
            raise Killed
        return original(self, index)

    with monkeypatch.context() as patched:
        patched.setattr(Plan, "batch", batch)
        with pytest.raises(Killed):
            yield


def assert_same(a, b):
    assert a.digest == b.digest
    for name in ("history", "trace", "usage"):
        one, other = (getattr(run, name).drop(columns="norm", errors="ignore") for run in (a, b))
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    if "norm" in a.trace:  # a sum, whose order a device chooses by where the memory lies
        np.testing.assert_allclose(a.trace["norm"], b.trace["norm"], rtol=1e-6)
    assert a.summary.keys() == b.summary.keys()
    for key, value in a.summary.items():
        np.testing.assert_equal(b.summary[key], value, err_msg=key)


def assert_named_when_damaged(file, resume):
    """A byte in the middle is another: the file is named, and nothing is trained on."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 8
    file.write_bytes(data)
    with pytest.raises(Damaged, match=rf"{file.name} is no checkpoint, or a damaged one"):
        resume()
