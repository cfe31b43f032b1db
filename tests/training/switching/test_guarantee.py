"""What the automatic choice guarantees on any cluster, given exact predictions, and that hindsight is what it says."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadOption
from lib.training.controller import Automatic, Mode
from notebooks.gba.hindsight import best_fixed, oracle


def modes(count):
    return (Mode(waits=True, batch=1),) * count


class Follow(Automatic):
    """A planted fault: always in whichever mode was the best one last."""

    def choose_mode(self, state, now, rates):
        present = int(np.argmax(rates))
        return replace(state, now=now, present=present), present


class Stay(Automatic):
    """A planted fault: it never moves."""

    def choose_mode(self, state, now, rates):
        return replace(state, now=now), state.present


def hits(present, word, count):
    """Each mode's share of the best mode's throughput: an adversary's word becomes a row that hits where it says."""
    kind, strength, shares = word
    if kind == "any":
        row = np.array(shares[:count])
        row[np.argmax(row)] = 1.0
        return row
    row = np.ones(count)
    if kind == "present":
        row[present] -= strength
    elif kind == "all but present":
        row[np.arange(count) != present] -= strength
    else:
        row[:-1] -= strength
    return row


WORDS = st.tuples(
    st.sampled_from(["present", "present", "all but present", "all but the last", "any"]),
    st.floats(0, 1),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
WAYS = st.lists(st.tuples(WORDS, st.floats(0, 1), st.integers(1, 30)), min_size=1, max_size=12)


def windows(ways, spread):
    """(word, the best mode's throughput) of each window."""
    return [(word, 1 + height * (spread - 1)) for word, height, lasts in ways for _ in range(lasts)]


def at_once(rule, ways, count, interval):
    """(what the rule loses, what the best schedule in hindsight loses), where a switch costs `cost` x X at once."""
    state, lost, hindsight = rule.init(modes(count), 1), 0.0, np.zeros(count)
    for place, (word, best) in enumerate(ways, 1):
        rates = best * hits(state.present, word, count)
        lost += (best - rates[state.present]) * interval
        before = state.present
        state, present = rule.choose_mode(state, place * interval, tuple(rates))
        lost += rule.cost * best * (present != before)
        hindsight += (best - rates) * interval
        hindsight = np.minimum(hindsight, hindsight.min() + rule.cost * best)
    return lost, hindsight.min()


def in_time(rule, ways, count, interval):
    """The same where a switch takes so many windows, whatever happens meanwhile."""
    state, lost, table, away = rule.init(modes(count), 1), 0.0, [], 0
    for place, (word, best) in enumerate(ways, 1):
        rates = best * hits(state.present, word, count)
        table.append(rates)
        lost += best * interval if away else (best - rates[state.present]) * interval
        if away:
            away -= 1
            state = state if away else rule.on_switch(state, place * interval)
            continue
        before = state.present
        state, present = rule.choose_mode(state, place * interval, tuple(rates))
        away = round(rule.cost / interval) if present != before else 0
    table = np.array(table).T
    return lost, table.max(axis=0).sum() * interval - oracle(table, rule.cost, interval).samples


def guarantee(rule, ways, count, interval):
    """(factor, samples): what the docstring of `lib.training.controller` says, for switches that cost at once."""
    best = [each for _, each in ways]
    spread, finer, patience = max(best) / min(best), interval / rule.cost, rule.patience
    factor = max(1, patience) * (1 + (count - 1) * (1 + patience + finer) * spread / patience)
    return factor, (patience + (count - 1) * (1 + patience + finer)) * rule.cost * max(best)


SETTING = {
    "ways": WAYS,
    "spread": st.floats(1, 5),
    "count": st.integers(2, 4),
    "patience": st.sampled_from([1.0, 1.0, 0.5, 2.0]),
}


@settings(max_examples=300)
@given(**SETTING, interval=st.floats(0.2, 30))
def test_switches_that_cost_at_once(ways, spread, count, patience, interval):
    rule, ways = Automatic(cost=10.0, patience=patience), windows(ways, spread)
    lost, hindsight = at_once(rule, ways, count, interval)
    factor, more = guarantee(rule, ways, count, interval)
    assert lost <= (factor * hindsight + more) * (1 + 1e-9)


@settings(max_examples=150)
@given(**SETTING, windows_a_switch=st.integers(1, 20))
def test_switches_that_take_time(ways, spread, count, patience, windows_a_switch):
    rule, ways = Automatic(cost=10.0, patience=patience), windows(ways, spread)
    interval = rule.cost / windows_a_switch
    lost, hindsight = in_time(rule, ways, count, interval)
    factor, more = guarantee(rule, ways, count, interval)
    best = [each for _, each in ways]
    assert lost <= ((1 + max(best) / min(best)) * factor * hindsight + more) * (1 + 1e-9)


def relentless(windows, strength=1.0):
    """The mode that the controller is in stands still, always; or is so much slower."""
    return [(("present", strength, ()), 1.0)] * windows


def test_the_adversary_who_flips_the_cluster_after_each_switch():
    """Three times hindsight's loss is what he can make of two modes, and he does."""
    rule, interval = Automatic(cost=10.0), 0.1
    lost, hindsight = at_once(rule, relentless(20_000), 2, interval)
    factor, more = guarantee(rule, relentless(1), 2, interval)
    assert factor == pytest.approx(3, abs=0.02)
    assert 2.9 * hindsight < lost < factor * hindsight + more
    timed, hindsight = in_time(rule, relentless(20_000), 2, interval)
    assert timed < 3 * hindsight, "in time, he has to let the other mode work while the switch lasts"


@pytest.mark.parametrize("fault", [Follow, Stay])
def test_a_controller_without_regret_breaks_the_guarantee(fault):
    ways = relentless(2_000, 0.05) if fault is Follow else [(("all but the last", 1.0, ()), 1.0)] * 2_000
    rule = fault(cost=10.0)
    factor, more = guarantee(rule, ways, 2, 1.0)
    for judged in (at_once, in_time):
        lost, hindsight = judged(rule, ways, 2, 1.0)
        assert lost > factor * hindsight + more, judged
        lost, hindsight = judged(Automatic(cost=10.0), ways, 2, 1.0)
        assert lost <= factor * hindsight + more, judged


# Hindsight.


def test_hindsight_by_hand():
    """A switch takes one of the four seconds, whether the first mode's last or the second one's first."""
    table = np.array([[4.0, 4, 0, 0], [0, 0, 4, 4]])
    best = oracle(table, 1.0)
    assert (best.samples, best.first, [mode for _, mode in best.switches]) == (12, 0, [1])
    assert 1 <= best.switches[0][0] <= 2
    assert best_fixed(table).samples == 8
    assert oracle(table, 0.0).samples == 16
    assert oracle(table, 2.0).samples == oracle(table, 5.0).samples == 8
    assert oracle(table, 1.0, window=10.0).samples == 156


def test_hindsight_may_begin_a_switch_within_a_window():
    """The switch is over when the second mode wakes, and the first mode works until then."""
    best = oracle(np.array([[2.0, 0], [0, 4]]), 0.25)
    assert (best.samples, best.switches) == (2 * 0.75 + 4, ((0.75, 1),))


@given(
    rates=st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=7),
    count=st.integers(1, 3),
    quarters=st.integers(0, 9),
)
def test_hindsight_is_the_best_of_all_schedules(rates, count, quarters):
    """All schedules whose switches begin at quarters of a window, of which a switch takes so many."""
    table = np.array(rates, dtype=float).T[:count]
    slots = 4 * table.shape[1]

    @cache
    def best(slot, mode, moved):
        if slot >= slots:
            return 0.0
        stay = table[mode, slot // 4] / 4 + best(slot + 1, mode, False)
        if moved:
            return stay
        return max([stay, *(best(slot + quarters, other, True) for other in range(count) if other != mode)])

    found = oracle(table, quarters / 4)
    assert found.samples == pytest.approx(max(best(0, mode, False) for mode in range(count)))
    assert found.samples == pytest.approx(_follow(table, found, quarters / 4))
    assert found.samples >= best_fixed(table).samples


def _follow(table, schedule, cost):
    """What a schedule reaches, from its switches alone."""
    edges = np.arange(table.shape[1] + 1)
    trained = np.pad(np.cumsum(table, axis=1), ((0, 0), (1, 0)))
    total, begin, mode = 0.0, 0.0, schedule.first
    for when, following in (*schedule.switches, (float(table.shape[1]), mode)):
        assert when >= begin
        total += np.diff(np.interp([begin, when], edges, trained[mode]))[0]
        begin, mode = when + cost, following
    return total


@pytest.mark.parametrize(
    ("table", "cost", "window", "problem"),
    [
        ([1.0, 2.0], 1.0, 1.0, "modes x windows"),
        ([[1.0, -2.0]], 1.0, 1.0, "0 or more"),
        ([[1.0, np.nan]], 1.0, 1.0, "finite"),
        ([[1.0]], -1.0, 1.0, "cost must be 0 or more"),
        ([[1.0]], 1.0, 0.0, "more than 0 seconds"),
    ],
)
def test_a_table_that_cannot_be_says_so(table, cost, window, problem):
    with pytest.raises(BadOption, match=problem):
        oracle(table, cost, window)
