"""What the notebook of the automatic switch compares, by hand, and its figure."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from notebooks.gba import automatic_switch
from notebooks.gba.automatic_switch import BATCH, WINDOWS, Day
from tests.toys import evaluated_run

DAY = Day(seconds=float(WINDOWS))
"""Throughput is counted second by second."""


def run(stages, seconds=4.0):
    """Batches one after another on one worker: `stages` are (protocol, start, end, batches)."""
    spans = []
    for _, start, end, batches in stages:
        width = (end - start) / batches
        for place in start + width * np.arange(batches):
            spans.append({"kind": "compute", "start": place, "end": place + width})
    spans.append({"kind": "push", "start": 0.0, "end": 4.0})
    found = evaluated_run(0.7, virtual_seconds=seconds)
    found.summary["stages"] = [{"protocol": name, "start": start} for name, start, _, _ in stages]
    provenance = {"workload": {"batch_size": automatic_switch.BATCH}}
    return replace(found, trace=pd.DataFrame(spans), provenance=provenance)


def test_throughput_and_hindsight_by_hand():
    """The modes train 1 or 3 batches a second, by turns of two seconds. Free switches would reach 12 batches, a restart of
    96 / 720 s takes 0.4 of them, and the best mode alone has 8."""
    runs = {
        "all-reduce": run([("all-reduce", 0, 2, 6), ("all-reduce", 2, 4, 2)]),
        "gba": run([("gba", 0, 2, 2), ("gba", 2, 4, 6)], seconds=4.9),
        "automatic": run([("all-reduce", 0, 2, 6), ("gba", 3, 4, 3)]),
    }
    rates, rows = DAY.compare("day", runs)
    rates = rates.pivot(index="time", columns="protocol", values="qps") / BATCH
    assert rates["gba"].tolist() == pytest.approx([1, 1, 3, 3])
    assert rates["automatic"].tolist() == pytest.approx([3, 3, 0, 3])
    batches = {row["mode"]: row["qps"] * 4 / BATCH for row in rows}
    assert batches["best fixed"] == pytest.approx(8)
    assert batches["hindsight"] == pytest.approx(12 - 96 / 720 * 3)
    assert batches["automatic"] == pytest.approx(9)
    (own,) = [row for row in rows if row["mode"] == "automatic"]
    assert own["switches"] == 1
    # The best mode is always as fast: rho is 1, and e a quarter.
    cost = 96 / 720 + 2 * automatic_switch.COMPUTE
    assert own["lost"] == pytest.approx(3 / (3.25 * 0.4 + 3.25 * cost * 3))


def test_all_modes_see_the_same_samples_on_the_same_cluster():
    jobs = [DAY.job("trace", mode, 1, 640, 5) for mode in (*automatic_switch.MODES, "automatic")]
    assert all(job["cluster"] == jobs[0]["cluster"] and job["workload"] == jobs[0]["workload"] for job in jobs)
    sizes = [phase.protocol.batches_a_step(automatic_switch.WORKERS) for phase in jobs[-1]["protocol"].phases]
    assert sizes == [automatic_switch.WORKERS] * 2, "equal global batches"
    long = DAY.job("long restart", "automatic", 1, 640, 5)["protocol"]
    assert long.restart == pytest.approx(2.5 * DAY.choice("day", 5).restart) == pytest.approx(DAY.seconds / 288)


def test_the_figure_has_a_band_for_each_case():
    rates, _ = DAY.compare("day", {mode: run([("gba", 0, 4, 8)]) for mode in (*automatic_switch.MODES, "automatic")})
    chosen = automatic_switch.stretches(run([("all-reduce", 0, 1, 1), ("gba", 2, 4, 2)]), 2.0)
    assert chosen.to_numpy().tolist() == [["all-reduce", 0.0, 1.0], ["gba", 1.0, 2.0]]
    both = pd.concat([rates.assign(case=case) for case in ("one", "two")])
    fig = automatic_switch.figure(both, pd.concat([chosen.assign(case=case) for case in ("one", "two")]))
    assert [len(ax.lines) for ax in fig.axes] == [3, 0, 3, 0]
    assert [len(ax.collections) for ax in fig.axes] == [0, 2, 0, 2]
