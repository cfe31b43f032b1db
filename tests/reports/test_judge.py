"""Verdicts, with numbers that can be checked by hand, and properties of the judge.

Five seeds {-2, -1, 0, 1, 2} x s about a mean have a deviation of 1.581 s and a 95 % t-interval of ± 2.776 x 1.581 s / sqrt(5) =
± 1.963 s; eight seeds ±(1, 2, 3, 4) x s one of ± 2.365 x 2.928 s / sqrt(8) = ± 2.448 s.
"""

import dataclasses
import math
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.errors import UnknownName
from lib.seeds import BLOCK, JUDGING, SEALED
from reports import claims
from reports.claims import BadClaim
from reports.claims.calibration import Calibration
from reports.claims.judge import PROVISIONAL, together, word_of_share
from tests.reports.test_claims import EQUIVALENCE, claim

FINITE = st.floats(-50, 50).map(lambda x: round(x, 2))


def five(mean, s=0.1):
    return [mean + s * step for step in (-2, -1, 0, 1, 2)]


def eight(mean, s=0.1):
    return [mean + s * step for step in (-4, -3, -2, -1, 1, 2, 3, 4)]


def table(first=JUDGING.start, **subjects):
    rows = [(name, first + seed, x) for name, numbers in subjects.items() for seed, x in enumerate(numbers)]
    return pd.DataFrame(rows, columns=["subject", "seed", "m"])


def one(a_claim, **subjects):
    """The only case's verdict, which is the claim's."""
    found = claims.judge(a_claim, table(**subjects))
    (case,) = found.cases
    assert found.word == case.word
    return case


@pytest.mark.parametrize(
    ("numbers", "expected", "detail"),
    [  # of a difference of 2, 50 to 200 % are from 1 to 4
        (five(2), "reproduced", ""),
        (five(1.3), "reproduced", ""),  # from 1.10
        (five(1.1), "other size", "the size is open"),  # from 0.90 to 1.30
        (five(0.7), "other size", "smaller"),  # from 0.50 to 0.90
        (five(4.1), "other size", "the size is open"),
        (five(5), "other size", "larger"),
        (five(2.5, 1), "other size", "the size is open"),  # from 0.54 to 4.46
        (five(0.1, 0.04), "contradicted", ""),  # from 0.02 to 0.18: a direction, and below a tenth
        (five(0.1), "contradicted", ""),  # from -0.10 to 0.30: no direction, and below half
        (five(-2), "contradicted", ""),
        (five(0.5, 1), "undecided", "about 29 seeds would decide, if the effect is as large as the paper's"),  # to 2.46
        (five(2)[:4], "undecided", "too few seeds: 4 of 5"),
        ([*five(2)[:4], math.nan], "undecided", "m was not measured, or cannot be compared, on 1 of 5 seeds"),
    ],
)
def test_a_papers_number_is_judged_by_direction_and_size(numbers, expected, detail):
    for relation, sign in ((">=", 1), ("<=", -1)):
        a_claim = claim(relation=relation, cases={"the paper": 2 * sign})
        case = one(a_claim, x=[sign * x for x in numbers], y=[0] * len(numbers))
        assert (case.word, case.detail) == (expected, detail)


def test_a_share_is_of_the_papers_effect_with_its_interval():
    case = one(claim(cases={"p": 2}), x=five(1.3), y=[0] * 5)
    assert case.part == pytest.approx((0.65, 0.65 - 0.0981, 0.65 + 0.0981), abs=1e-4)
    assert (case.ours, case.low, case.high) == pytest.approx((1.3, 1.1037, 1.4963), abs=1e-4)
    assert case.tells == pytest.approx(0.3047 / 2, abs=1e-4), "in the same unit"


def test_ratios_are_compared_by_their_logarithms():
    """4 where the paper has 2 is twice its effect, and so is a quarter where it has a half."""
    for paper, ours in ((2.0, 4.0), (0.5, 0.25)):
        relation = ">=" if paper > 1 else "<="
        case = one(claim("ratio", relation, cases={"p": paper}), x=[ours] * 5, y=[1] * 5)
        assert case.part == pytest.approx((2, 2, 2)) and case.ours == pytest.approx(ours)
    assert one(claim("ratio", cases={"p": 2.0}), x=five(1, 0.001), y=[0, 1, 1, 1, 1]).word == "undecided"


@pytest.mark.parametrize(
    ("changes", "numbers", "expected"),
    [
        ({}, five(0.3), "reproduced"),
        ({}, five(0.1), "undecided"),
        ({}, five(-0.3), "contradicted"),
        ({}, [0] * 5, "undecided"),  # no effect is neither
        ({"relation": "<="}, five(-0.3), "reproduced"),
        ({"margin": 1}, five(1.3), "reproduced"),
        ({"margin": 1}, five(0.5), "other size"),
        ({"margin": 1}, five(0.1), "contradicted"),  # shown to miss the margin, without a direction
        ({"margin": 1}, five(-0.5), "contradicted"),
        ({"cases": {"p": "much"}}, five(0.3), "reproduced"),
    ],
)
def test_without_a_number_the_direction_or_the_margin_is_judged(changes, numbers, expected):
    assert one(claim(**changes), x=numbers, y=[0] * 5).word == expected


def test_a_value_has_its_margin_alone():
    for mean, expected in ((1.3, "reproduced"), (1.1, "undecided"), (0.7, "contradicted")):
        assert one(claim("value", margin=1), x=five(mean)).word == expected


KEPT = {"y": [10.0] * 8, "z": [0.0] * 8, "c": eight(8)}
"""The reference gains 10, of which a tenth may be lost; the planted control loses two."""


@pytest.mark.parametrize(
    ("mean", "expected", "detail"),
    [
        (10, "reproduced", ""),
        (12, "reproduced", ""),
        (9.5, "reproduced", "measurably worse"),  # from 9.26 to 9.74
        (9.2, "undecided", "about 13 seeds would decide, if the effect is the paper's"),  # from 8.96
        (8.5, "contradicted", "measurably worse"),
    ],
)
def test_an_equivalence_is_the_share_of_the_gain_that_is_kept(mean, expected, detail):
    s = 0.3 if expected == "undecided" else 0.1
    for better, sign in ((">=", 1), ("<=", -1)):
        subjects = {"x": eight(mean, s), **KEPT}
        mirrored = {name: [sign * x for x in numbers] for name, numbers in subjects.items()}
        found = one(claim(**EQUIVALENCE | {"relation": better}), **mirrored)
        assert found.word == expected and found.part[0] == pytest.approx(mean / 10)
        assert detail.split(" ")[0] in found.detail
    assert "too few seeds: 7 of 8" in one(claim(**EQUIVALENCE), **{n: xs[:7] for n, xs in subjects.items()}).detail


def test_an_equivalence_needs_a_control_that_is_seen_to_lose_and_a_reference_that_gains():
    alike = {"x": eight(10), **KEPT}
    told = one(claim(**EQUIVALENCE), **alike)
    assert told.word == "reproduced" and "the planted control keeps 80.0 % [77.6, 82.4]" in told.detail
    blind = one(claim(**EQUIVALENCE), **alike | {"c": eight(9.1)})
    assert blind.word == "undecided" and "is not shown beyond the margin" in blind.detail
    noisy = one(claim(**EQUIVALENCE), **alike | {"z": eight(10, 3)})
    assert noisy.word == "undecided" and "y is not shown to be better than z" in noisy.detail
    missing = {name: xs for name, xs in alike.items() if name != "c"}
    assert one(claim(**EQUIVALENCE), **missing).word == "refused"
    again = claims.judge(claim(**EQUIVALENCE), table(**missing), again="0123abcd")
    assert (again.word, again.detail) == ("reproduced", PROVISIONAL), "older runs had none"


def test_a_loss_that_is_kept_within_the_margin_is_shown_beside_the_papers():
    found = one(claim(**EQUIVALENCE | {"cases": {"p": -1.0}}), x=eight(9.5), **KEPT)
    assert "measurably worse: its loss is 0.5 times the paper's [0.26, 0.74]" in found.detail


def test_a_margin_finer_than_a_tenth_is_kept():
    assert one(claim(**EQUIVALENCE | {"share": 0.02}), x=eight(9.5), **KEPT).word == "contradicted"


def test_what_can_be_lost_may_be_less_than_one():
    """An AUC has no more to lose."""
    found = one(claim(**EQUIVALENCE), x=[0.7] * 8, y=[0.7] * 8, z=[0.5] * 8, c=[0.6] * 8)
    assert found.word not in ("refused", "contradicted"), found.detail


@pytest.mark.parametrize(
    ("age", "expected", "detail"),
    [
        (0.8, "contradicted", ""),  # four times the paper's 0.2, and no more
        (0.05, "contradicted", ""),
        (0.81, "not comparable", "age is 0.81 in these runs and 0.2 in the paper"),
        (0.049, "not comparable", "age is 0.05 in these runs and 0.2 in the paper"),
        (math.nan, "not comparable", "age is nan in these runs and 0.2 in the paper"),
    ],
)
def test_what_contradicts_outside_the_regime_is_not_comparable(age, expected, detail):
    results = table(x=five(0.1), y=[0] * 5).assign(age=[age] * 5 + [9.0] * 5)
    for regime in ({"age": 0.2}, {"age": {"p": 0.2}}):
        found = claims.judge(claim(cases={"p": 2}, regime=regime), results)
        assert found.word == found.cases[0].word == expected
        assert found.detail == (f"outside the paper's regime: {detail}" if detail else "")


def test_what_holds_or_is_open_holds_outside_the_regime_too():
    for numbers, expected in ((five(2), "reproduced"), (five(0.7), "other size"), (five(0.5, 1), "undecided")):
        results = table(x=numbers, y=[0] * 5).assign(age=9.0)
        assert claims.judge(claim(cases={"p": 2}, regime={"age": 0.2}), results).word == expected


def test_a_case_whose_regime_the_paper_does_not_say_is_judged_as_it_is():
    by_case = claim(cases={"p": 2, "q": 2}, subject="x{case}", regime={"age": {"p": 0.2}})
    found = claims.judge(by_case, table(xp=five(0.1), xq=five(0.1), y=[0] * 5).assign(age=9.0))
    assert [case.word for case in found.cases] == ["not comparable", "contradicted"]
    assert found.word == "contradicted", "one of them is inside"
    with pytest.raises(BadClaim, match="the results have no column 'ages'; did you mean 'age'"):
        claims.judge(claim(regime={"ages": 0.2}), table(x=five(2), y=[0] * 5).assign(age=9.0))


def test_what_rests_on_another_system_is_not_comparable_and_shown():
    for numbers in (five(2), five(-2), five(0.5, 1)):
        found = claims.judge(claim(cases={"p": 2}, elsewhere="XDL's code"), table(x=numbers, y=[0] * 5))
        (case,) = found.cases
        assert found.word == case.word == "not comparable" and case.p is None
        assert case.ours == pytest.approx(sum(numbers) / 5) and case.part[0] == pytest.approx(sum(numbers) / 10)
        assert found.detail == "the paper's figure rests on XDL's code"


def test_sealed_seeds_are_for_verdicts_and_mix_with_no_others():
    sealed = table(first=SEALED.start + BLOCK, x=five(2), y=[0] * 5)
    found = claims.judge(claim(cases={"p": 2}), sealed)
    assert (found.word, found.sealed, found.counts) == ("reproduced", SEALED.start + BLOCK, True)
    assert not claims.judge(claim(cases={"p": 2}, foreseen=True), sealed).counts
    assert claims.judge(claim(cases={"p": 2}), table(x=five(2), y=[0] * 5)).sealed is None
    mixed = sealed.assign(seed=[*sealed["seed"][:9], JUDGING.start])
    found = claims.judge(claim(cases={"p": 2}), mixed)
    assert (found.word, found.sealed, found.counts) == ("refused", None, False)


@pytest.mark.parametrize("first", [0, 7, 500, 995])
def test_a_papers_claim_is_judged_on_seeds_that_nobody_has_seen(first):
    found = claims.judge(claim(), table(first, x=five(1), y=[0] * 5))
    assert found.word == "refused" and f"seed {first}, " in found.detail and "served for tuning" in found.detail
    assert claims.judge(claim(kind="target", margin=0), table(first, x=five(1), y=[0] * 5)).word == "met"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["reproduced"] * 3, "reproduced"),
        (["reproduced", "other size"], "other size"),
        (["reproduced", "undecided", "undecided"], "mixed"),
        (["reproduced", "contradicted"], "mixed"),
        (["other size", "contradicted"], "mixed"),
        (["undecided", "contradicted"], "contradicted"),
        (["undecided", "undecided"], "undecided"),
        (["reproduced", "not comparable"], "not comparable"),
        (["contradicted", "not comparable"], "contradicted"),
        (["calibrated", "reproduced"], "reproduced"),
        (["calibrated"], "refused"),
        (["passed", "failed"], "failed"),
        (["met", "missed"], "missed"),
    ],
)
def test_the_word_for_several_cases(words, expected):
    assert together(words) == together(words[::-1]) == expected


def test_a_mixed_claim_says_how_many_cases_are_shown():
    cases = claim(subject="{case}", cases={"a": 2, "b": 2, "c": "more"})
    found = claims.judge(cases, table(a=five(2), b=five(0.5, 1), c=five(1), y=[0] * 5))
    assert (found.word, found.text) == ("mixed", "mixed (2 of 3)")
    order = claim(subject=None, reference=None, order=("a", "b", "c"))
    found = claims.judge(order, table(a=five(3), b=five(1), c=five(2)))
    assert [case.case for case in found.cases] == ["a > b", "b > c"] and found.text == "mixed (1 of 2)"
    smallest_first = claim(relation="<=", subject=None, reference=None, order=("c", "b", "a"))
    assert claims.judge(smallest_first, table(a=five(3), b=five(2), c=five(1))).word == "reproduced"


@pytest.mark.parametrize(
    ("changes", "numbers", "expected"),
    [
        ({"margin": 1}, five(1.3), "met"),
        ({"margin": 1}, five(1.1), "missed"),  # not surely
        ({"margin": (0.5, 1.5)}, five(1.2), "met"),
        ({"margin": (0.5, 1.5)}, five(1.4), "missed"),
        ({"margin": 1}, [1.0], "met"),  # a single run counts as it is
        ({"margin": 1}, [0.9], "missed"),
        ({"margin": 1, "seeds": 6}, five(1.3), "refused"),
    ],
)
def test_targets(changes, numbers, expected):
    relation = "within" if isinstance(changes["margin"], tuple) else ">="
    assert one(claim("value", relation, kind="target", **changes), x=numbers).word == expected


def test_a_target_may_be_an_equivalence_without_a_control():
    target = EQUIVALENCE | {"kind": "target", "control": None}
    assert [one(claim(**target), x=eight(x), **KEPT).word for x in (10, 8.5)] == ["met", "missed"]


def test_a_check_passes_where_every_run_does():
    for numbers, expected in ((five(1.2), "passed"), (five(1.15), "failed"), ([1.2, math.nan], "failed")):
        assert one(claim("value", kind="check", margin=1), x=numbers).word == expected
    case = one(claim("value", kind="check", margin=1), x=five(1.2))
    assert (case.low, case.high) == pytest.approx((1.0, 1.4)), "a range, and no interval"


def test_an_estimate_has_no_verdict_and_bounds_what_was_not_found():
    case = one(claim(kind="estimate"), x=five(0.1), y=[0] * 5)
    assert (case.word, case.detail) == ("estimate", "an effect beyond 0.3, in the paper's direction, is excluded")
    kept = one(claim(**EQUIVALENCE | {"kind": "estimate", "control": None}), x=eight(9.5), **KEPT)
    assert kept.word == "estimate" and kept.part[0] == pytest.approx(0.95)


def test_two_looks_share_the_level():
    """The first of 5 and 10 seeds has O'Brien and Fleming's 0.0056: ± 5.4 standard errors where 5 % have ± 2.8."""
    twice = claim(cases={"p": 2}, seeds=(5, 10))
    numbers = five(1.3)  # at 5 % from 1.10 to 1.50, at 0.56 % from 0.92
    assert one(claim(cases={"p": 2}), x=numbers, y=[0] * 5).word == "reproduced"
    assert one(twice, x=numbers, y=[0] * 5).word == "other size"
    assert one(twice, x=numbers * 2, y=[0] * 10).word == "reproduced"


def test_seeds_are_paired_and_only_shared_ones_count():
    mine, theirs = five(2, 1), [x - 2 for x in five(2, 1)]
    case = one(claim(cases={"p": 2}), x=mine, y=theirs)
    assert case.word == "reproduced" and case.part == (1.0, 1.0, 1.0)
    case = one(claim(cases={"p": 2}), x=five(2), y=[0] * 8)
    assert "compared on the 5 of 8 seeds that both have" in case.detail


def test_a_slope_is_taken_for_every_seed_over_a_column_or_a_dial():
    rows = [("x", JUDGING.start + seed, n, 3 * n + seed) for seed in range(5) for n in (1, 2, 4)]
    data = pd.DataFrame(rows, columns=["subject", "seed", "n", "m"])
    slope = claim("slope", over="n", cases={"p": 3})
    assert claims.judge(slope, data).cases[0].part == pytest.approx((1, 1, 1))
    with pytest.raises(BadClaim, match="a slope needs two values of 'n'"):
        claims.judge(slope, data[data["n"] == 1])
    dial = claim("slope", subject=None, over={"a": 1, "b": 2, "c": 4}, cases={"p": 3})
    named = data.assign(subject=data["n"].map({1: "a", 2: "b", 4: "c"}))
    assert claims.judge(dial, named).cases[0].part == pytest.approx((1, 1, 1))
    with pytest.raises(UnknownName, match="'c'"):
        claims.judge(dial, named[named["subject"] != "c"])


def test_unknown_subjects_and_metrics_are_named():
    with pytest.raises(UnknownName, match=r"subject of claim 'a\.b': 'y'"):
        one(claim(), x=five(1))
    with pytest.raises(BadClaim, match="no column 'auc'"):
        one(claim(metric="auc"), x=five(1), y=[0] * 5)
    twice = pd.concat([table(x=five(1), y=[0] * 5)] * 2)
    with pytest.raises(BadClaim, match="one result is expected, not 2"):
        claims.judge(claim(), twice)


def test_what_was_fitted_is_calibrated_and_decides_nothing():
    record = {"constant": "c", "value": 1.0, "fitted_to": "Tab. 1", "notebooks": ("one",)}
    fitted = Calibration(**record, determines=({"metric": "m", "subject": "y", "reference": "a"},))
    cases = claim(subject="{case}", cases={"a": 2, "b": 2})
    found = claims.judge(cases, table(a=five(-9), b=five(2), y=[0] * 5), calibrations=[fitted])
    assert [case.word for case in found.cases] == ["calibrated", "reproduced"] and found.word == "reproduced"


# Properties


SHARES = st.tuples(FINITE, st.floats(0.01, 20)).map(lambda pair: (pair[0], pair[0] - pair[1], pair[0] + pair[1]))


@given(SHARES, st.floats(0, 30))
def test_more_effect_is_never_closer_to_a_contradiction(share, more):
    """With the same width: contradicted, then undecided or shown, and beyond twice the paper's never undecided again."""
    rank = {"contradicted": 0, "undecided": 1, "other size": 2, "reproduced": 2}
    words = [word_of_share(*(x + d for x in share)) for d in (0, more)]
    assert rank[words[0]] <= rank[words[1]]


@given(st.lists(FINITE, min_size=5, max_size=12), st.floats(0.1, 20), st.sampled_from(["number", "text"]))
def test_the_mirror_image_has_the_same_word(numbers, paper, kind):
    words = []
    for sign in (1, -1):
        figure = sign * paper if kind == "number" else "more"
        a_claim = claim(relation=">=" if sign > 0 else "<=", cases={"p": figure})
        words.append(one(a_claim, x=[sign * x for x in numbers], y=[0] * len(numbers)).word)
    assert words[0] == words[1]


@given(st.lists(st.floats(0.1, 10), min_size=5, max_size=12), st.floats(1.1, 9))
def test_a_ratio_and_its_inverse_have_the_same_word_and_share(numbers, paper):
    up = one(claim("ratio", cases={"p": paper}), x=numbers, y=[1.0] * len(numbers))
    down = one(claim("ratio", "<=", cases={"p": 1 / paper}), x=[1.0] * len(numbers), y=numbers)
    assert up.part == pytest.approx(down.part, rel=1e-6, abs=1e-9)
    edges = [abs(x - edge) for x in up.part for edge in (0, 0.1, 0.5, 2)]
    assert up.word == down.word or min(edges) < 1e-9


@given(st.lists(FINITE, min_size=5, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_the_names_of_seeds_do_not_matter(numbers, shuffled: random.Random):
    data = table(x=numbers, y=[0.5 * x for x in numbers])
    places = list(range(len(data)))
    shuffled.shuffle(places)
    seeds = list(range(len(numbers)))
    shuffled.shuffle(seeds)
    other = data.iloc[places].assign(seed=lambda t: t["seed"].map(lambda s: JUDGING.start + seeds[s - JUDGING.start]))
    first, second = (claims.judge(claim(cases={"p": 2}), each).cases[0] for each in (data, other))
    assert first.word == second.word and first.part == pytest.approx(second.part)


@given(st.lists(FINITE, min_size=5, max_size=12), st.floats(0.01, 100))
def test_the_unit_does_not_matter(numbers, unit):
    zeros = [0.0] * len(numbers)
    first, second = (one(claim(cases={"p": 2 * u}), x=[u * x for x in numbers], y=zeros) for u in (1.0, unit))
    assert first.part == pytest.approx(second.part, rel=1e-6, abs=1e-9)
    assert first.word == second.word or min(abs(x - e) for x in first.part for e in (0, 0.1, 0.5, 2)) < 1e-9


@given(st.floats(5, 15), st.floats(0.01, 1))
def test_keeping_less_is_never_better(mean, s):
    rank = {"contradicted": 0, "undecided": 1, "reproduced": 2}
    words = [one(claim(**EQUIVALENCE), x=eight(x, s), **KEPT).word for x in (mean - 1, mean)]
    assert rank[words[0]] <= rank[words[1]]


def test_a_verdict_does_not_change_with_what_no_rule_reads():
    a_claim = claim(cases={"p": 2})
    other = dataclasses.replace(a_claim, reason="another", place="elsewhere")
    data = table(x=five(2), y=[0] * 5)
    assert claims.judge(a_claim, data).cases == claims.judge(other, data).cases
