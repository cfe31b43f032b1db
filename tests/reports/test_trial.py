"""Rules on trial, with numbers by hand.

Five seeds {-2, -1, 0, 1, 2} x s have a 95 % interval of ± 1.963 s and tell 1.963 s x (1 + 1.533 / 2.776) = 3.047 s; eight
±(1, 2, 3, 4) x s have one of ± 2.448 s and tell 2.448 s x (1 + 1.415 / 2.365) = 3.913 s.
"""

import dataclasses
import math

import numpy as np
import pytest

from reports import claims
from reports.claims import BadClaim
from reports.claims.calibration import Calibration
from reports.claims.statistics import LEVEL, interval, one_sided_p, smallest_effect
from tests.reports import trial
from tests.reports.test_claims import PARITY, claim
from tests.reports.test_judge import eight, five, table


def trials(a_claim, fitted=(), **subjects):
    return [(each.case, each.trial) for each in trial.tried(a_claim, table(**subjects), fitted)]


@pytest.mark.parametrize(
    ("s", "fails"),
    [
        (0.1, []),  # from the paper's 2 it is 1 to half of that, and 0.30 can be told
        (0.32, []),  # 0.98
        (0.34, ["smallest"]),  # 1.04: the paper's own 2 would be found, but not nine times in ten
        (0.5, ["smallest"]),  # from 1.02 to 2.98
        (0.52, ["paper", "smallest"]),  # from 0.98
    ],
)
def test_the_papers_number_must_pass_with_the_spread_that_there_is(s, fails):
    for relation, sign in ((">=", 1), ("<=", -1)):
        a_claim = claim(relation=relation, cases={"p": 2 * sign})
        for mean in (-7, 0.1, 2, 30):  # whatever was found
            assert trials(a_claim, x=five(mean, s), y=[0] * 5) == [("p", each) for each in fails]


def test_the_control_must_not():
    numbers = {"x": five(3, 0.1), "y": [0] * 5}
    assert trials(claim(cases={"p": 2}), **numbers) == [], "no effect is the control of what is above it"
    for control, fails in ((-1, False), (1.1, False), (1.3, True), (2, True), (3.9, False), (50, False)):
        found = trials(claim(cases={"p": 2}, control=control), **numbers)
        assert found == [("p", "control")] * fails, control
    by_case = claim(cases={"p": 2, "q": 2}, subject="x{case}", control={"p": 1.3, "q": 0.2})
    assert trials(by_case, xp=five(3), xq=five(3), y=[0] * 5) == [("p", "control")]
    value = claim("value", cases={"p": "text"}, margin=1.0)
    assert trials(value, x=five(3)) == [("p", "control")], "no effect is unknown, so the control must be said"
    assert trials(dataclasses.replace(value, control=0.9), x=five(3)) == []
    assert trials(dataclasses.replace(value, control=1.3), x=five(3)) == [("p", "control")]


def test_a_parity_that_a_mode_passes_which_loses_is_none():
    """What can be lost is 10, so that 1 may be: asynchrony's 0.5 is as good as nothing lost, and eight seeds tell 0.39."""
    numbers = {"x": eight(5, 0.1), "y": [10] * 8, "z": [0] * 8}
    parity = claim(cases={"p": -0.2}, **PARITY)
    assert trials(parity, **numbers) == [("p", "control")], "not said"
    for control, fails in ((-0.5, True), (-0.7, True), (-0.8, False), (-2, False)):
        assert trials(dataclasses.replace(parity, control=control), **numbers) == [("p", "control")] * fails
    losing = dataclasses.replace(parity, cases={"p": -0.9}, control=-2)
    assert trials(losing, **numbers) == [("p", "paper"), ("p", "smallest")], "0.1 from the margin"
    unsaid = dataclasses.replace(parity, cases={"p": "the same"}, control=-2)
    assert trials(unsaid, **numbers) == [] and trials(unsaid, **numbers | {"x": eight(5, 0.3)}) == [("p", "smallest")]


def test_a_figure_of_another_scale_is_a_share_of_the_references():
    """Of the reference's 10, the paper's -2 % are 0.2, and the control's -5 % are 0.5."""
    numbers = {"x": eight(5, 0.1), "y": [10] * 8, "z": [0] * 8}
    told = {"cases": {"p": "0.98 of it"}, "papers": {"p": -0.02}, "shares": True}
    assert trials(claim(**told, control=-0.05, **PARITY), **numbers) == [("p", "control")]
    assert trials(claim(**told, control=-0.2, **PARITY), **numbers) == []
    assert trials(claim(**told | {"papers": {"p": -0.09}}, control=-0.2, **PARITY), **numbers) == [
        ("p", "paper"),
        ("p", "smallest"),
    ]


def test_an_order_is_tried_on_the_papers_distances_and_on_the_reverse():
    order = {"effect": "order", "subject": None, "order": ("a", "b"), "cases": {"c": "0.2"}}
    numbers = {"a": five(1), "b": [0] * 5}
    assert trials(claim(**order), **numbers) == []
    assert trials(claim(**order, papers={"a > b": 0.5}), **numbers) == []
    assert trials(claim(**order, papers={"a > b": 0.25}), **numbers) == [("a > b", "smallest")], "0.30 can be told"
    assert trials(claim(**order, papers={"a > b": 0.1}), **numbers) == [("a > b", "paper"), ("a > b", "smallest")]
    assert trials(claim(**order, control=0.4), **numbers) == [("a > b", "control")]


def test_what_is_not_judged_is_not_tried():
    wide = {"x": five(2, 3), "y": [0] * 5}
    assert trials(claim(cases={"p": 2}), **wide)
    assert trials(claim(cases={"p": 2}, elsewhere="another system's code"), **wide) == []
    record = {"constant": "c", "value": 1.0, "fitted_to": "it", "notebooks": ("one",)}
    fitted = Calibration(**record, determines=({"metric": "m", "subject": "x", "reference": "y"},))
    assert trials(claim(cases={"p": 2}), [fitted], **wide) == []


@pytest.mark.parametrize("count", [5, 8, 16])
def test_the_smallest_effect_is_found_nine_times_in_ten(count):
    """By simulation: so many seeds whose mean is the smallest effect from an edge are told from it in 90 % of trials."""
    numbers = np.random.default_rng(5).normal(size=(20_000, count))
    means, errors = numbers.mean(axis=1), numbers.std(axis=1, ddof=1) / math.sqrt(count)
    _, low, high = interval(numbers[0])
    half_at_one = (high - low) / 2 / numbers[0].std(ddof=1)  # were the deviation 1, as it truly is
    effect = smallest_effect(half_at_one, count)
    share = ((means + effect) / errors >= half_at_one * math.sqrt(count)).mean()
    assert share == pytest.approx(0.9, abs=0.015)
    assert one_sided_p(list(numbers[0] + 10 * effect), 0, 1) <= LEVEL


def test_a_judged_case_knows_what_its_seeds_can_tell():
    (case,) = claims.judge(claim(), table(x=five(2, 0.1), y=[0] * 5)).cases
    assert case.least == pytest.approx(0.3047, abs=1e-4)
    (case,) = claims.judge(claim(**PARITY), table(x=eight(9, 0.1), y=[10] * 8, z=[0] * 8)).cases
    assert case.least == pytest.approx(0.3913, abs=1e-4)
    (case,) = claims.judge(claim(), table(x=[2.0], y=[0.0])).cases
    assert case.least is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"control": {"q": 1.0}}, "control: no case is called 'q'"),
        ({"papers": {"q": 1.0}}, "papers: no case is called 'q'"),
        ({"foretold": {"q": 1.0}}, "foretold: no case is called 'q'"),
        ({"regime": {"age": {"q": 1.0}}}, "regime: no case is called 'q'"),
        ({"kind": "promise", "standing": None, "margin": 1.0, "control": 1.0}, "control: is for a paper's claim"),
        ({"kind": "promise", "standing": None, "margin": 1.0, "elsewhere": "x"}, "elsewhere: is for a paper's claim"),
    ],
)
def test_what_a_rule_is_tried_on_is_checked(changes, message):
    with pytest.raises((BadClaim, ValueError), match=message):
        claim(**{"cases": {"p": "text"}, **changes})


def test_more_seeds_than_a_pilot_had_have_its_mean_and_its_spread():
    """Eight seeds of a deviation of 0.88 tell 1.17, twenty (2.093 + 1.328) x 0.88 / sqrt(20) = 0.67."""
    numbers = [1.0, 2.0, 4.0]
    more = trial.as_many(numbers, 8)
    assert len(more) == 8 and np.mean(more) == pytest.approx(7 / 3)
    assert np.std(more, ddof=1) == pytest.approx(np.std(numbers, ddof=1))
    assert trial.as_many(numbers, 2) == numbers and trial.as_many([2.0, 2.0], 5) == [2.0] * 5
    parity = claim(cases={"p": -0.2}, control=-2, **PARITY)
    few = {"x": eight(5, 0.3), "y": [10] * 8, "z": [0] * 8}
    assert trials(parity, **few) == [("p", "smallest")], "1.17 of 0.8 that decide"
    assert trials(dataclasses.replace(parity, seeds=20), **few) == [], "0.67"
