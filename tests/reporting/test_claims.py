"""Claims: the strict reader, and verdicts with numbers that can be checked by hand.

The 95 % t-interval of {1, 2, 3} is 2 ± 4.303 x 1 / sqrt(3) = 2 ± 2.484; of {-1, 0, 1} x s it is ± 2.484 s.
"""

import dataclasses
import json
import math
import sys

import pandas as pd
import pytest

from lib.errors import LockstepError, UnknownName
from lib.reporting import claims
from lib.reporting.claims import BadClaim, Claim

GOOD = """
- id: a.b
  notebook: one
  sentence: Better.
  place: Tab. 1
  paper: {value: 2}
  kind: order
  metric: auc
  subject: gba
  reference: sync
  relation: ">="
  margin: 0.1
  reason: because
  seeds: 3
  scale: {paper: big, ours: small}
"""


def claim(kind="order", relation=">=", margin=0.0, **changes):
    given = {
        "id": "a.b",
        "notebook": "one",
        "sentence": "s",
        "place": "p",
        "paper": {},
        "kind": kind,
        "metric": "m",
        "subject": "x",
        "reference": "y" if kind in ("order", "ratio") else None,
        "relation": relation,
        "margin": margin,
        "reason": "r",
        "seeds": 3,
        "scale": {"paper": "", "ours": ""},
    }
    return Claim(**{**given, **changes})


def table(x, y=()):
    rows = [("x", seed, value) for seed, value in enumerate(x)] + [("y", seed, value) for seed, value in enumerate(y)]
    return pd.DataFrame(rows, columns=["subject", "seed", "m"])


def verdict(a_claim, x, y=()):
    return claims.judge(a_claim, table(x, y)).verdict


def test_the_interval_is_students():
    mean, low, high = claims.interval([1, 2, 3])
    assert (mean, low, high) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert claims.interval([0.1, 0.1, 0.1]) == (0.1, 0.1, 0.1)
    assert math.isnan(claims.interval([5])[1])


# x - y is {2, 3, 4} - 1 each below: mean 2, interval [-0.484, 4.484]; with spread 0.1 it is 2 ± 0.248.
WIDE, NARROW, ONES = [2, 3, 4], [2.9, 3.0, 3.1], [1, 1, 1]


@pytest.mark.parametrize(
    ("a_claim", "x", "y", "expected"),
    [
        (claim("order", ">=", 1), NARROW, ONES, "replicated"),
        (claim("order", ">=", 5), NARROW, ONES, "direction only"),
        (claim("order", ">=", 2), NARROW, ONES, "inconclusive"),
        (claim("order", ">=", 1), WIDE, ONES, "inconclusive"),
        (claim("order", "<=", 1), NARROW, ONES, "not replicated"),
        (claim("order", "<=", 0), ONES, NARROW, "replicated"),
        (claim("order", "<=", -3), ONES, NARROW, "direction only"),
        (claim("order", ">=", 0), ONES, NARROW, "not replicated"),
        (claim("order", "<=", 0), ONES, ONES, "replicated"),
        (claim("ratio", ">=", 2), NARROW, ONES, "replicated"),
        (claim("ratio", ">=", 4), NARROW, ONES, "direction only"),
        (claim("ratio", ">=", 3), NARROW, ONES, "inconclusive"),
        (claim("ratio", ">=", 2), ONES, NARROW, "not replicated"),
        (claim("ratio", ">=", 0.97), ONES, [1.25, 1.25, 1.25], "not replicated"),
        (claim("ratio", "<=", 0.5), ONES, NARROW, "replicated"),
        (claim("ratio", "within", 0.5, target=3), NARROW, ONES, "replicated"),
        (claim("ratio", "within", 0.5), NARROW, ONES, "not replicated"),
        (claim("ratio", "within", 0.5, target=6), NARROW, ONES, "direction only"),
        (claim("value", "within", 0.5, target=3), NARROW, (), "replicated"),
        (claim("value", "within", 0.5, target=5), NARROW, (), "not replicated"),
        (claim("value", "within", 0.1, target=3), NARROW, (), "inconclusive"),
        (claim("value", "within", 0.5, target=5, reference="y"), NARROW, ONES, "direction only"),
        (claim("value", "within", 0.5, target=-5, reference="y"), NARROW, ONES, "not replicated"),
        (claim("value", ">=", 2.5), NARROW, (), "replicated"),
        (claim("bound", "<=", 4), WIDE, (), "replicated"),
        (claim("bound", "<=", 3), WIDE, (), "not replicated"),
        (claim("bound", "<=", 4, seeds=4), WIDE, (), "inconclusive"),
        (claim("bound", "<=", 3, seeds=4), WIDE, (), "not replicated"),
        (claim("bound", ">=", 2), WIDE, (), "replicated"),
        (claim("value", "report", None), WIDE, (), "out of scale"),
        (claim("order", ">=", 1, seeds=4), NARROW, ONES, "inconclusive"),
        (claim("order", ">=", 1, seeds=1), [3], [1], "replicated"),
        (claim("order", ">=", 1, seeds=2), [3], [1], "inconclusive"),
        (claim("order", ">=", 1), [2.9, 3.0, math.nan], ONES, "inconclusive"),
        (claim("ratio", ">=", 1), NARROW, [1, 1, 0], "inconclusive"),
    ],
)
def test_verdicts(a_claim, x, y, expected):
    assert verdict(a_claim, x, y) == expected


@pytest.mark.parametrize(
    ("relation", "margin", "over", "expected"),
    [
        (">=", 1.5, (1.9, 2.0, 2.1), "replicated"),
        (">=", 5, (1.9, 2.0, 2.1), "direction only"),
        (">=", 2, (1.9, 2.0, 2.1), "inconclusive"),
        ("<=", 0, (1.9, 2.0, 2.1), "not replicated"),
        ("within", 0.5, (-0.1, 0.0, 0.1), "replicated"),
    ],
)
def test_a_trend_is_the_slope_of_each_seed(relation, margin, over, expected):
    rows = [("x", seed, n, 7 + slope * n) for seed, slope in enumerate(over) for n in (4, 8, 32)]
    results = pd.DataFrame(rows, columns=["subject", "seed", "workers", "m"])
    found = claims.judge(claim("trend", relation, margin, over="workers"), results)
    assert found.verdict == expected
    assert found.ours == pytest.approx(sum(over) / 3)


def test_seeds_are_paired():
    """The seeds differ by 100, the protocols by exactly 1: pairing is what makes that visible."""
    found = claims.judge(claim("order", ">=", 0.5), table([1, 101, 201], [0, 100, 200]))
    assert (found.verdict, found.ours, found.low, found.n) == ("replicated", 1, 1, 3)


def test_a_seed_without_partner_is_named():
    found = claims.judge(claim("order", ">=", 0.5, seeds=2), table([1, 2, 9], [0, 1]))
    assert found.n == 2 and "left out: 2" in found.detail


def test_a_planted_wrong_rule_is_caught():
    """Async is worse here; the claim that it is better must fail, whichever way it is written."""
    better, worse = [0.80, 0.81, 0.80], [0.70, 0.71, 0.70]
    assert verdict(claim("order", ">=", 0), worse, better) == "not replicated"
    assert verdict(claim("ratio", ">=", 1), worse, better) == "not replicated"
    assert verdict(claim("value", "within", 0.01, target=0, reference="y"), worse, better) == "not replicated"
    assert verdict(claim("order", "<=", 0), worse, better) == "replicated"


def test_results_that_do_not_fit_the_claim():
    with pytest.raises(BadClaim, match=r"no column 'm'; .*valid: mm, seed, subject"):
        claims.judge(claim(), table([1], [1]).rename(columns={"m": "mm"}))
    with pytest.raises(UnknownName, match=r"subject of claim 'a.b': 'y'; .*valid: x"):
        claims.judge(claim(), table([1]))
    with pytest.raises(BadClaim, match="2 results of 'x' for seed 0"):
        claims.judge(claim(), pd.concat([table([1], [1])] * 2))


def test_a_good_claim_is_read(house):
    house.claims(GOOD, "gba")
    (found,) = claims.load().values()
    assert found.notebook == "gba/one" and found.margin == 0.1 and found.rule == "auc(gba) − auc(sync) ≥ 0.1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "margin: 0.1",
            "margine: 0.1",
            r"claims.yaml:12:3: claim 'a.b': margine: Claim has no such field; did you mean 'margin'",
        ),
        ("  margin: 0.1\n", "", "margin: is missing"),
        ("margin: 0.1", "margin:", "margin: is empty"),
        ("margin: 0.1", "margin: much", "margin must be a number, not 'much'"),
        ("margin: 0.1", "margin: .inf", "margin must be finite"),
        ("margin: 0.1", "margin: true", "margin must be a number"),
        ("seeds: 3", "seeds: 2.5", "seeds must be a whole number"),
        ("seeds: 3", "seeds: 0", "seeds must be at least 1"),
        ("kind: order", "kind: odrer", "kind must be 'order', 'ratio', 'value', 'bound' or 'trend', not 'odrer'"),
        ('relation: ">="', 'relation: "="', "relation must be '>=', '<=', 'within' or 'report', not '='"),
        ('relation: ">="', "relation: >=", r"claims.yaml:11:\d+: not YAML"),
        ("  reference: sync\n", "", "reference: is missing: a claim of kind 'order'"),
        ("kind: order", "kind: bound", "reference: a bound has none"),
        ("kind: order", "kind: trend", "over: is missing"),
        ("margin: 0.1", "margin: 0.1\n  over: seed", "over: only a trend has it"),
        ("margin: 0.1", "margin: 0.1\n  target: 0", "target: only 'within'"),
        ('">="\n  margin: 0.1', "within\n  margin: 0", "margin: must be greater than 0"),
        ("kind: order", "kind: ratio\n  kind: order", "'kind' stands here twice"),
        ("kind: order\n", "kind: ratio\n", None),
        ("margin: 0.1", "margin: -1", None),
        ("scale: {paper: big, ours: small}", "scale: {paper: big}", "scale: must have exactly"),
        ("paper: {value: 2}", "paper: 2", "paper must be names and values"),
        ("paper: {value: 2}", "paper: {value: .nan}", "paper: only text"),
        ("sentence: Better.", "sentence: ' '", "sentence must be filled in"),
        ("- id: a.b", "- [1]\n- id: a.b", "a claim is a mapping"),
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


def test_a_ratio_that_cannot_fail_is_refused(house):
    house.claims(GOOD.replace("kind: order", "kind: ratio").replace("margin: 0.1", "margin: 0"))
    with pytest.raises(BadClaim, match="such a rule cannot fail"):
        claims.load()


def test_an_id_is_taken_once_in_all_files(house):
    house.claims(GOOD)
    house.claims(GOOD, "gba")
    with pytest.raises(BadClaim, match=r"gba/claims\.yaml:2:3: claim 'a\.b': the id is taken by .*claims\.yaml"):
        claims.load()


def results_of(margin):
    rows = [(s, seed, value) for s, value in (("gba", margin), ("sync", 0.0)) for seed in range(3)]
    return pd.DataFrame(rows, columns=["subject", "seed", "auc"])


def test_verdicts_are_stored_and_a_loosened_claim_shows(house):
    house.claims(GOOD)
    assert claims.table()["verdict"].tolist() == ["not run"]
    (found,) = house.record(results_of(0.05), "one", profile="smoke")
    assert found.verdict == "direction only"
    kept = json.loads((house.reports / "claims" / "a.b.json").read_text())
    assert kept["claim"]["margin"] == 0.1 and len(kept["results"]) == 6
    assert claims.table()["verdict"].tolist() == ["direction only"]

    house.claims(GOOD.replace("margin: 0.1", "margin: 0.01"))
    assert claims.table()["verdict"].tolist() == ["direction only (claim changed since its run)"]
    house.record(results_of(0.05), "one")
    assert claims.table()["verdict"].tolist() == ["replicated"]
    assert house.left_behind() == []


def test_every_field_counts_in_the_hash():
    base = claim("value", "within", 0.5, target=3.0)
    others = {
        "kind": "trend",
        "relation": {"relation": ">=", "target": None},
        "scale": {"scale": {"paper": "more", "ours": ""}},
        "over": {"kind": "trend", "over": "n"},
        "paper": {"paper": {"auc": 0.7}},
        **dict.fromkeys(("margin", "target", "seeds"), 7),
    }
    hashes = {base.hash}
    for field in dataclasses.fields(Claim):
        change = others.get(field.name, "changed")
        change = change if isinstance(change, dict) else {field.name: change}
        hashes.add(dataclasses.replace(base, **{"over": "m"} | change if change == {"kind": "trend"} else change).hash)
    assert len(hashes) == 1 + len(dataclasses.fields(Claim))


def test_a_notebook_without_claims_is_an_error(house):
    house.claims(GOOD)
    with pytest.raises(UnknownName, match="valid: one"):
        house.record(results_of(1), "won")


def test_a_broken_verdict_says_what_to_do(house):
    house.claims(GOOD)
    house.record(results_of(1), "one")
    (house.reports / "claims" / "a.b.json").write_text("{")
    with pytest.raises(LockstepError, match="delete it and run one"):
        claims.table()


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
