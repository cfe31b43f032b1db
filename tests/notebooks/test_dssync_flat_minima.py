"""Sharpness, with numbers that can be checked by hand."""

import numpy as np
import pytest
import torch

import lib
from notebooks.dssync import flat_minima, quality


def bowl(curvatures, at):
    """1/2 of the sum of curvature x squared parameter, and its parameters, one tensor each."""
    own = [torch.tensor([float(value)], dtype=torch.float64, requires_grad=True) for value in at]
    return lambda: sum(0.5 * c * x.square().sum() for c, x in zip(curvatures, own, strict=True)), own


@pytest.mark.parametrize("curvatures", [(1.0, 4.0, 9.0), (-9.0, 4.0, 1.0), (5.0, 5.0, 5.0)])
def test_the_largest_eigenvalue_by_hand(curvatures):
    loss, own = bowl(curvatures, (1, 2, 3))
    assert flat_minima.largest_eigenvalue(loss, own) == pytest.approx(max(curvatures, key=abs), rel=0.02)


def test_the_rise_by_hand_leaves_the_model_as_it_is():
    """1/2 x 4 x 1.02^2 minus 2 along the only axis; at twice the weights and a quarter of the curvature it is the same."""
    loss, own = bowl([4.0], [1.0])
    assert flat_minima.rise(loss, own, radius=0.02) == pytest.approx(2 * (1.02**2 - 1)) and own[0].item() == 1
    wide, twice = bowl([1.0], [2.0])
    assert flat_minima.rise(wide, twice, radius=0.02) == pytest.approx(2 * (1.02**2 - 1))


def test_a_run_is_measured_at_its_final_model():
    case, shape = {"mode": "DS-Sync", "seed": 7}, {"steps": 2, "evaluations": 1}
    made = flat_minima.job(**case, **shape)
    base = quality.job("images", "DS-Sync", 7, rate=9.0, **shape)
    assert made == base | {"keep": True}
    run = lib.train(**made, save=False)
    found = flat_minima.sharpness(run, **case)
    assert found["norm"] == pytest.approx(np.linalg.norm(run.model.dense["values"]))
    assert found["largest eigenvalue"] > 0 and found["rise in the ball"] > 0
    run.model.dense["values"][:] *= 2  # batch normalisation: nearly the same function, but for its own parameters
    assert flat_minima.sharpness(run, **case)["norm"] == pytest.approx(2 * found["norm"])
