"""In short: sentences with the numbers that were measured, and why what failed did."""

from dataclasses import replace

import pytest

from reports.claims import BadClaim, judge
from reports.claims.loading import parsed
from reports.markup import parts
from reports.summary_text import _distinct, in_short, reason, sentence
from tests.reports.test_claims import GOOD, claim
from tests.reports.test_judge import five, table

LESS = [0] * 5


def verdict(x, effect="difference", **changes):
    return judge(claim(effect, **changes), table(x=five(x), y=five(1) if effect == "ratio" else LESS))


def test_a_sentence_of_its_own_is_filled_in():
    """five(3) is 3 with deviations whose interval is 0.196 to each side."""
    filled = verdict(3, cases={"p": 2}, short="X is {ours} {interval}; in the paper {paper}.")
    assert sentence(filled) == "X is 3.00 [2.80, 3.20]; in the paper 2.00."


def test_of_several_cases_the_least_and_the_greatest():
    of = claim(subject="{case}", cases={"a": 2.0, "b": 4.0}, short="Between {ours}, there {paper}{interval}.")
    assert sentence(judge(of, table(a=five(3), b=five(6), y=LESS))) == "Between 3.00 to 6.00, there 2.00 to 4.00."


def test_without_one_the_claim_and_both_numbers():
    assert sentence(verdict(3, cases={"p": 2})) == "s Ours: 3.00 [2.80, 3.20]. The paper: 2."
    assert sentence(verdict(3, cases={"p": "more"})) == "s Ours: 3.00 [2.80, 3.20]."


def test_what_failed_says_why():
    tested = ({"changed": "half the rate", "found": "it falls"}, {"changed": "one worker", "found": "the same"})
    assert reason(verdict(-1, explanations=tested)) == "Tested: half the rate. Found: it falls."
    assert reason(verdict(-1)) == "Not explained yet."
    html = in_short([verdict(3), verdict(-1, explanations=tested)], "laptop")
    assert (
        html.index("What failed, and why") > html.index("s Ours: 3.00")
        and "Tested: half the rate. Found: it falls." in html
    )
    assert "2 claims of the paper: 1 replicated, 1 not replicated." in html


def test_a_promise_that_failed_says_what_was_asked_and_that_nothing_explains_it_yet():
    promise = {"kind": "promise", "standing": None}
    slow = verdict(1.2, "ratio", margin=1.6, short="It trains {ours} as many.", **promise)
    assert sentence(slow) == "It trains 1.20× as many. Asked: at least 1.6×." and reason(slow) == "Not explained yet."
    less = verdict(-1, margin=0, **promise)
    assert sentence(less).endswith("Asked: at least 0.")
    most = verdict(3, "value", relation="<=", margin=2, short="{ours}.", reference=None, **promise)
    assert sentence(most) == "3.00. Asked: at most 2."
    beside = verdict(3, "value", relation="within", margin=0.5, target=1, short="{ours}.", reference=None, **promise)
    assert sentence(beside) == "3.00. Asked: 0.5 to 1.5."
    said = verdict(1.2, "ratio", margin=1.6, short="{ours} of what is asked.", **promise)
    assert sentence(said) == "1.20× of what is asked."
    assert "Asked" not in sentence(verdict(3, margin=1, **promise)), "it was kept"


def test_what_cannot_be_judged_here_says_why():
    elsewhere = verdict(-1, elsewhere="a compiler of its own")
    assert reason(elsewhere) == "The paper's figure rests on a compiler of its own."
    results = table(x=five(0.1), y=LESS).assign(age=9.0)
    assert reason(judge(claim(cases={"p": 2}, regime={"age": 0.2}), results)).startswith(
        "Outside the paper's regime: age"
    )


def test_claims_say_which_sentences_stand_first():
    many = [verdict(3, id=f"a.{i}", sentence=f"Sentence {i}.") for i in range(4)]
    html = in_short(many, "laptop")
    assert "Sentence 1." in html and "Sentence 2." not in html
    html = in_short([*many, verdict(3, id="a.5", short="This one, {ours}.")], "laptop")
    assert "This one, 3.00." in html and "Sentence 1." not in html


def test_what_a_page_asks_and_cannot_tell_stands_there_with_its_reason():
    asked = judge(claim(short="It is {ours}.", seeds=8), table(x=five(3), y=LESS))
    silent = judge(claim(cases={"p": 2}), table(x=five(0.5, 1), y=LESS))  # inconclusive, without a sentence of its own
    html = in_short([asked, silent, verdict(3, short="X is {ours}.")], "laptop")
    assert "It is 3.00. Open: too few seeds: 5 of 8." in html and "X is 3.00." in html
    assert html.index("X is 3.00.") < html.index("It is 3.00.") and "s Ours" not in html


def test_cases_that_are_all_open_are_not_listed_and_unlike_ones_are():
    of = claim(subject="{case}", cases={"a": 2.0, "b": 2.0}, short="{ours}.")
    wide = [-4.0, 6.0, 1.0, -2.0, 4.0]
    assert sentence(judge(of, table(a=wide, b=wide, y=LESS))) == "1."
    assert sentence(judge(of, table(a=wide, b=five(3), y=LESS))) == "1.00 to 3.00. Open: a: inconclusive."


def test_an_order_says_which_pairs_stand_the_other_way():
    of = claim("order", subject=None, order=("a", "b", "c"), short="The order.")
    assert sentence(judge(of, table(a=five(3), b=five(2), c=five(1)))) == "The order."
    assert sentence(judge(of, table(a=five(3), b=five(1), c=five(2)))) == "The order. Shown the other way here: b < c."
    small = claim("order", relation="<=", subject=None, order=("c", "b", "a"), short="The order.")
    assert (
        sentence(judge(small, table(a=five(1), b=five(3), c=five(2)))) == "The order. Shown the other way here: b > a."
    )


def test_what_could_not_be_measured_is_said_with_why():
    """A check that failed for a figure that is missing would read as if it held."""
    of = claim("value", kind="check", subject="x", cases={"x": "holds"}, sentence="It holds.", relation=">=", margin=0)
    lost = replace(
        judge(of, table(x=[float("nan")] * 5)), verdict="failed", cases=(), detail="x is not finite for seed 3"
    )
    assert sentence(lost) == "It holds. But x is not finite for seed 3."


def test_claims_that_are_all_confirmatory_are_counted_distinct():
    sure, more = {"replicated": 2}, {"replicated": 2, "inconclusive": 1}
    assert _distinct({"confirmatory": sure, "paper": dict(sure), "check": more}) == {
        "confirmatory": sure,
        "check": more,
    }
    assert _distinct({"confirmatory": sure, "paper": more}) == {"confirmatory": sure, "paper": more}
    assert _distinct({"paper": more}) == {"paper": more}


def test_nothing_judged_is_one_line():
    assert "of the profile smoke" in in_short([verdict(3)], "smoke") and "Ours" not in in_short([verdict(3)], "smoke")
    assert in_short([], "laptop") == ""
    assert parts().short((), (), (), ["x"]).count("<p") == 1


@pytest.mark.parametrize("short", ["It is {mine}.", "It is {ours", "{}"])
def test_only_what_is_measured_is_filled_in(short):
    with pytest.raises(Exception, match="are all that is filled in"):
        claim(short=short)
    assert parsed(GOOD.replace("reason:", f'short: "{short}"\n  reason:'), "") == {}
    assert issubclass(BadClaim, ValueError)
