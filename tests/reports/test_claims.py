"""Claims: the strict reader, what a claim refuses to be, and verdicts as files."""

import dataclasses
import json
import sys

import pandas as pd
import pytest

from lib import paths
from lib.errors import LockstepError, UnknownName
from lib.seeds import judging
from reports import claims
from reports.claims import BadClaim, Claim
from reports.claims.stored_verdicts import after_holm

GOOD = """
- id: a.b
  notebook: one
  sentence: Better.
  place: Tab. 1
  kind: paper
  standing: confirmatory
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
    given = {
        "id": "a.b",
        "notebook": "one",
        "sentence": "s",
        "place": "p",
        "kind": "paper",
        "effect": effect,
        "metric": "m",
        "subject": "x",
        "reference": "y" if effect in ("difference", "ratio") else None,
        "relation": relation,
        "reason": "r",
        "seeds": 8 if relation == "parity" else 5,
        "scale": {"paper": "big", "ours": "small"},
    }
    given |= {"standing": "confirmatory"} if changes.get("kind", "paper") == "paper" else {"seeds": 1}
    return Claim(**{**given, **changes})


PARITY = {"relation": "parity", "better": "higher", "best": "y", "frozen": "z", "share": 0.1}


def results_of(lead, seeds=None):
    """GBA's AUC above Sync's by as much, with every judging seed: intervals of no width."""
    rows = [(s, seed, value) for s, value in (("gba", lead), ("sync", 0.0)) for seed in seeds or judging(5)]
    return pd.DataFrame(rows, columns=["subject", "seed", "auc"])


def test_a_good_claim_is_read(house):
    house.claims(GOOD, "gba")
    (found,) = claims.load().values()
    assert (found.notebook, found.folder, found.cases) == ("gba/one", "gba", {"value": 0.2})
    assert found.rule == "auc(gba) − auc(sync) ≥ 0, and the effect within a factor of 2 of the paper's"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 5", "seed: 5", r"claims.yaml: claim 'a.b': seed: Claim has no such field; did you mean 'seeds'"),
        ("reason: because", "reason:", "reason: is empty"),
        ("value: 0.2", "value: .inf", r"cases.value must be finite"),
        ("value: 0.2", "value: true", r"cases.value must be a number or text"),
        ("seeds: 5", "seeds: 5.5", "seeds must be a whole number"),
        ("seeds: 5", "seeds: 4", "seeds: must be 5 or more, for an interval at all"),
        (
            "effect: difference",
            "effect: odrer",
            "effect must be 'difference', 'ratio', 'value', 'slope' or 'order', not",
        ),
        ('relation: ">="', "relation: >=", r"claims.yaml:13:\d+: not YAML"),
        ("kind: paper", "kind: bound", "kind must be 'paper', 'promise' or 'check', not 'bound'"),
        ("  standing: confirmatory\n", "", "standing: is missing"),
        ("kind: paper", "kind: promise", "standing: only a paper's claim has one"),
        ("  reference: sync\n", "", "reference: is missing from a claim of effect 'difference'"),
        ("  subject: gba\n", "", "subject: is missing from"),
        ("effect: difference", "effect: slope", "reference: has no place in a claim of effect 'slope'"),
        ("seeds: 5", "seeds: 5\n  over: n", "over: has no place in"),
        ("seeds: 5", "seeds: 5\n  order: [a, b]", "order: two subjects or more, where the effect is an order"),
        ("seeds: 5", "seeds: 5\n  runs: every", "runs: a paper's claim is about means"),
        ("seeds: 5", "seeds: 5\n  margin: 0.1", "margin: the paper's numbers say what is enough"),
        ("value: 0.2", "value: -0.2", r"cases: value's -0.2 is not on the side of >="),
        ("value: 0.2", "a: 1, b: 2", "cases: must differ: write {case} where their names belong"),
        ('">="', '"within"\n  target: 0\n  margin: 1', "relation: a paper's number is judged by >= or <= and a factor"),
        ("seeds: 5", "seeds: 5\n  target: 0", "target: only 'within' has one"),
        ("seeds: 5", "seeds: 5\n  factor: 1", "factor must be above 1"),
        ("seeds: 5", "seeds: 5\n  share: 0.1", "share: only parity has one"),
        ('">="', "parity", "seeds: must be 8 or more, for an interval within a margin"),
        (
            "{value: 0.2}",
            "{value: about a fifth}\n  margin: -0.1",
            "margin: lies on the other side of no effect: that is parity",
        ),
        ("kind: paper\n  standing: confirmatory", "kind: promise", "margin: is missing; what is judged needs it"),
        ("effect: difference", "effect: ratio\n  effect: ratio", "'effect' stands here twice"),
        ("scale: {paper: big, ours: small}", "scale: {paper: big}", "scale: must have exactly"),
        ("sentence: Better.", "sentence: ' '", "sentence must be filled in"),
        ("- id: a.b", "- [1]\n- id: a.b", "a claim is a mapping"),
        ("{value: 0.2}", "{value: about a fifth}\n  margin: 0.1", None),
        ("{value: 0.2}", "{}", None),
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
        ({"effect": "ratio", "kind": "promise", "margin": 0}, "must be greater than 0: such a rule cannot fail"),
        ({"effect": "value", "kind": "promise", "relation": "within", "margin": 0, "target": 1}, "cannot fail"),
        ({"effect": "value"}, "margin: is missing"),
        ({"effect": "value", "margin": 1, "cases": {"a": 2}}, "a value has no size that could be judged; write a's"),
        ({"effect": "order", "subject": None, "order": ("x", "y"), "margin": 1}, "margin: an order has none"),
        ({**PARITY, "share": 0.2}, "share must be at most 0.1"),
        ({**PARITY, "frozen": None}, "frozen: is missing: parity needs it"),
        ({"loser": "x"}, "loser: only a parity of means has one"),
        ({**PARITY, "kind": "check", "seeds": 1, "loser": "x"}, "loser: only a parity of means has one"),
        ({**PARITY, "effect": "ratio"}, "effect: parity is of a difference"),
        ({**PARITY, "margin": 1}, "its margin is the share of best less frozen"),
        ({"kind": "check", "margin": 0, "seeds": 3}, "seeds: a check has no least number: every run must pass"),
        ({"kind": "check", "margin": 0, "factor": 3}, "factor: is for a paper's claim"),
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
    order = claim("order", subject=None, order=("{case} a", "{case} b", "{case} c"), cases={"k": None, "l": None})
    pairs = [(each.subject, each.reference) for each in order.comparisons]
    assert pairs == [("k a", "k b"), ("k b", "k c"), ("l a", "l b"), ("l b", "l c")]
    assert [each.case for each in order.comparisons][:2] == ["k a > k b", "k b > k c"]
    assert claim(metric="qps_{case}", cases={"busy": None, "quiet": None}).comparisons[1].metric == "qps_quiet"


def test_an_id_is_taken_once_in_all_files(house):
    house.claims(GOOD)
    house.claims(GOOD, "gba")
    with pytest.raises(BadClaim, match=r"gba/claims\.yaml: claim 'a\.b': the id is taken by .*claims\.yaml"):
        claims.load()


def test_verdicts_are_stored_and_a_loosened_claim_shows(house):
    def told():
        return claims.table(claims.verdicts())["verdict"].tolist()

    house.claims(GOOD)
    assert told() == ["not run"]
    (found,) = house.record(results_of(0.05), "one", profile="smoke")
    assert found.verdict == "direction only" and "the size is another" in found.detail
    kept = json.loads((house.reports / "claims" / "a.b.json").read_text())
    assert kept["claim"]["cases"] == {"value": 0.2} and len(kept["results"]) == 10
    assert told() == ["direction only"]

    house.claims(GOOD.replace("value: 0.2", "value: 0.05"))
    (found,) = claims.verdicts()
    assert found.changed == ("the rule",) and "changed since its run: the rule" in found.remarks
    house.record(results_of(0.05), "one")
    assert told() == ["replicated"] and claims.verdicts()[0].changed == ()
    assert house.left_behind() == []


def test_what_was_judged_under_another_contract_is_not_read(house):
    house.claims(GOOD)
    house.record(results_of(0.2), "one")
    path = house.reports / "claims" / "a.b.json"
    record = json.loads(path.read_text())
    for older in ({"verdict": "replicated"}, {**record, "contract": 1}):
        path.write_text(json.dumps(older))
        (found,) = claims.verdicts()
        assert (found.verdict, found.detail) == ("not run", "what is stored was judged under another contract")
        assert claims.verdicts_in(house.reports) == []


def test_every_field_that_judges_counts_in_the_rules_hash():
    base = claim("value", margin=1.0)
    parity = claim(**PARITY)
    others = [
        *({name: "other"} for name in ("id", "notebook", "sentence", "metric", "subject")),
        {"kind": "promise", "standing": None},
        {"standing": "exploratory"},
        {"effect": "slope", "over": "n"},
        {"effect": "difference", "reference": "y"},
        {"relation": "<="},
        {"margin": 2.0},
        {"kind": "promise", "standing": None, "relation": "within", "target": 1.0},
        {"kind": "promise", "standing": None, "runs": "every"},
        {"cases": {"a": "text"}},
        {"factor": 3.0},
        {"modelled": True},
        {"seeds": 6},
        {"regime": {"age": 0.2}},
        {"foretold": {"": 0.1}},
        {"elsewhere": "another system's code"},
    ]
    changed = [dataclasses.replace(base, **other) for other in others]
    of_parity = ({"share": 0.05}, {"better": "lower"}, {"best": "w"}, {"frozen": "w"}, {"loser": "w"})
    changed += [dataclasses.replace(parity, **other) for other in of_parity]
    changed += [claim("order", subject=None, order=("x", "y")), claim("order", subject=None, order=("y", "x"))]
    assert len({each.hash for each in (base, parity, *changed)}) == 2 + len(changed)
    same = {"reason": "another", "scale": {"paper": "a", "ours": "b"}, "place": "elsewhere"}
    same["short"] = "It is {ours} {interval}, in the paper {paper}."
    same["explanations"] = ({"changed": "the links", "found": "nothing"},)
    same |= {"control": 0.5, "papers": {"": 0.1}, "shares": True}
    assert dataclasses.replace(base, **same).hash == base.hash, "what is no rule may be told better afterwards"
    judged = {field.name for field in dataclasses.fields(Claim)} - same.keys()
    assert judged == set().union(*others, *of_parity) | {"order"}


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


def test_what_is_run_by_hand_leaves_published_verdicts_alone(house, monkeypatch):
    house.notebook("one", parameters='profile: str = "smoke"  # size\nseeds: int = 3  # how many')
    house.claims(GOOD)
    house.record(results_of(0.05), "one", "laptop")
    published = (house.reports / "claims" / "a.b.json").read_bytes()
    monkeypatch.setattr(sys.modules["__main__"], "seeds", 1, raising=False)
    (found,) = claims.record(results_of(-1), "one", "smoke")
    assert (house.reports / "claims" / "a.b.json").read_bytes() == published
    assert [verdict.profile for verdict in claims.verdicts()] == ["laptop"]
    assert found.command == "python -m lib run one --profile smoke -p seeds=1"
    assert (house.reports / "interactive" / "claims" / "a.b.json").exists()


def test_kinds_are_counted_apart_and_papers_after_holm(house):
    """Two claims of one paper, t = 2.1 / sqrt(2.5 / 5) = 2.97 each: p is 0.021, found by one test and not by Holm's two."""
    other = GOOD.replace("a.b", "a.c").replace("metric: auc", "metric: qps")
    promise = GOOD.replace("a.b", "a.d").replace("kind: paper\n  standing: confirmatory", "kind: promise")
    check = promise.replace("a.d", "a.e").replace("promise", "check").replace("seeds: 5", "seeds: 1")
    text = (
        GOOD
        + other
        + promise.replace("cases: {value: 0.2}", "margin: 0")
        + check.replace("cases: {value: 0.2}", "margin: 5")
    )
    house.claims(text.replace("{value: 0.2}", "{value: more}"), "gba")
    table = results_of(0.0)
    table.loc[table["subject"] == "gba", "auc"] = [0.1, 1.1, 2.1, 3.1, 4.1]
    (first, *_) = house.record(table.assign(qps=table["auc"]), "gba/one")
    assert first.verdict == "replicated" and 0.0125 < first.p < 0.025
    found = claims.verdicts()
    assert [verdict.text for verdict in found[:2]] == ["replicated, after Holm inconclusive"] * 2
    assert found[0].adjusted == pytest.approx(2 * first.p)
    papers = {"confirmatory": {"inconclusive": 2}, "paper": {"inconclusive": 2}}
    assert claims.counts(found) == {**papers, "promise": {"kept": 1}, "check": {"failed": 1}}
    assert [*claims.counts(found)] == ["confirmatory", "paper", "promise", "check"], "the first is the headline"


def test_holm_counts_every_claim_that_was_judged():
    """Also those that failed: 0.01 is the smallest of three, and what was not judged is none of them."""
    judged = {
        "a": ("replicated", 0.01),
        "b": ("inconclusive", 0.3),
        "c": ("not replicated", 0.9),
        "d": ("not run", 0.001),
    }
    verdicts = [
        claims.Verdict(
            claim=claim(id=f"x.{name}"), verdict=verdict, cases=(claims.Case(case="x", verdict=verdict, p=p),)
        )
        for name, (verdict, p) in judged.items()
    ]
    assert [each.adjusted for each in after_holm(verdicts)] == pytest.approx([0.03, 0.6, 0.9, None])


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
    assert (found.verdict, found.detail) == ("refused", "lib.seeds.JUDGING.start was fitted to Tab. 5")
    path.write_text(CALIBRATION.replace("[one]", "[two]"))
    (found,) = house.record(results_of(0.2), "gba/one")
    assert found.verdict == "replicated", "the constant is another notebook's"
    path.write_text(CALIBRATION.replace("fitted_to", "fitted"))
    with pytest.raises(
        BadClaim,
        match=r"calibrations\.yaml: calibration .lib\.seeds\.JUDGING\.start.: fitted: Calibration has no such",
    ):
        claims.calibrations()


def test_what_was_not_replicated_is_unexplained_until_two_explanations_were_tested(house):
    told = "\n  explanations:\n  - {changed: the rate, found: nothing}"
    for text, unexplained in ((GOOD, True), (GOOD.rstrip() + told, True)):
        house.claims(text)
        (found,) = house.record(results_of(-1), "one")
        assert any("unexplained" in remark for remark in found.remarks) == unexplained
    house.claims(GOOD.rstrip() + told + "\n  - {changed: the links, found: it holds with half of them}\n")
    (found,) = claims.verdicts()
    assert not any("unexplained" in remark for remark in found.remarks) and found.changed == ()


def test_what_is_finer_than_the_modelled_clock_is_marked(house):
    """Found: 3 % more than Sync. Fidelity measured 15 %, then 2 %."""
    fidelity = GOOD.replace("a.b", "fidelity.throughput").replace(
        "kind: paper\n  standing: confirmatory", "kind: promise"
    )
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
    assert "was not measured: run 94_fidelity" in remarks()
    house.record(results_of(0.15), "f")
    assert "in the model only: it rests on a difference of 3.0%, and the model's throughputs err by 15.0%" in remarks()
    published = paths.reference() / "claims"
    published.mkdir(parents=True)
    (paths.reports() / "claims" / "fidelity.throughput.json").rename(published / "fidelity.throughput.json")
    assert "err by 15.0%" in remarks(), "without a measurement of one's own, the published one counts"
    house.record(results_of(0.02), "f")
    assert "model" not in remarks()
