"""The map of what staying apart costs, and its laws, on numbers that are known."""

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks import asynchrony, law, predictions, study
from reports import claims
from tests.notebooks.identity import identity, is_a_commit

SEEDS = (0, 1, 2)


def costs(
    scale, u, v, *, distances=(0.5, 1, 2), updates=(100, 1000), rates=(1, 3), larger=1.0, noise=0.0, family="servers"
):
    """Runs whose cost is a power of what moved and of the length, with a noise whose mean over the seeds is zero."""
    axes = {"distance": distances, "updates": updates, "rate": rates, "seed": SEEDS}
    data = pd.DataFrame(study.grid(**axes)).assign(family=family, protocol="gba", larger=larger)
    data = data.assign(way="way " + data["distance"].astype(str), rows=0.01 * data["rate"])
    cost = scale * (data["distance"] * data["rows"] * np.sqrt(larger)) ** u * data["updates"] ** float(v)
    return data.assign(cost=cost + noise * (data["seed"] - 1))


def test_a_law_finds_the_powers_that_were_put_in_and_foretells_what_it_has_not_seen():
    there = law.cells(costs(1.0, 1.4, -0.3, noise=1e-5))
    smaller = np.linspace(0, 0.002, len(there))
    found = law.fit(there.assign(cost=there["cost"] + smaller), smaller)["servers"]
    assert found.powers == pytest.approx({"moved": 1.4, "updates": -0.3}, abs=0.02)
    assert found.scale == pytest.approx(0.0, abs=0.1)
    unseen = law.cells(costs(1.0, 1.4, -0.3, distances=(1.5,), updates=(10_000,), larger=8.0, noise=1e-3))
    cells = law.predict({"servers": found}, unseen, np.full(len(unseen), 0.5))
    assert cells["predicted"].to_numpy() == pytest.approx(unseen["cost"].to_numpy() + 0.5, rel=0.01)
    cells = law.predict({"servers": found}, unseen, np.zeros(len(unseen)))
    assert cells["predicted"].to_numpy() == pytest.approx(unseen["cost"].to_numpy(), rel=0.1)
    assert cells["inside"].all() and cells["collapsed"].tolist() == (unseen["cost"] >= 0.02).tolist()
    wrong = unseen.assign(low=2 * cells["predicted"], high=3 * cells["predicted"])
    assert not law.predict({"servers": found}, wrong, np.zeros(len(wrong)))["inside"].any()


def test_what_has_collapsed_is_not_fitted():
    """Nor what Sync would lose by updates as small."""
    there = law.cells(costs(1.0, 1.0, 0.0, distances=(0.1, 0.2), noise=1e-5))
    far = there.assign(way="far", distance=9.0, cost=0.5)
    steep = there.assign(way="steep")
    smaller = np.repeat([0.0, 0.0, 0.03], len(there))
    found = law.fit(pd.concat([there, far, steep], ignore_index=True), smaller)["servers"]
    assert found.powers["moved"] == pytest.approx(1.0, abs=0.01)
    assert found.range["distance"] == pytest.approx((0.1, 0.2))


def test_replicas_with_rows_lose_less_at_a_larger_rate():
    there = law.cells(costs(0.01, 0, 0, rates=(1,), family=law.ROWS_OF_THEIR_OWN, noise=1e-5))
    faster = there.assign(rows=4 * there["rows"], rate=4, cost=there["cost"] / 2)
    there = pd.concat([there, faster], ignore_index=True)
    found = law.fit(there, np.zeros(len(there)))[law.ROWS_OF_THEIR_OWN]
    assert found.powers == pytest.approx({"distance": 0.0, "rows": -0.5, "updates": 0.0}, abs=0.01)


def test_a_law_is_held_against_nothing_and_against_the_last_length():
    """Per mille: 10 was lost after 100 updates, 4 to 6 after 1,000, and the law has 5."""
    cells = {"way": "a", "family": "servers", "protocol": "gba", "rate": 1, "distance": 1, "rows": 0.01, "larger": 1.0}
    there = pd.DataFrame([cells | {"updates": 100, "cost": 0.01}, cells | {"updates": 1000, "cost": 0.005}])
    there = there.assign(low=there["cost"] - 0.001, high=there["cost"] + 0.001)
    made = law.Law(np.log(0.5), {"moved": 1.0, "updates": 0.0}, {})
    short, long = law.predict({"servers": made}, there, np.zeros(2)).to_dict("records")
    assert long["predicted"] == pytest.approx(0.005) and long["inside"] and not long["nothing"] and not long["stays"]
    assert np.isnan(short["stays"]) and short["miss"] == pytest.approx(0.005) and not short["inside"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("old", [0.0, 0.1, 0.4, 0.5, 1.0])
def test_the_stable_rate_is_where_a_curvature_begins_to_swing(old, momentum):
    """By stepping: below it the error dies, above it grows."""

    def left(k):
        x, before, m = 1.0, 1.0, 0.0
        for _ in range(3000):
            m = momentum * m + (1 - momentum) * k * ((1 - old) * x + old * before)
            before, x = x, x - m
            if abs(x) > 1e6:
                break
        return abs(x) + abs(before)

    edge = law.stable(old, momentum)
    assert left(0.97 * edge) < 0.1 and left(1.03 * edge) > 10
    assert law.stable(0.0) == pytest.approx(38) and law.stable(1.0) == 1


def test_a_collapse_begins_between_the_rates_that_were_tried():
    cells = {"updates": 300, "seed": 0, "distance": 0.5, "larger": 8.0}
    sync = [cells | {"way": "sync", "rate": rate, "auc": auc} for rate, auc in ((1, 0.8), (3, 0.79), (9, 0.77))]
    gba = [cells | {"way": "gba", "rate": rate, "auc": auc} for rate, auc in ((1, 0.8), (3, 0.799), (9, 0.798))]
    found = law.collapse_rates(pd.DataFrame([*sync, *gba])).set_index("way")
    assert found["begins"].to_dict() == {"sync": pytest.approx(3 * np.sqrt(3)), "gba": np.inf}
    assert found["age"].tolist() == [4, 4]


def test_what_smaller_updates_cost_is_what_they_cost_one_worker():
    """Between the control's lengths and rates, beyond the longest as the power of the last two: 4, 2 and so 1."""
    control = pd.DataFrame({"updates": [100, 1000] * 2 + [4000], "rate": [1, 1, 3, 3, 1], "larger": 8.0})
    control = control.assign(cost=[0.002, 0.004, 0.006, 0.010, 0.002])
    places = [(100, 1, 8), (316.2278, 1, 8), (100, 3**0.5, 8), (1000, 9, 8), (16_000, 1, 8), (100, 3, 1), (100, 1, 4)]
    there = pd.DataFrame(places, columns=["updates", "rate", "larger"])
    cells = law.smaller_updates(there, control)
    assert cells[:-1] == pytest.approx([0.002, 0.003, 0.004, 0.010, 0.001, 0])
    assert np.isnan(cells[-1]), "of updates of another size nothing is known"
    rising = control[control["updates"] < 4000]
    assert law.smaller_updates(there[4:5], rising) == pytest.approx([0.004]), "they cost no more than they did"


def test_a_cell_is_the_mean_of_its_seeds_with_their_interval():
    [cell] = law.cells(costs(1, 1, 0, distances=(1,), updates=(100,), rates=(1,), noise=1e-3)).itertuples()
    half = 4.302653 * 1e-3 / np.sqrt(3)
    assert (cell.cost, cell.low, cell.high) == pytest.approx((0.01, 0.01 - half, 0.01 + half))


def test_distances_are_in_updates_of_sync_s_size():
    run = type("Run", (), {"summary": {"staleness_mean": 4.0}})
    updates = {"sync": 512, "gba, 32 workers": 512, "async": 64, "pipelined, 2": 512}
    assert {way: asynchrony.EVERY[way].update for way in updates} == updates
    distances = {"gba": 4.0, "async": 0.5, "local-sgd, every 16": 16, "pipelined, 8": 7}
    assert {way: asynchrony.WAYS[way].distance(run) for way in distances} == distances


def test_who_is_judged_was_not_fitted():
    known, held_out = asynchrony.cases((100, 300, 1000), SEEDS)
    both = [tuple(each.values()) for each in (*known, *held_out)]
    assert len(set(both)) == len(both)
    fitted = [each for each in known if each["way"] not in asynchrony.NOT_FITTED]
    assert {each["updates"] for each in fitted} == {100, 300}
    assert {each["way"] for each in fitted}.isdisjoint(asynchrony.UNSEEN)
    assert all(each["updates"] == 1000 or each["way"] in asynchrony.UNSEEN for each in held_out)


@pytest.mark.parametrize("way", {**asynchrony.NOT_FITTED, **asynchrony.WAYS, **asynchrony.PARTS})
def test_every_way_sees_the_same_samples(way):
    """And all of them."""
    if way in ("local-sgd, every 16", "fr-easgd, every 16", "gba, age 0.2"):
        pytest.skip("it does not mix in so few steps, or its cluster takes seconds to find")
    run = lib.train(**study.timing(asynchrony.job(way, 8, 0.003, 0.01, seed=0)), save=False)
    assert run.summary["samples"] == 8 * asynchrony.UPDATE


def test_the_part_that_makes_smaller_updates_may_have_a_smaller_rate():
    """Eight times smaller, so by the root of eight."""
    made = asynchrony.job("rows alone apart, slower", 8, 0.008, 0.01, seed=0)["workload"]
    assert made.row_optimizer.lr == pytest.approx(0.008 / np.sqrt(8)) and made.dense_optimizer.lr == 0.01
    made = asynchrony.job("dense alone apart", 8, 0.008, 0.01, seed=0)["workload"]
    assert (made.row_optimizer.lr, made.dense_optimizer.lr) == (0.008, 0.01)


def test_a_way_that_was_tuned_has_its_own_rates_and_is_held_against_its_base_at_its():
    rates = {("sync", 8): {"rows": 0.003, "dense": 0.01}, ("async", 8): {"rows": 0.001, "dense": 0.003}}
    data, runs = asynchrony.measure(asynchrony.pairs(("async", "gba"), (8,), (0, 1), (3,)), rates)
    cells = data.set_index(["way", "seed"])
    assert cells["rows"].groupby("way").first().to_dict() == pytest.approx(
        {"sync": 0.009, "async": 0.003, "gba": 0.009}
    )
    assert [run.provenance["workload"]["dense_optimizer"]["lr"] for run in runs[2:4]] == pytest.approx([0.009, 0.009])
    for way, seed in cells.index:
        assert cells["cost"][way, seed] == cells["auc"]["sync", seed] - cells["auc"][way, seed]


def test_a_blind_setting_is_the_commits_alone_and_inside_the_range():
    lengths = (100, 300, 1000, 3000, 10_000)
    drawn = predictions.settings("0" * 40, lengths)
    assert drawn == predictions.settings("0" * 40, lengths) != predictions.settings("1" * 40, lengths)
    assert len({asynchrony.EVERY[each["way"]].family for each in drawn}) == 3
    assert all(100 <= each["updates"] <= 1000 and 1 / 3 <= each["rate"] <= 3 for each in drawn)


def test_settings_are_drawn_anew_when_the_law_changes():
    """`predictions.LAW` is the commit that last changed what a law is. If this digest changes, draw anew with the commit of the
    change; if the change leaves every law as it was, store the new digest alone."""
    assert identity(law) == "545799e5e53a"
    assert is_a_commit(predictions.LAW) in (True, None)


def test_the_longest_runs_are_named_by_their_places():
    data = pd.DataFrame({"way": ["gba"] * 4, "updates": [100, 300, 1000, 3000]})
    found = asynchrony.by_length(data, (100, 300, 1000, 3000))
    assert found["subject"].tolist() == ["gba, third longest", "gba, second longest", "gba, longest"]


def test_a_paper_outside_of_what_was_fitted_is_not_known():
    span = {"distance": (0.1, 3.0), "rows": (0.001, 0.03), "updates": (100, 3000)}
    servers = law.Law(0.0, {"moved": 1.0, "updates": 0.0}, span)
    cells = predictions.paper_settings({"servers": servers}, 10_000).set_index("setting")["predicted"]
    assert cells["GBA, Criteo"] == pytest.approx(0.2 * 0.0011)
    assert {cells["GBA, Private"], cells["Persia, Criteo"]} == {predictions.UNKNOWN}


def test_async_does_not_pass_what_gba_promises():
    """With the spread of a pilot, in 10^-3 AUC, the target is met at GBA's mean and not at Async's."""
    claim, spread = claims.load()["regime.gba"], np.array([-0.9, -0.4, 0.0, 0.4, 0.9]) / 1e3
    for less, word in ((-0.0002, "met"), (-0.0020, "missed"), (-0.0030, "missed")):
        rows = [
            {"subject": f"{way}, {case}", "seed": 1000 + seed, "auc": 0.8 + (less + spread[seed]) * (way == "gba")}
            for case in claim.cases
            for way in ("gba", "sync")
            for seed in range(5)
        ]
        assert claims.judge(claim, pd.DataFrame(rows)).word == word
