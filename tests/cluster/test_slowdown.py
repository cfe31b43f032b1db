"""Slowdowns: closed forms, what each kind declares, and errors that name the field."""

import math

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib import streams
from lib.cluster.slowdowns import (
    KINDS,
    Diurnal,
    Empirical,
    Lognormal,
    PiecewiseSpeed,
    Product,
    Shared,
    Slowdown,
    Steady,
    Transient,
    presets,
)
from lib.options.checked import to_plain
from lib.options.yaml_source import parse

TRANSIENT = Transient(mean_on=1.0, mean_off=4.0, factor=3.0)
DAY = Diurnal(curve=(1.0, 0.5, 0.25, 0.75), period=10.0, begin=3.0)
SHARED = Shared(curve=(0.1, 0.6), concentration=8.0, hold=1.5, period=10.0, begin=3.0)
EMPIRICAL = Empirical(quantiles=(0.5, 1.0, 4.0), levels=(0, 0.8, 1), seconds=(2.0, 50.0), shares=(0.3, 0.5))

EXAMPLES: dict[str, Slowdown] = {
    "lognormal": Lognormal(sigma=0.6),
    "steady": Steady(sigma=0.3),
    "steady factors": Steady(factors=(1.0, 1.5, 2.0)),
    "empirical": EMPIRICAL,
    "transient": TRANSIENT,
    "transients": Transient(mean_on=1.0, mean_off=4.0, factor=(2.0, 4.0)),
    "day": DAY,
    "shared": SHARED,
    "product": Product(parts=(Steady(sigma=0.3), DAY, TRANSIENT)),
    "everything": Product(parts=(Lognormal(sigma=0.2), EMPIRICAL, DAY, TRANSIENT)),
    **{name: preset.slowdown.scale_time(1e-3) for name, preset in presets().items()},
}


def additive(slowdown):
    """Whether a computation takes as long in one piece as in several, one after another."""
    return not any(isinstance(part, Lognormal | Empirical) for part in getattr(slowdown, "parts", [slowdown]))


examples = pytest.mark.parametrize("slowdown", EXAMPLES.values(), ids=EXAMPLES)


def course(slowdown, rank=0, seed=0):
    return slowdown.sample_path(seed, f"worker{rank}", rank)


def back_to_back(slowdown, lengths, rank=0, seed=0):
    """How long each of the computations takes, one after another."""
    each, time, took = course(slowdown, rank, seed), 0.0, []
    for seconds in lengths:
        took.append(each.stretch(time, seconds))
        time += took[-1]
    return took


def test_every_kind_has_an_example():
    assert {type(example) for example in EXAMPLES.values()} == set(KINDS.values())


# What every kind promises


@examples
def test_a_course_depends_on_the_seed_and_the_worker_alone(slowdown):
    lengths = [0.3] * 50
    first = back_to_back(slowdown, lengths, rank=2)
    back_to_back(slowdown, lengths, rank=1)
    assert back_to_back(slowdown, lengths, rank=2) == first
    same = all(isinstance(part, Diurnal | Steady) for part in getattr(slowdown, "parts", (slowdown,)))
    if not same or (isinstance(slowdown, Steady) and slowdown.sigma):
        assert back_to_back(slowdown, lengths, rank=2, seed=1) != first
        assert back_to_back(slowdown, lengths, rank=3) != first


@examples
@settings(derandomize=True, max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    pieces=st.lists(st.floats(0, 20) | st.just(0.0), min_size=1, max_size=6),
    start=st.floats(0, 50),
)
def test_additive_is_what_it_says_and_nothing_takes_negative_time(slowdown, seed, pieces, start):
    whole, split = course(slowdown, 1, seed), course(slowdown, 1, seed)
    together, end = whole.stretch(start, math.fsum(pieces)), start
    for seconds in pieces:
        took = split.stretch(end, seconds)
        assert took >= 0 and math.isfinite(took) and (took > 0) == (seconds > 0)
        end += took
    if additive(slowdown):
        assert end - start == pytest.approx(together, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["lognormal", "empirical", "everything"])
def test_what_is_not_additive_is_measured_so(name):
    slowdown = EXAMPLES[name]
    assert not additive(slowdown)
    assert sum(back_to_back(slowdown, [1.0] * 5)) != pytest.approx(sum(back_to_back(slowdown, [5.0])))


@examples
@pytest.mark.parametrize("scale", [0.01, 7.0])
def test_scaled_time_gives_the_same_course_in_other_units(slowdown, scale):
    lengths = [0.4] * 40
    longer = back_to_back(slowdown.scale_time(scale), [scale * seconds for seconds in lengths], rank=1)
    assert longer == pytest.approx([scale * seconds for seconds in back_to_back(slowdown, lengths, rank=1)])


@examples
def test_a_slowdown_survives_yaml(slowdown):
    text = yaml.safe_dump({"slowdown": to_plain(slowdown)})
    assert Slowdown.read(parse(text, "it")["slowdown"]) == slowdown
    assert hash(slowdown) == hash(Slowdown.read(to_plain(slowdown)))


@pytest.mark.parametrize("slowdown", [each for each in EXAMPLES.values() if additive(each)], ids=lambda each: each.name)
def test_the_future_that_a_long_computation_looked_at_does_not_change(slowdown):
    """On a node of several cores a computation begins before an earlier one has ended."""
    ahead, plain = course(slowdown), course(slowdown)
    ahead.stretch(0.0, 500.0)
    assert all(ahead.stretch(start, 1.0) == plain.stretch(start, 1.0) for start in (0.0, 3.0, 3.0, 90.0))


# Closed forms


def test_lognormal_keeps_the_draws_that_older_runs_had():
    stream = streams.stream(7, "slowdown", "worker3")
    expected = [0.25 * math.exp(0.6 * stream.standard_normal()) for _ in range(5)]
    ours = Lognormal(sigma=0.6).sample_path(7, "worker3", 3)
    assert [ours.stretch(step, 0.25) for step in range(5)] == expected
    assert course(Lognormal()).stretch(0.0, 0.3) == 0.3


def test_steady_factors_go_by_rank_and_begin_anew():
    kind = Steady(factors=(1.0, 1.5, 2.0))
    assert [course(kind, rank).stretch(9.0, 2.0) for rank in range(4)] == [2.0, 3.0, 4.0, 2.0]


def test_steady_sigma_is_the_spread_between_workers():
    logs = [math.log(course(Steady(sigma=0.4), rank).stretch(0.0, 1.0)) for rank in range(3_000)]
    assert np.mean(logs) == pytest.approx(0, abs=3 * 0.4 / 3_000**0.5) and np.std(logs) == pytest.approx(0.4, rel=0.05)


def test_transient_takes_its_long_run_factor():
    # of 5 seconds one is slow and does a third: a second of computation takes 5 / (4 + 1/3)
    took = [course(TRANSIENT, rank).stretch(0.0, 50_000.0) for rank in range(4)]
    assert np.mean(took) / 50_000 == pytest.approx(5 / (4 + 1 / 3), rel=0.01)


def test_each_period_draws_one_of_several_factors():
    took = [course(several := EXAMPLES["transients"], rank).stretch(0.0, 50_000.0) for rank in range(4)]
    assert np.mean(took) / 50_000 == pytest.approx(5 / (4 + (1 / 2 + 1 / 4) / 2), rel=0.01)
    each, time, speeds = course(several), 0.0, []
    for _ in range(2_000):
        speed, time = each.speed(time)
        speeds.append(speed)
    assert set(speeds) == {1.0, 0.5, 0.25} and speeds.count(0.5) == pytest.approx(500, abs=70)


def test_transient_begins_in_its_stationary_state():
    slow = [course(TRANSIENT, rank).stretch(0.0, 1e-9) > 2e-9 for rank in range(4_000)]
    assert np.mean(slow) == pytest.approx(1 / 5, abs=0.02)


def test_transient_periods_are_exponential():
    each, changes, time = course(TRANSIENT), [], 0.0
    while len(changes) < 20_001:
        speed, until = each.speed(time)
        changes.append((speed, until - time))
        time = until
    for speed, mean in ((1.0, 4.0), (1 / 3, 1.0)):
        lengths = [length for at, length in changes[1:] if at == pytest.approx(speed)]
        assert np.mean(lengths) == pytest.approx(mean, rel=0.03)
        assert stats.kstest(lengths, stats.expon(scale=mean).cdf).pvalue > 0.01


def test_a_computation_that_spans_changes_is_integrated():
    # shares 1, 1/2, 1/4, 3/4 of 2.5 s each, from 3 s: 2 s at 1/2, 2.5 s at 1/4, 2.5 s at 3/4, 2.5 s at 1 ...
    each = course(DAY)
    assert each.stretch(0.0, 1.0) == 2.0
    assert each.stretch(0.0, 1.0 + 0.625) == 4.5
    assert each.stretch(0.0, 1.0 + 0.625 + 1.875 + 1.0) == 8.0
    assert each.stretch(0.5, 0.75 + 0.25) == 1.5 + 1.0


@pytest.mark.parametrize("curve", [(0.3,), (1.0, 0.5, 0.25, 0.75)])
@pytest.mark.parametrize("start", [0.0, 1.234, 9.99, 1e6 + 0.1])
def test_a_day_does_its_integral(curve, start):
    day = Diurnal(curve=curve, period=10.0)
    share = np.mean(day.curve)
    for days in (1, 3):
        assert course(day).stretch(start, days * 10 * share) == pytest.approx(10 * days, rel=1e-6)


def test_a_day_whose_shares_end_between_floats_goes_on():
    day = course(Diurnal(curve=(0.5, 1.0, 0.25), period=0.3, begin=0.1))
    assert isinstance(day, PiecewiseSpeed)
    time = 0.0
    for _ in range(10_000):
        _, until = day.speed(time)
        assert until > time
        time = until
    assert time == pytest.approx(1_000, rel=1e-3)


@pytest.mark.parametrize("shares", [(), (0.3, 0.5), (0.4, 0.6)])
def test_empirical_draws_its_quantiles_with_its_correlation(shares):
    kind = Empirical(quantiles=(0.5, 1.0, 4.0), levels=(0, 0.8, 1), seconds=(2.0, 50.0)[: len(shares)], shares=shares)
    draws, lagged = [], []
    for rank in range(150):
        each = course(kind, rank)
        mine = np.array([each.stretch(float(step), 1.0) for step in range(1_000)])
        draws.append(mine)
        z = np.interp(np.interp(mine, kind.quantiles, kind.levels), stats.norm.cdf(GRID), GRID)
        lagged.append([np.mean(z * z), *(np.mean(z[:-lag] * z[lag:]) for lag in (1, 3, 20))])
    levels = np.interp(np.sort(np.ravel(draws)), kind.quantiles, kind.levels)
    assert np.abs(levels - (np.arange(levels.size) + 0.5) / levels.size).max() < 0.02
    decays = list(zip(kind.seconds, shares, strict=True))
    expected = [sum(share * math.exp(-lag / each) for each, share in decays) for lag in (1, 3, 20)]
    variance, *products = np.mean(lagged, axis=0)
    assert np.array(products) / variance == pytest.approx(expected, abs=0.03)


GRID = np.linspace(-5, 5, 2_001)


# Products


def test_a_product_multiplies_what_is_settled_and_then_what_changes_in_time():
    both = Product(parts=(DAY, Steady(factors=(2.0,)), Lognormal(sigma=0.5)))
    seconds = 2 * course(Lognormal(sigma=0.5)).stretch(0.0, 1.0)
    assert course(both).stretch(0.0, 1.0) == course(DAY).stretch(0.0, seconds)


def test_speeds_in_time_are_multiplied_from_moment_to_moment():
    halves = Diurnal(curve=(1.0, 0.5), period=2.0)
    thirds = Diurnal(curve=(0.1, 1.0, 1.0), period=3.0)
    # seconds: 0.1, 0.5, 1, 0.05, 1, ...
    both = course(Product(parts=(halves, thirds)))
    assert [both.stretch(0.0, work) for work in (0.1, 0.6, 1.6, 1.65, 2.65)] == pytest.approx([1, 2, 3, 4, 5])


def test_order_and_nesting_make_no_difference():
    parts = (Lognormal(sigma=0.4), TRANSIENT, DAY, Steady(sigma=0.2))
    lengths = [0.3] * 30
    expected = back_to_back(Product(parts=parts), lengths, rank=4)
    assert back_to_back(Product(parts=parts[::-1]), lengths, rank=4) == pytest.approx(expected)
    nested = Product(parts=(Product(parts=parts[:2]), Product(parts=[*parts[2:]])))
    assert nested == Product(parts=parts)


def test_two_parts_of_one_kind_draw_apart():
    twice = back_to_back(Product(parts=(Lognormal(sigma=0.4), Lognormal(sigma=0.4))), [1.0] * 2_000)
    assert np.std(np.log(twice)) == pytest.approx(0.4 * math.sqrt(2), rel=0.05)  # not 0.8, as of one draw used twice
    once = course(Product(parts=(TRANSIENT, TRANSIENT))).stretch(0.0, 30_000.0)
    assert once / 30_000 == pytest.approx((5 / (4 + 1 / 3)) ** 2, rel=0.03)


def test_the_next_generation_of_a_node_begins_before_what_the_dead_one_had_queued():
    """An earlier moment is as much like the one that is known as a later one as far away: exp(-d / seconds)."""
    kind = Empirical(quantiles=(1e-9, 1.0), seconds=(1.0,), shares=(1.0,))  # about Phi(z)
    courses = [kind.sample_path(seed, "worker0", 0) for seed in range(4000)]
    later = stats.norm.ppf([course.stretch(2.0, 1.0) for course in courses])
    earlier = stats.norm.ppf([course.stretch(1.5, 1.0) for course in courses])
    assert np.corrcoef(later, earlier)[0, 1] == pytest.approx(math.exp(-0.5), abs=0.03)


# Machines that others use too.


def test_shares_are_beta_distributed_about_the_cluster_mean():
    """With a = m c = 2 and b = (1 - m) c = 2."""
    each = course(Shared(curve=(0.5,), concentration=4.0, hold=1.0))
    left = [each.speed(float(step))[0] for step in range(20_000)]
    assert stats.kstest(left, stats.beta(2, 2).cdf).pvalue > 0.01


@pytest.mark.parametrize("mean, concentration", [(0.05, 17.0), (0.3, 17.0), (0.6, 17.0), (0.6, 3.0)])
def test_the_long_run_speed_is_what_is_left_and_its_spread_follows_the_concentration(mean, concentration):
    kind = Shared(curve=(mean,), concentration=concentration, hold=2.0)
    assert 40_000 * (1 - mean) / course(kind).stretch(0.0, 40_000 * (1 - mean)) == pytest.approx(1 - mean, rel=0.01)
    at_once = [course(kind, rank).speed(0.0)[0] for rank in range(4_000)]
    assert np.std(at_once) == pytest.approx(math.sqrt(mean * (1 - mean) / (concentration + 1)), rel=0.06)


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
    assert stats.kstest(begins, "uniform").pvalue > 0.01


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
