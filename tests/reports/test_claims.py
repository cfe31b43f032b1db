"""Claims: the strict reader, what a claim refuses to be, and verdicts as files."""

import dataclasses
import json
import sys

import pandas as pd
import pytest

from lib import paths
from lib.errors import LockstepError, UnknownName
from lib.seeds import SEALED, judging
from reports import claims
from reports.claims import BadClaim, Claim
from reports.claims.judge import Case, Verdict
from reports.claims.stored_verdicts import save

GOOD = """
- id: a.b
  notebook: one
  sentence: Better.
  place: Tab. 1
  kind: paper
  effect: difference
  metric: auc
  subject: gba
  reference: sync
  cases: {value: 0.2}
  relation: ">="
  reason: because
  seeds: 5
  scale: {paper: big, ours: small}
"""


def claim(effect="difference", relation=">=", **changes):
    """A paper's claim about x, or x and y, without a number of the paper's."""
    given = {"id": "a.b", "notebook": "one", "sentence": "s", "place": "p", "kind": "paper", "reason": "r", "seeds": 5}
    given |= {"effect": effect, "metric": "m", "relation": relation, "scale": {"paper": "big", "ours": "small"}}
    given |= {"subject": "x", "reference": "y" if effect in ("difference", "ratio") else None}
    given |= {} if changes.get("kind", "paper") == "paper" else {"seeds": 1}
    given |= {"broken": 0.0} if effect == "value" and changes.get("kind", "paper") == "paper" else {}
    return Claim(**{**given, **changes})


EQUIVALENCE = {"frozen": "z", "control": "c", "share": 0.1, "seeds": 8}


def results_of(lead, seeds=None):
    """GBA's AUC above Sync's by as much, with every judging seed: intervals of no width."""
    rows = [(s, seed, value) for s, value in (("gba", lead), ("sync", 0.0)) for seed in seeds or judging(5)]
    return pd.DataFrame(rows, columns=["subject", "seed", "auc"])


def test_a_good_claim_is_read(house):
    house.claims(GOOD, "gba")
    (found,) = claims.load().values()
    assert (found.notebook, found.folder, found.cases) == ("gba/one", "gba", {"value": 0.2})
    assert found.rule == "auc(gba) − auc(sync) ≥ 0, and the effect is 50 to 200 % of the paper's"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 5", "seed: 5", r"claims.yaml: claim 'a.b': seed: Claim has no such field; did you mean 'seeds'"),
        ("reason: because", "reason:", "reason: is empty"),
        ("value: 0.2", "value: .inf", r"cases.value must be finite"),
        ("value: 0.2", "value: true", r"cases.value must be a number or text"),
        ("seeds: 5", "seeds: 4", "seeds: must be 5 or more, for an interval at all"),
        ("seeds: 5", "seeds: [9, 6]", "seeds: the second look has more seeds than the first"),
        ("effect: difference", "effect: odrer", "effect must be 'difference', 'ratio', 'value' or 'slope', not"),
        ('relation: ">="', "relation: >=", r"claims.yaml:12:\d+: not YAML"),
        ("kind: paper", "kind: bound", "kind must be 'paper', 'estimate', 'target' or 'check', not 'bound'"),
        ("  reference: sync\n", "", "reference: is missing from a claim of effect 'difference'"),
        ("  subject: gba\n", "", "subject: is missing from"),
        ("effect: difference", "effect: slope", "reference: has no place in a claim of effect 'slope'"),
        ("seeds: 5", "seeds: 5\n  over: n", "over: has no place in"),
        ("seeds: 5", "seeds: 5\n  order: [a, b]", "reference: has no place in"),
        ("seeds: 5", "seeds: 5\n  margin: 0.1", "margin: the paper's numbers say what is enough"),
        ("value: 0.2", "value: -0.2", r"cases: value's -0.2 is not on the side of >="),
        ("value: 0.2", "a: 1, b: 2", "cases: must differ: write {case} where their names belong"),
        ('">="', '"within"', "relation: a paper's number is judged by >= or <="),
        ("seeds: 5", "seeds: 5\n  share: 0.1", "share: only an equivalence has one"),
        ("seeds: 5", "seeds: 8\n  share: 0.1\n  frozen: z", "control: is missing: an equivalence needs"),
        ("seeds: 5", "seeds: 5\n  share: 0.1\n  frozen: z\n  control: c", "seeds: must be 8 or more"),
        ("seeds: 5", "seeds: 5\n  broken: 1", "broken: a paper's value needs one, and nothing else has it"),
        ("{value: 0.2}", "{value: a fifth}\n  margin: -0.1", "margin: lies on the other side of no effect"),
        ("kind: paper", "kind: target", "margin: is missing; what is judged needs it"),
        ("effect: difference", "effect: ratio\n  effect: ratio", "'effect' stands here twice"),
        ("scale: {paper: big, ours: small}", "scale: {paper: big}", "scale: must have exactly"),
        ("sentence: Better.", "sentence: ' '", "sentence must be filled in"),
        ("- id: a.b", "- [1]\n- id: a.b", "a claim is a mapping"),
        ("{value: 0.2}", "{value: about a fifth}\n  margin: 0.1", None),
        ("{value: 0.2}", "{}", None),
        ("seeds: 5", "seeds: [5, 12]", None),
    ],
)
def test_a_malformed_claim_is_named(house, old, new, message):
    assert old in GOOD
    house.claims(GOOD.replace(old, new))
    if message is None:
        assert claims.load()
        return
    with pytest.raises(BadClaim, match=message):
        claims.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"effect": "ratio", "kind": "target", "margin": 0}, "must be greater than 0: such a rule cannot fail"),
        ({"effect": "value", "kind": "target", "relation": "within", "margin": (1, 1)}, "such a rule cannot pass"),
        ({"effect": "value", "kind": "target", "relation": "within", "margin": 1}, "is two numbers for within"),
        ({"effect": "value"}, "margin: is missing"),
        ({"effect": "value", "margin": 1, "broken": None}, "broken: a paper's value needs one"),
        ({"effect": "value", "margin": 1, "cases": {"a": 2}}, "a value has no effect whose size could be judged"),
        ({"subject": None, "reference": None, "order": ("x", "y"), "margin": 1}, "margin: an order has none"),
        ({**EQUIVALENCE, "share": 0.2}, "share must be at most 0.1"),
        ({**EQUIVALENCE, "frozen": None}, "share: only an equivalence has one"),
        ({**EQUIVALENCE, "effect": "ratio"}, "effect: an equivalence is of a difference"),
        ({**EQUIVALENCE, "margin": 1}, "its margin is a share of what the reference gains"),
        ({**EQUIVALENCE, "kind": "target"}, "control: is for a paper's claim"),
        ({"kind": "check", "margin": 0, "seeds": 3}, "seeds: a check has no least number: every run must pass"),
        ({"kind": "check", "margin": 0, "seeds": 1, "foreseen": True}, "foreseen: is for a paper's claim"),
        ({"regime": {"age": {"q": 1.0}}, "cases": {"p": "text"}}, "regime: no case is called 'q'"),
    ],
)
def test_a_rule_that_cannot_be_judged_is_refused(changes, message):
    with pytest.raises(LockstepError, match=message):
        claim(**changes)


def test_cases_take_their_places_and_an_order_is_of_neighbours():
    cases = {"criteo": 2.0, "private": "faster"}
    (first, second) = claim("ratio", subject="{case} gba", reference="{case} sync", cases=cases).comparisons
    assert (first.case, first.subject, first.reference, first.paper) == ("criteo", "criteo gba", "criteo sync", 2.0)
    assert (second.subject, second.paper) == ("private gba", "faster")
    names = ("{case} a", "{case} b", "{case} c")
    order = claim(subject=None, reference=None, order=names, cases={"k": None, "l": None})
    pairs = [(each.subject, each.reference) for each in order.comparisons]
    assert pairs == [("k a", "k b"), ("k b", "k c"), ("l a", "l b"), ("l b", "l c")]
    assert [each.case for each in order.comparisons][:2] == ["k a > k b", "k b > k c"]
    assert claim(metric="qps_{case}", cases={"busy": None, "quiet": None}).comparisons[1].metric == "qps_quiet"


def test_an_id_is_taken_once_in_all_files(house):
    house.claims(GOOD)
    house.claims(GOOD, "gba")
    with pytest.raises(BadClaim, match=r"gba/claims\.yaml: claim 'a\.b': the id is taken by .*claims\.yaml"):
        claims.load()


def test_verdicts_are_stored_and_judged_by_the_rule_of_today(house):
    def words():
        return claims.table(claims.verdicts())["verdict"].tolist()

    house.claims(GOOD)
    assert words() == ["not run"]
    (found,) = house.record(results_of(0.05), "one", profile="smoke")
    assert found.word == "other size" and found.detail == "smaller"
    kept = json.loads((house.reports / "claims" / "a.b.json").read_text())
    assert kept["claim"]["cases"] == {"value": 0.2} and len(kept["results"]) == 10 and kept["word"] == "other size"
    assert words() == ["other size"] and claims.verdicts()[0].again == ""

    house.claims(GOOD.replace("value: 0.2", "value: 0.05"))
    (found,) = claims.verdicts()
    assert found.word == "reproduced" and found.again, "by the rule of today"
    assert "judged again, by today's rule, from runs made by the code of commit" in "; ".join(found.remarks)
    assert found.changed == ("the rule",)
    assert json.loads((house.reports / "claims" / "a.b.json").read_text()) == kept, "the older word stays in the file"
    house.record(results_of(0.05), "one")
    assert words() == ["reproduced"] and claims.verdicts()[0].changed == () and claims.verdicts()[0].again == ""
    assert house.left_behind() == []


def test_a_rule_that_needs_what_was_not_stored_waits_for_a_run(house):
    house.claims(GOOD)
    house.record(results_of(0.2), "one")
    house.claims(GOOD.replace("metric: auc", "metric: qps"))
    (found,) = claims.verdicts()
    assert found.word == "not run" and "needs another run" in found.detail and "no column 'qps'" in found.detail


def test_every_field_that_judges_counts_in_the_rules_hash():
    base = claim("value", margin=1.0, cases={"a": "text"})
    equivalence = claim(**EQUIVALENCE)
    others = [
        *({name: "other"} for name in ("id", "notebook", "sentence", "metric", "subject")),
        {"kind": "target", "broken": None},
        {"foreseen": True},
        {"effect": "slope", "over": "n", "broken": None},
        {"effect": "difference", "reference": "y", "broken": None},
        {"relation": "<="},
        {"margin": 2.0},
        {"cases": {"b": "text"}},
        {"modelled": True},
        {"seeds": 6},
        {"regime": {"age": 0.2}},
        {"elsewhere": "another system's code"},
    ]
    changed = [dataclasses.replace(base, **other) for other in others]
    of_equivalence = ({"share": 0.05}, {"frozen": "w"}, {"control": "w"})
    changed += [dataclasses.replace(equivalence, **other) for other in of_equivalence]
    orders = [claim(subject=None, reference=None, order=names) for names in (("x", "y"), ("y", "x"))]
    assert len({each.hash for each in (base, equivalence, *changed, *orders)}) == 4 + len(changed)
    same = {"reason": "another", "scale": {"paper": "a", "ours": "b"}, "place": "elsewhere", "broken": 0.5}
    same["explanations"] = ({"changed": "the links", "found": "nothing"},)
    assert dataclasses.replace(base, **same).hash == base.hash, "what is no rule may be written better afterwards"
    judged = {field.name for field in dataclasses.fields(Claim)} - same.keys()
    assert judged == set().union(*others, *of_equivalence) - {"broken"} | {"order"}


def test_a_rules_hash_stays_what_it_was():
    """By another hash every stored verdict would be judged again; a new field of claims changes it, and must say so here."""
    assert claim(sentence="α ≥ β").hash == "8077e3358ffb9b2f"


def test_a_notebook_without_claims_is_an_error(house):
    house.claims(GOOD)
    with pytest.raises(UnknownName, match="valid: one"):
        house.record(results_of(1), "won")


def test_a_broken_verdict_says_what_to_do(house):
    house.claims(GOOD)
    house.record(results_of(1), "one")
    (house.reports / "claims" / "a.b.json").write_text("{")
    with pytest.raises(LockstepError, match="delete it and run one"):
        claims.verdicts()


def test_a_verdict_with_a_number_that_is_none_is_not_stored(house):
    """Readers of JSON other than Python's take no NaN."""
    house.claims(GOOD)
    (mine,) = claims.load().values()
    verdict = Verdict(claim=mine, word="undecided", cases=(Case(case="", word="undecided", ours=float("nan")),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(verdict, results_of(1))
    assert not (house.reports / "claims").exists()


def test_what_is_run_by_hand_leaves_published_verdicts_alone(house, monkeypatch):
    house.notebook("one", parameters='profile: str = "smoke"  # size\nseeds: int = 3  # how many')
    house.claims(GOOD)
    house.record(results_of(0.05), "one", "laptop")
    published = (house.reports / "claims" / "a.b.json").read_bytes()
    monkeypatch.setattr(sys.modules["__main__"], "seeds", 1, raising=False)
    (found,) = claims.record(results_of(-1), "one", "smoke")
    assert (house.reports / "claims" / "a.b.json").read_bytes() == published
    assert [verdict.profile for verdict in claims.verdicts()] == ["laptop"]
    assert found.command == "lockstep run one --profile smoke -p seeds=1"
    assert (house.reports / "interactive" / "claims" / "a.b.json").exists()


def test_kinds_are_counted_apart_and_a_papers_by_sealed_seeds(house):
    target = GOOD.replace("a.b", "a.d").replace("kind: paper", "kind: target")
    target = target.replace("cases: {value: 0.2}", "margin: 0")
    check = target.replace("a.d", "a.e").replace("target", "check")
    check = check.replace("seeds: 5", "seeds: 1").replace("n: 0", "n: 5")
    estimate = GOOD.replace("a.b", "a.f").replace("kind: paper", "kind: estimate")
    house.claims(GOOD + target + check + estimate, "gba")
    sealed = results_of(0.2, range(SEALED.start, SEALED.start + 5))
    house.record(sealed, "gba/one")
    expected = {"target": {"met": 1}, "check": {"failed": 1}, "estimate": {"estimate": 1}}
    assert claims.counts(claims.verdicts()) == {"paper": {"reproduced": 1}, **expected}
    assert claims.false_positives(claims.verdicts()) == (1, 0.0)
    others = [each.remarks for each in claims.verdicts() if each.claim.kind != "paper"]
    assert others == [(), (), ()], "git is asked for the age of a paper's rule alone"
    house.record(results_of(0.2), "gba/one")
    assert claims.counts(claims.verdicts()) == expected, "seeds that are not sealed count for nothing"
    assert "its seeds were not sealed, so that it is not counted" in claims.verdicts()[0].remarks


def test_the_expected_false_positives_are_the_sum_of_what_the_tests_risk(house):
    """t = 2.1 / sqrt(2.5 / 5) = 2.97 with four degrees of freedom: p is 0.021."""
    house.claims(GOOD.replace("{value: 0.2}", "{value: more}") + GOOD.replace("a.b", "a.c").replace("0.2", "3"), "gba")
    table = results_of(0.0, range(SEALED.start, SEALED.start + 5))
    table.loc[table["subject"] == "gba", "auc"] = [0.1, 1.1, 2.1, 3.1, 4.1]
    house.record(table, "gba/one")
    shown, expected = claims.false_positives(claims.verdicts())
    assert shown == 2 and expected == pytest.approx(2 * 0.0206, abs=1e-3)


CALIBRATION = """
- constant: lib.seeds.JUDGING.start
  value: 1000
  fitted_to: Tab. 5
  notebooks: [one]
  determines: [{metric: auc, subject: g*, reference: s*}]
"""


def test_calibrations_are_read_and_refuse_a_claim(house):
    house.claims(GOOD, "gba")
    path = house.notebooks / "gba" / "calibrations.yaml"
    path.write_text(CALIBRATION)
    (record,) = claims.calibrations()
    assert record.notebooks == ("gba/one",)
    (found,) = house.record(results_of(0.2), "gba/one")
    assert (found.word, found.detail) == ("refused", "lib.seeds.JUDGING.start was fitted to Tab. 5")
    path.write_text(CALIBRATION.replace("[one]", "[two]"))
    (found,) = house.record(results_of(0.2), "gba/one")
    assert found.word == "reproduced", "the constant is another notebook's"
    path.write_text(CALIBRATION.replace("fitted_to", "fitted"))
    message = r"calibrations\.yaml: calibration .lib\.seeds\.JUDGING\.start.: fitted: Calibration has no such"
    with pytest.raises(BadClaim, match=message):
        claims.calibrations()


def test_what_is_contradicted_is_unexplained_until_two_explanations_were_tested(house):
    told = "\n  explanations:\n  - {changed: the rate, found: nothing}"
    for text, remark in (
        (GOOD, "unexplained: two"),
        (GOOD.rstrip() + told, "one explanation was tested, a second is to be tested"),
    ):
        house.claims(text)
        (found,) = house.record(results_of(-1), "one")
        assert any(each.startswith(remark) for each in found.remarks)
    house.claims(GOOD.rstrip() + told + "\n  - {changed: the links, found: it holds with half of them}\n")
    (found,) = claims.verdicts()
    assert not any("explanation" in remark for remark in found.remarks) and found.changed == ()


def test_what_is_finer_than_the_modelled_clock_is_marked(house):
    """Found: 3 % more than Sync. Fidelity measured 15 %, then 2 %."""
    fidelity = GOOD.replace("a.b", "fidelity.throughput").replace("kind: paper", "kind: target")
    fidelity = fidelity.replace("difference", "value").replace("  reference: sync\n  cases: {value: 0.2}\n", "")
    house.claims(
        fidelity.replace("notebook: one", "notebook: f").replace('relation: ">="', 'relation: "<="\n  margin: 1')
    )
    house.claims(GOOD.replace("{value: 0.2}", "{value: more}").replace("seeds: 5", "seeds: 5\n  modelled: true"), "gba")
    table = results_of(1.03)
    table.loc[table["subject"] == "sync", "auc"] = 1.0

    def remarks():
        (verdict,) = (each for each in claims.verdicts() if each.claim.id == "a.b")
        return "; ".join(verdict.remarks)

    house.record(table, "gba/one")
    assert "the error of simulated time was not measured: run 94_fidelity" in remarks()
    house.record(results_of(0.15), "f")
    assert "in simulation only: it rests on a difference of 3.0%, and simulated throughputs err by 15.0%" in remarks()
    published = paths.reference() / "claims"
    published.mkdir(parents=True)
    (paths.reports() / "claims" / "fidelity.throughput.json").rename(published / "fidelity.throughput.json")
    assert "err by 15.0%" in remarks(), "without a measurement of one's own, the published one counts"
    house.record(results_of(0.02), "f")
    assert "simulat" not in remarks()
