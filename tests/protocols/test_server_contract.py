"""Server rules that know how old a gradient is: numbers that can be checked by hand."""

import numpy as np
import pytest
import torch

from lib import VirtualCluster
from lib.errors import BadOption
from lib.protocols import get
from lib.protocols.baselines import Async
from lib.protocols.delay import DCASGD, StalenessAware
from lib.store.optim import SGD, Adagrad, Adam
from tests.toys import Letters, finals, records

PLAIN = SGD(lr=1.0)


def trained(rule, workers=2, optimizer=PLAIN):
    """Workers whose gradients are -1, with one batch each: all read before anybody's update."""
    workload = Letters(samples=workers, dense_optimizer=optimizer, row_optimizer=optimizer, reads=("a",))
    # Ranks are served one after another, so the first update is in the store before the second gradient arrives.
    cluster = VirtualCluster(workers=workers, speeds=tuple(1 / (rank + 1) for rank in range(workers)))
    final = finals(records(workload, rule, cluster))
    return final["server0/dense"][0]["values"].item(), final["server0/rows"]["letter"].values.item()


def test_a_rate_falls_with_staleness():
    """Steps of 1, 1 (one update old), 1/2 (two old) and 1/3."""
    assert trained(StalenessAware(), workers=4) == pytest.approx((2 + 1 / 2 + 1 / 3,) * 2)
    assert trained(Async(), workers=4) == (4, 4)


@pytest.mark.parametrize("optimizer", [Adagrad(lr=0.1), Adam(lr=0.1)])
def test_a_rate_is_no_scale_of_the_gradient(optimizer):
    """Adam and Adagrad would hardly feel that: dense parameters and rows move as torch's do at that rate."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    kind = torch.optim.Adam if isinstance(optimizer, Adam) else torch.optim.Adagrad
    steps = kind([parameter])
    for tau in (1, 1, 2, 3):
        steps.param_groups[0]["lr"] = optimizer.lr / tau
        parameter.grad = torch.tensor([-1.0])
        steps.step()
    assert trained(StalenessAware(), 4, optimizer) == pytest.approx((parameter.item(),) * 2, rel=1e-5)


def test_delays_are_compensated():
    """The first gradient is -1, so w = 1; the second is -1 + 0.5 * 1 * (1 - 0) = -0.5, so w = 1.5."""
    assert trained(DCASGD()) == (1.5, 1.5)
    assert trained(DCASGD(compensation=0.0)) == trained(Async()) == (2, 2)


def test_the_adaptive_compensation_is_over_the_root_of_the_mean_square():
    """Gradients of -1, and three workers that read 0: the moving mean is 1/2, 3/4, 7/8, for dense parameters and rows alike."""
    w = mean = 0.0
    for _ in range(3):
        mean = mean / 2 + 1 / 2
        w -= -1 + 0.5 / (mean + 1e-7) ** 0.5 * w
    assert trained(DCASGD(decay=0.5), workers=3) == pytest.approx((w, w), rel=1e-6)


@pytest.mark.parametrize("answer", [np.zeros(1, np.float32), (np.zeros(3, np.float32), None), (None, None)])
def test_a_correction_of_another_form_is_told(answer):
    class Mine(DCASGD):
        def compensate(self, gradient, now, read, memory):
            return answer

    with pytest.raises(BadOption, match=r"dc-asgd: compensate must return two things, gradient and memory"):
        trained(Mine())


def test_a_correction_that_writes_into_what_it_was_given_is_told():
    class Mine(DCASGD):
        def compensate(self, gradient, now, read, memory):
            memory += 1
            return gradient, memory

    with pytest.raises(BadOption, match="dc-asgd: compensate writes into an array"):
        trained(Mine())


def test_gbas_gradients_are_one_step_older_than_it_tolerates_at_most():
    """A token is at least a step old where its gradient is applied."""
    assert [get("gba", iota=iota).max_staleness for iota in (0, 1, 3, 4)] == [1, 2, 4, 5]
    assert get("gba", size=5).max_staleness == float("inf")
