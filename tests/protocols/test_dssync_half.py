"""DS-Sync's messages in half precision: what rounding takes stays with the replica and goes out later."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import LocalCluster, VirtualCluster, train, workloads
from lib.errors import BadOption
from lib.protocols.dssync import DSSync
from lib.protocols.mixing import Mix
from notebooks.dssync import vector

HALF = DSSync(half=True)
ROUNDING = 2.0**-11
"""What half precision takes of a number, at most."""


def met(replicas: np.ndarray, rule: DSSync = HALF) -> np.ndarray:
    """One mix of them all, as a cluster makes it."""
    sent = [rule.send(None, mine, 0) for mine in replicas]
    mean = np.mean(sent, axis=0, dtype=np.float32).astype(sent[0].dtype)
    members = tuple(range(len(replicas)))
    return np.stack(
        [rule.merge(None, mine, Mix(0, members, out, mean))[1] for mine, out in zip(replicas, sent, strict=True)]
    )


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_a_mix_keeps_the_average_and_leaves_replicas_a_rounding_apart(workers, size, seed):
    replicas = (size * np.random.default_rng(seed).normal(size=(workers, 50))).astype(np.float32)
    after, largest = met(replicas), np.abs(replicas).max()
    assert after.dtype == np.float32
    assert np.abs(after.mean(axis=0) - replicas.mean(axis=0)).max() <= ROUNDING * largest + 1e-7
    assert np.abs(after - after[0]).max() <= 2 * ROUNDING * largest + 1e-7


def test_by_hand():
    """Half precision has 1 and 1.0009765625 and nothing between: 1.0004 is sent as 1, and 0.0004 of it is kept."""
    one, other = met(np.array([[1.0004], [3.0]], np.float32))
    assert (one, other) == (pytest.approx(2.0004, abs=1e-6), 2.0)


def test_steps_far_below_a_rounding_add_up():
    """A thousand steps of 1e-5 from 1, where the numbers of half precision are 1e-3 apart."""
    replicas = np.ones((4, 1), np.float32)
    for _ in range(1000):
        replicas = met(replicas + np.float32(1e-5))
    assert replicas == pytest.approx(1.01, abs=1e-3)


def test_it_is_half_the_bytes_and_half_the_time_of_an_average():
    def took(**options):
        job = vector.job(DSSync(**options), vector.cluster(4, 0.04, latency=0.0), 0, seconds=1e-3, steps=6)
        return train(**job, save=False).summary

    whole, half = took(), took(half=True)
    for kind, size in whole["bytes_by_kind"].items():
        assert half["bytes_by_kind"][kind] == size / 2, kind
    assert half["virtual_seconds"] - 6e-3 == pytest.approx((whole["virtual_seconds"] - 6e-3) / 2, rel=1e-3)


def test_timing_runs_and_threads_are_like_the_others():
    clicks = workloads.get("ctr-synthetic", samples=2_000, batch_size=50, vocabulary=40, fields=3, hidden=(8,))
    virtual = [train(clicks, HALF, VirtualCluster(workers=4), gradients=each, save=False) for each in (True, False)]
    assert virtual[0].summary["qps"] == virtual[1].summary["qps"]
    threads = train(clicks, HALF, LocalCluster(workers=4), save=False)
    assert threads.digest == virtual[0].digest
    whole = train(clicks, DSSync(), VirtualCluster(workers=4), save=False)
    assert 0 < abs(whole.summary["auc"] - virtual[0].summary["auc"]) < 0.01


def test_pooled_statistics_need_whole_numbers():
    with pytest.raises(BadOption, match="half=True needs statistics='naive' or 'none'"):
        DSSync(half=True, statistics="pooled")
