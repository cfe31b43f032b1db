"""In short: sentences with the numbers that were measured, and why what failed did."""

from dataclasses import replace

from reports.claims import judge
from reports.summary_text import in_short, reason, sentence
from tests.reports.test_claims import claim
from tests.reports.test_judge import five, table

NOTHING = [0] * 5


def verdict(x, effect="difference", **changes):
    return judge(claim(effect, **changes), table(x=five(x), y=five(1) if effect == "ratio" else NOTHING))


def test_a_sentence_has_the_share_and_both_numbers():
    """five(3) is 3 with deviations whose interval is 0.196 to each side."""
    found = sentence(verdict(3, cases={"p": 2}))
    assert found == "s Found: 150 % [140, 160] of the paper's effect (3.00 [2.80, 3.20]; paper: 2)."
    assert sentence(verdict(3, cases={"p": "more"})) == "s Found: 3.00 [2.80, 3.20]."


def test_several_cases_are_named():
    of = claim(subject="{case}", cases={"a": 2.0, "b": "more"})
    found = sentence(judge(of, table(a=five(3), b=five(6), y=NOTHING)))
    assert "Found: a: 150 % [140, 160] of the paper's effect" in found and "; b: 6.00 [5.80, 6.20]." in found


def test_what_failed_says_why():
    tested = ({"changed": "half the rate", "found": "it falls"}, {"changed": "one worker", "found": "the same"})
    assert reason(verdict(-1, explanations=tested)) == "Tested: half the rate. Found: it falls."
    assert reason(verdict(-1)) == "Not explained yet."
    html = in_short([verdict(3), verdict(-1, explanations=tested)], "laptop")
    assert html.index("What failed, and why") > html.index("s Found: 3.00")
    assert "Tested: half the rate. Found: it falls." in html


def test_what_is_not_comparable_says_why():
    elsewhere = verdict(-1, elsewhere="a compiler of its own")
    assert reason(elsewhere) == "The paper's figure rests on a compiler of its own."
    results = table(x=five(0.1), y=NOTHING).assign(age=9.0)
    found = reason(judge(claim(cases={"p": 2}, regime={"age": 0.2}), results))
    assert found.startswith("Outside the paper's regime: age")


def test_the_papers_claims_stand_first_and_words_are_counted():
    many = [verdict(3, id=f"a.{i}", sentence=f"Sentence {i}.") for i in range(4)]
    target = verdict(3, id="a.t", sentence="A target.", kind="target", margin=0)
    html = in_short([target, *many], "laptop")
    assert "Sentence 2." in html and "Sentence 3." not in html and "A target." not in html
    assert "targets: 1 met" in html or "targets of ours: 1 met" in html


def test_a_page_that_judged_nothing_says_so():
    assert "Nothing has been judged yet" in in_short([verdict(3)], "smoke")
    assert "Nothing has been judged yet" in in_short([replace(verdict(3), word="not run", cases=())], "laptop")
    assert in_short([], "laptop") == ""
