import re

import pytest

from reports import claims
from reports.claims import Case
from reports.interval_svg import description, interval_svg
from reports.page import check_offline
from tests.reports.test_claims import PARITY, claim
from tests.reports.test_judge import PARITY_OF, eight, five, table


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
