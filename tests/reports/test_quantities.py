"""Numbers as text."""

import dataclasses
import math

import pytest

from reports.claims import Case
from reports.markup import rounded
from reports.quantities import (
    column,
    decimals,
    measured_text,
    paper_text,
    part_text,
    plus_minus,
    result_text,
    seeds_text,
)
from tests.reports.test_claims import EQUIVALENCE, claim


@pytest.mark.parametrize(
    ("numbers", "half", "places"),
    [
        ([1.0], 0.052, 2),
        ([1.0], 0.012, 3),
        ([1.0], 0.2, 1),
        ([9.0], 34.0, -1),
        ([0.0123], None, 4),
        ([3.0, 2.0], None, 0),
        ([1.0000000000000020], 1e-15, 5),  # rounding errors of sums
    ],
)
def test_as_many_digits_as_the_interval_carries(numbers, half, places):
    assert decimals(numbers, half) == places


@pytest.mark.parametrize(
    ("x", "places", "text"),
    [
        (134_231.7, -3, "134\u202f000"),
        (-0.0004, 2, "0.00"),
        (-1.25, 1, "−1.2"),
        (math.nan, 2, "–"),
        (math.inf, 2, "inf"),
    ],
)
def test_rounded(x, places, text):
    assert rounded(x, places) == text


def case(ours, half=None, paper=None):
    ends = {} if half is None else {"low": ours - half, "high": ours + half}
    return Case(case="", word="reproduced", ours=ours, paper=paper, n=5, **ends)


@pytest.mark.parametrize(
    ("effect", "metric", "found", "text", "theirs"),
    [
        ("ratio", "qps", case(2.6134, 0.052, 2.26), "2.61× [2.56, 2.67]", "2.26×"),
        ("difference", "auc", case(-0.00251, 0.0004, -0.0025), "−2.5 [−2.9, −2.1] × 10⁻³ AUC", "−2.50 × 10⁻³ AUC"),
        ("difference", "auc", case(-0.15, 0.012, -0.1518), "−0.150 [−0.162, −0.138] AUC", "−0.152 AUC"),
        ("value", "auc", case(0.7312, 0.0031), "0.731 [0.728, 0.734] AUC", "–"),
        ("slope", "auc", case(1.5, 0.3), "1.5 [1.2, 1.8]", "–"),
        ("value", "error", case(0.146), "14.6 %", "–"),
        ("value", "order", case(1.0), "1", "–"),
    ],
)
def test_a_unit_and_thousandths(effect, metric, found, text, theirs):
    extra = {"over": "t"} if effect == "slope" else {}
    of = claim(effect, metric=metric, margin=1.0 if effect == "value" else None, **extra)
    assert measured_text(of, found) == text and paper_text(of, found) == theirs


def test_a_range_of_runs_is_called_one():
    of = claim("ratio", kind="check", margin=1.0)
    assert measured_text(of, case(2.0, 0.3)) == "2.0× (range 1.7, 2.3)"


def test_what_is_out_of_bounds_is_never_written_as_the_bound():
    asked = claim(effect="value", metric="lost", kind="check", relation="<=", margin=1)
    found = dataclasses.replace(case(0.952), low=0.84, high=1.0045)
    assert measured_text(asked, found).endswith("1.004)")
    assert measured_text(asked, dataclasses.replace(found, high=1.0)).endswith("1.00)")
    assert measured_text(asked, dataclasses.replace(found, high=1.02)).endswith("1.02)")


def test_a_papers_ratio_that_is_not_one_is_not_written_as_one():
    assert [paper_text(claim("ratio"), case(1.002, 0.003, x)) for x in (0.9997, 1.0)] == ["0.9997×", "1×"]


def test_a_share_is_written_with_its_interval_and_both_numbers():
    found = dataclasses.replace(case(2.6134, 0.052, 2.26), part=(1.178, 1.153, 1.203))
    of = claim("ratio", metric="qps", cases={"p": 2.26})
    assert part_text(of, found) == "118 % [115, 120] of the paper's effect"
    assert result_text(of, found) == f"{part_text(of, found)} (2.61× [2.56, 2.67]; paper: 2.26×)"
    large = dataclasses.replace(found, part=(24.2, 23.1, 25.3))
    assert part_text(of, large) == "24.2 times [23.1, 25.3] the paper's effect", "2 420 % reads as an error"
    kept = dataclasses.replace(case(-0.0008, 0.0001), part=(0.967, 0.9633, 0.9704))
    equivalence = claim(metric="auc", **EQUIVALENCE)
    assert part_text(equivalence, kept) == "keeps 96.7 % [96.3, 97.0] of the gain (rule: 90 %)"
    assert part_text(of, case(1.0)) == "" and result_text(of, case(2.6134, 0.052)) == "2.61× [2.56, 2.67]"


def test_a_drop_below_zero_is_called_a_rise():
    of = claim("value", metric="drop", relation=">=", margin=0.01, broken=0.0)
    assert measured_text(of, case(-0.0073, 0.0006)) == "−0.0073 [−0.0079, −0.0067] (a rise)"
    assert "rise" not in measured_text(of, case(0.0055, 0.0006))


def test_columns_and_means():
    assert column([0.73123, 12.5, None]) == ["0.73", "12.50", "–"]
    assert column([1.0, 2000.0]) == ["1", "2\u202f000"]
    assert plus_minus(0.73123, 0.0031) == "0.731 ± 0.003" and plus_minus(0.5, math.nan) == "0.5000"


def test_seeds_are_written_with_what_they_tell():
    told = Case(case="", word="reproduced", n=8, tells=0.1234)
    assert seeds_text(claim(cases={"p": 2}), dataclasses.replace(told, part=(1, 0.9, 1.1))) == "8: detect 12 %"
    assert seeds_text(claim("ratio"), told) == "8: detect 12 %" and seeds_text(claim(), told) == "8: detect 0.12"
    assert seeds_text(claim(), Case(case="", word="undecided", n=1)) == "1"
