"""Machines that others use too: the distribution of what they leave, and when it changes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lib.cluster.slowdowns import Shared


def course(kind, rank=0):
    return kind.sample_path(0, f"worker{rank}", rank)


def test_shares_are_beta_distributed_about_the_cluster_mean():
    # a = m c = 2, b = (1 - m) c = 2: the share that is left is x with the distribution 3 x^2 - 2 x^3
    kind = Shared(curve=(0.5,), concentration=4.0, hold=1.0)
    each = course(kind)
    left = np.sort([each.speed(float(step))[0] for step in range(20_000)])
    empirical = np.arange(1, left.size + 1) / left.size
    assert np.abs(empirical - (3 * left**2 - 2 * left**3)).max() < 1.63 / left.size**0.5  # KS at 1 %


@pytest.mark.parametrize("mean, concentration", [(0.05, 17.0), (0.3, 17.0), (0.6, 17.0), (0.6, 3.0)])
def test_the_long_run_speed_is_what_is_left_and_its_spread_follows_the_concentration(mean, concentration):
    kind = Shared(curve=(mean,), concentration=concentration, hold=2.0)
    assert 40_000 * (1 - mean) / course(kind).stretch(0.0, 40_000 * (1 - mean)) == pytest.approx(1 - mean, rel=0.01)
    at_once = [course(kind, rank).speed(0.0)[0] for rank in range(4_000)]
    assert np.std(at_once) == pytest.approx(math.sqrt(mean * (1 - mean) / (concentration + 1)), rel=0.06)


def test_a_busy_cluster_has_stragglers_and_a_vacant_one_has_not():
    def slowest_over_mean(mean):
        kind = Shared(curve=(mean,), concentration=17.0, hold=1.0)
        steps = np.array([1 / course(kind, rank).speed(0.0)[0] for rank in range(32)])
        return steps.max() / steps.mean()

    ratios = [slowest_over_mean(mean) for mean in (0.0, 0.1, 0.4, 0.7)]
    assert ratios[0] == 1 and ratios == sorted(ratios) and ratios[-1] > 2


def test_a_share_is_held_for_its_time_and_workers_change_at_moments_of_their_own():
    kind, begins = Shared(curve=(0.1, 0.6), concentration=8.0, hold=1.5, period=10.0), []
    for rank in range(500):
        each, time, changes = course(kind, rank), 0.0, []
        for _ in range(4):
            speed, until = each.speed(time)
            assert each.speed((time + until) / 2) == (speed, until)
            changes.append(until)
            time = until
        assert np.diff(changes) == pytest.approx(1.5)
        begins.append(changes[0] / 1.5)
    assert np.abs(np.sort(begins) - np.linspace(0, 1, 500)).max() < 1.63 / 500**0.5


def test_a_draw_follows_the_mean_at_the_middle_of_its_stretch():
    day = Shared(curve=(0.0, 1.0), concentration=8.0, hold=0.25, least=0.125, period=4.0, begin=1.0)
    for rank in range(20):
        each = course(day, rank)
        speeds = [each.speed(time)[0] for time in (0.5, 1.5, 2.5, 3.5, 4.5)]
        assert speeds == [1.0, 0.125, 0.125, 1.0, 1.0]  # the run begins a quarter into the vacant half


def test_a_worker_never_stops():
    busy = Shared(curve=(0.99,), concentration=0.5, hold=1.0, least=0.02)
    speeds = [course(busy, rank).speed(0.0)[0] for rank in range(300)]
    assert min(speeds) == 0.02 and course(busy).stretch(0.0, 1.0) <= 50
