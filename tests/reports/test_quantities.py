"""Numbers as text, and a case as a small picture."""

import dataclasses
import math
import re

import pytest

from reports import claims
from reports.claims import Case
from reports.interval_svg import description, interval_svg
from reports.markup import rounded
from reports.page import check_offline
from reports.quantities import column, decimals, measured_text, paper_text, plus_minus, seeds_text
from tests.reports.test_claims import PARITY, claim
from tests.reports.test_judge import PARITY_OF, eight, five, table


@pytest.mark.parametrize(
    ("numbers", "half", "places"),
    [
        ([1.0], 0.052, 2),
        ([1.0], 0.012, 3),
        ([1.0], 0.2, 1),
        ([9.0], 34.0, -1),
        ([0.0123], None, 4),
        ([3.0, 2.0], None, 0),
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
    return Case(case="", verdict="replicated", ours=ours, paper=paper, n=5, **ends)


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
    of = claim("ratio", kind="promise", margin=1.0, runs="every")
    assert measured_text(of, case(2.0, 0.3)) == "2.0× (range 1.7, 2.3)"


def test_what_is_out_of_bounds_is_never_written_as_the_bound():
    asked = claim(effect="value", metric="lost", kind="promise", relation="<=", margin=1)
    found = dataclasses.replace(case(0.952), low=0.84, high=1.0045, far=1.0)
    assert measured_text(asked, found).endswith("1.004]")
    assert measured_text(asked, dataclasses.replace(found, high=1.0)).endswith("1.00]")
    assert measured_text(asked, dataclasses.replace(found, high=1.02)).endswith("1.02]")


def test_columns_and_means():
    assert column([0.73123, 12.5, None]) == ["0.73", "12.50", "–"]
    assert column([1.0, 2000.0]) == ["1", "2\u202f000"]
    assert plus_minus(0.73123, 0.0031) == "0.731 ± 0.003" and plus_minus(0.5, math.nan) == "0.5000"


def test_beside_the_seeds_stands_what_they_can_tell_and_the_margin():
    """Half an interval of 0.0005 with eight seeds: 0.0005 x (1 + 1.415 / 2.365) = 0.00080 can be told."""
    auc = claim(metric="auc")
    case = Case(case="", verdict="v", ours=-0.001, low=-0.0015, high=-0.0005, near=-0.0012, n=8)
    assert seeds_text(auc, case) == "8: tell 0.8, margin −1.20 × 10⁻³ AUC"
    falling = claim("ratio", relation="<=", metric="m")
    case = Case(case="", verdict="v", ours=1.2, low=0.9, high=1.5, near=None, far=1.0, n=8)
    assert seeds_text(falling, case) == "8: tell 0.5, margin 1×"
    check = claim(kind="check", margin=0.0)
    assert seeds_text(check, case) == "8", "a range of runs tells nothing of a mean"
    assert seeds_text(auc, Case(case="", verdict="inconclusive", n=1)) == "1"


def picture(a_claim, **subjects):
    (case,) = claims.judge(a_claim, table(**subjects)).cases
    return interval_svg(a_claim, case), description(a_claim, case)


def test_a_picture_says_where_each_thing_is():
    """From 0 (no effect) to 4 (twice the paper's 2) are 152 of 168 points: 38 each, with 8 at the edges."""
    svg, words = picture(claim(cases={"p": 2}), x=five(3), y=[0] * 5)
    assert words == "ours 3.00, interval 2.80 to 3.20, the paper 2, the rule from 1 to 4"
    assert f'aria-label="{words}"' in svg and 'role="img"' in svg
    assert '<rect class="rule" x="46.0" y="2" width="114.0"' in svg and 'd="M8.0 1V21"' in svg
    assert '<circle class="ours" cx="122.0"' in svg and '<circle class="papers" cx="84.0"' in svg
    low, high = re.search(r'class="found" d="M([\d.]+) 11H([\d.]+)"', svg).groups()
    assert (float(low), float(high)) == (
        pytest.approx(8 + 38 * 2.8037, abs=0.1),
        pytest.approx(8 + 38 * 3.1963, abs=0.1),
    )
    check_offline(svg)


def test_an_open_rule_reaches_the_edge_and_a_range_is_called_one():
    svg, words = picture(claim("value", kind="promise", relation="<=", margin=3, runs="every"), x=[1, 2])
    assert words == "ours 1.5, range 1.0 to 2.0, the rule to 3"
    assert '<rect class="rule" x="0" y="2" width="160.0"' in svg and "papers" not in svg and "none" not in svg
    svg, words = picture(claim(**PARITY, cases={"p": "the same"}), x=eight(10), **PARITY_OF)
    assert words.endswith("the rule from −1") and "papers" not in svg


def test_equal_numbers_and_no_number_are_drawn_too():
    svg, words = picture(claim("value", kind="promise", margin=2, runs="every"), x=[2])
    assert words == "ours 2, the rule from 2" and 'cx="8.0"' in svg
    assert interval_svg(claim(), Case(case="", verdict="refused")) == ""
