"""DS-Sync's studies: costs that are known, and runs that show their rule's matrices."""

from __future__ import annotations

import pytest

import lib
from lib.protocols.dssync import DSSync
from notebooks.dssync import cost, mixing, overhead, quality, smaller


def test_what_a_parameter_server_costs_is_table_1s_where_hops_follow_each_other():
    """Two servers: 2 x 16^2 / 2 units; with all links at once each takes and gives 16 halves of the vector."""
    found = cost.server(16, servers=2)
    assert found["formula"] == 256 and found["hops"] == pytest.approx(256, rel=1e-6)
    assert found["all links at once"] == pytest.approx(16, rel=0.05)


def test_rings_in_chunks_gain_little_but_latency():
    assert cost.gain(4, 1e9) == pytest.approx(1.5, abs=0.01) and cost.gain(16, 1e9) == pytest.approx(1.25, abs=0.01)
    assert cost.gain(4, 4 * 50e-6 * 1.25e9) == pytest.approx(2, abs=0.01)  # D / B of four latencies
    assert cost.gain(16, 16 * 50e-6 * 1.25e9) == pytest.approx(2, abs=0.01)  # of sixteen


def test_runs_cost_what_the_formulas_say():
    found = cost.costs([0], worlds=(4, 9))[0].set_index("subject")
    assert (found["over formula"] - 1).abs().max() < 0.01
    assert found.loc["ring, 4", "gain"] == pytest.approx(7 / 3, rel=0.01)
    assert found.loc["chunked ring, 4", "gain"] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("workers, steps, left", [(4, 1, 3**-0.5), (4, 2, 0), (5, 3, None)])
def test_a_run_is_as_far_from_the_average_as_its_matrices_say(workers, steps, left):
    """After a round of pairs worker 0 holds halves of two: (1/4, 1/4, -1/4, -1/4) beside (3/4, -1/4, -1/4, -1/4)."""
    run = lib.train(**mixing.job(DSSync(), workers, 0, steps), save=False)
    assert run.summary["distance"] == pytest.approx(mixing.predicted(DSSync(), workers, steps), abs=1e-6)
    assert left is None or run.summary["distance"] == pytest.approx(left, abs=1e-6)


def test_schedules_by_hand():
    found = mixing.schedules([4, 6, 7], DSSync()).set_index("workers")
    assert found.loc[6, "groups"] == "2 of 3, then 3 of 2" and found.loc[6, "steps to the average"] == 2
    assert found.loc[6, "hops"] == (5 + 3) / 2 and found.loc[6, "hops of all-reduce"] == 11
    assert found.loc[4, "left after two rounds"] < 1e-12 and found.loc[7, "left after two rounds"] > 0.1


def test_what_a_step_computes_follows_from_table_4():
    """CIFAR-10: 4011.83 s over 6566 iterations less 3/2 of 146 MB over 1.25 GB/s."""
    said = overhead.printed().set_index(["model", "nodes"])
    seconds = {name: said.loc[(name, 4), "bsp"] - 1.5 * overhead.unit(name) for name in overhead.PARAMETERS}
    assert seconds["CIFAR-10"] == pytest.approx(4011.83 / 6566 - 1.5 * 0.1168)
    assert [round(each, 2) for each in seconds.values()] == pytest.approx(overhead.COMPUTE, abs=0.006)
    said = said["speed-up"].round(2).to_dict()
    assert said["CIFAR-10", 4] == 1.27 and said["SQuAD", 16] == 1.58 and said["Criteo", 16] == 0.94


def test_an_iteration_is_what_a_step_and_a_ring_take():
    found, _ = overhead.iterations(["SQuAD"], [0], sigma=0.0)
    seconds = found.set_index("subject")["seconds"]
    for nodes, all_, group in ((4, 1.5, 1.0), (16, 1.875, 1.5)):
        assert seconds[f"bsp, SQuAD, {nodes}"] == pytest.approx(0.86 + all_ * 1.072, rel=0.01)
        assert seconds[f"ds-sync, SQuAD, {nodes}"] == pytest.approx(0.86 + group * 1.072, rel=0.01)
    assert seconds["asp, SQuAD, 4"] > 4 * 1.072 * 0.9  # four vectors through one link


def test_smaller_groups_and_messages_cost_what_a_ring_of_them_does():
    """Twos carry the vector once, and half precision half of it; sixteen in twos are four levels."""
    found, _ = smaller.exchanges([0])
    assert (found["over formula"] - 1).abs().max() < 0.01
    levels = smaller.levels(found)
    assert levels.loc[(16, 2), "cost"] == pytest.approx(1, rel=0.01) and levels.loc[(16, 2), "levels"] == 4
    assert levels.loc[(64, 4), "levels"] == 3 and levels.loc[(64, 8), "in half precision"] == pytest.approx(
        7 / 8, rel=0.01
    )
    assert levels.loc[(16, 4), "left after two"] == 0 < levels.loc[(16, 2), "left after two"]


def test_what_is_compared_differs_in_the_rule_alone():
    places = smaller.places(["images", "clicks"], [0, 1])
    assert {place["task"] for place in places if place["workers"] == 16} == {smaller.ALONE}
    short = {"steps": 5, "evaluations": 1}
    whole, half = (smaller.job("images", 4, mode, 0, **short) for mode in ("whole numbers", "half precision"))
    assert whole.pop("protocol") == DSSync() and half.pop("protocol") == DSSync(half=True) and whole == half
    assert whole == {k: v for k, v in quality.job("images", "DS-Sync", 0, **short).items() if k != "protocol"}
