"""Claims on one axis, with places that can be checked by hand."""

from xml.etree import ElementTree

import pytest

from reports import claims
from reports.forest import forest, kept_place, place, row_picture
from tests.reports.test_claims import EQUIVALENCE, claim
from tests.reports.test_judge import KEPT, eight, five, table


def test_the_axis_is_linear_to_twice_the_papers_effect_and_logarithmic_beyond():
    assert [place(x) for x in (-100, 0, 100, 200)] == pytest.approx([0, 0.2, 0.4, 0.6])
    assert place(2500) == pytest.approx(1) == place(1e9) and place(-1e9) == 0
    factor = (2500 / 200) ** 0.5
    assert place(200 * factor) == pytest.approx(0.8), "halfway by the logarithm"
    assert kept_place(80) == 0 == kept_place(-3) and kept_place(102) == 1 == kept_place(110)


def judged(numbers, **changes):
    return claims.judge(claim(cases={"p": 2}, **changes), table(x=numbers, y=[0] * 5))


def test_every_case_with_a_share_is_a_row_in_its_words_colour():
    kept = claims.judge(claim(id="a.kept", **EQUIVALENCE), table(x=eight(9.5), **KEPT))
    without = claims.judge(claim(id="a.free"), table(x=five(2), y=[0] * 5))
    svg = forest([judged(five(2)), judged(five(-2), id="a.other", sentence="Worse."), kept, without])
    root = ElementTree.fromstring(svg)
    rows = [each for each in root.iter() if each.find("./{*}title") is not None]
    shown = [each.get("class") for each in rows]
    assert shown == ["reproduced", "contradicted", "reproduced"], "one has no number of the paper"
    assert root.get("aria-label") == "3 cases: 1 contradicted, 2 reproduced."
    assert "".join(rows[0].itertext()).split("reproduced: ")[1].strip() == "100 % [90, 110] of the paper's effect"
    assert forest([without]) == ""


def test_the_picture_of_a_row_is_on_the_same_axis():
    """168 points with 6 at the edges: the paper's own effect lies at 6 + 0.4 x 156."""
    verdict = judged([2.0] * 5)
    html = row_picture(verdict.claim, verdict.cases[0])
    assert 'cx="68.4"' in html and 'class="none" d="M37.2 1V21"' in html and 'class="reproduced"' in html
    assert 'x="52.8" y="2" width="46.8"' in html, "the band from 50 to 200 %"
    assert row_picture(claim(), claims.Case(case="", word="refused")) == ""
