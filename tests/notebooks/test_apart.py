"""The map of what staying apart costs, and its laws, on numbers that are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lib
from notebooks import apart, law

SEEDS = (0, 1, 2)


def costs(scale, u, w, v, *, distances=(0.5, 1, 2), updates=(100, 1000), rates=(1, 3), larger=1.0, noise=0.0):
    """Runs whose cost is a power of their distance, rate and length, with a noise whose mean over the seeds is zero."""
    rows = []
    for way, far in enumerate(distances):
        for many in updates:
            for rate in rates:
                cost = scale * far**u * (0.01 * rate) ** w * many**v
                for seed, off in zip(SEEDS, (-noise, 0, noise), strict=True):
                    place = {"way": f"way {way}", "updates": many, "rate": rate, "seed": seed}
                    told = {"family": "servers", "protocol": "gba", "distance": far, "rows": 0.01 * rate}
                    rows.append(place | told | {"larger": larger, "cost": cost + off})
    return pd.DataFrame(rows)


def test_a_law_finds_the_powers_that_were_put_in_and_foretells_what_it_has_not_seen():
    powers = {"u": 1.4, "w": 0.7, "v": -0.3}
    there = law.cells(costs(1.0, **powers, noise=1e-5))
    smaller = np.linspace(0, 0.02, len(there))
    found = law.fitted(there.assign(cost=there["cost"] + smaller), smaller)["servers"]
    assert [*found.powers.values()] == pytest.approx([1.4, 0.7, -0.3], abs=0.01)
    assert found.scales["gba"] == pytest.approx(0.0, abs=0.05)
    unseen = law.cells(costs(1.0, **powers, distances=(4,), updates=(10_000,), noise=1e-3))
    told = law.foretold({"servers": found}, unseen, np.full(len(unseen), 0.5))
    assert told["foretold"].to_numpy() == pytest.approx(unseen["cost"].to_numpy() + 0.5, rel=0.01)
    told = law.foretold({"servers": found}, unseen, np.zeros(len(unseen)))
    assert told["foretold"].to_numpy() == pytest.approx(unseen["cost"].to_numpy(), rel=0.03)
    assert told["inside"].all()
    wrong = told.assign(low=2 * told["foretold"], high=3 * told["foretold"]).drop(columns=["foretold", "inside"])
    assert not law.foretold({"servers": found}, wrong, np.zeros(len(wrong)))["inside"].any()


def test_a_power_that_all_cells_have_alike_is_left_at_none():
    there = law.cells(costs(0.01, 1, 0, 0, updates=(100,), rates=(1,)))
    assert law.fitted(there, np.zeros(len(there)))["servers"].powers == pytest.approx(
        {"distance": 1.0, "rows": 0.0, "updates": 0.0}, abs=0.01
    )


def test_what_smaller_updates_cost_is_read_off_sync_s_curve():
    """Nine times smaller ones are Sync's at thrice the rate; between rates the curve is straight in their logarithm."""
    sync = pd.DataFrame({"updates": 100, "rate": [1, 3, 9, 1, 3, 9], "auc": [0.80, 0.79, 0.75, 0.82, 0.81, 0.77]})
    there = pd.DataFrame({"updates": 100, "rate": [1.0, 3.0, 1.0, 1.0], "larger": [9.0, 9.0, 1.0, 3.0]})
    assert law.smaller_updates(there, sync) == pytest.approx([0.01, 0.04, 0, 0.005])


def test_a_cell_is_the_mean_of_its_seeds_with_their_interval():
    [cell] = law.cells(costs(1, 1, 0, 0, distances=(0.01,), updates=(100,), rates=(1,), noise=1e-3)).itertuples()
    half = 4.302653 * 1e-3 / np.sqrt(3)
    assert (cell.cost, cell.low, cell.high) == pytest.approx((0.01, 0.01 - half, 0.01 + half))


def test_distances_are_in_updates_of_sync_s_size():
    run = type("Run", (), {"summary": {"staleness_mean": 4.0}})
    assert [apart.EVERY[way].update for way in ("sync", "gba, 32 workers", "async", "pipelined, 2")] == [
        512,
        512,
        64,
        512,
    ]
    assert apart.WAYS["gba"].distance(run) == 4.0 and apart.WAYS["async"].distance(run) == 0.5
    assert apart.WAYS["local-sgd, every 16"].distance(run) == 16 and apart.WAYS["pipelined, 8"].distance(run) == 7


def test_who_is_judged_was_not_fitted():
    known, held_out = apart.places((100, 300, 1000), SEEDS)
    both = [tuple(each.values()) for each in (*known, *held_out)]
    assert len(set(both)) == len(both)
    fitted = [each for each in known if each["way"] not in ("sync", "sequential")]
    assert {each["updates"] for each in fitted} == {100, 300} and not {each["way"] for each in fitted} & {*apart.UNSEEN}
    assert all(each["updates"] == 1000 or each["way"] in apart.UNSEEN for each in held_out)


@pytest.mark.parametrize("way", apart.EVERY)
def test_every_way_sees_the_same_samples(way):
    """And all of them."""
    if apart.EVERY[way].rule.family == "replica" and "16" in way:
        pytest.skip("it does not mix in so few steps")
    run = lib.train(**apart.job(way, 8, 0.003, 0.01, seed=0), save=False, gradients=False)
    assert run.summary["samples"] == 8 * apart.UPDATE
