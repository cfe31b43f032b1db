"""Averages after local Adam: one thing is changed at a time, and what is told is paired."""

import pandas as pd
import pytest

from lib.protocols.dssync import DSSync
from notebooks import study
from notebooks.dssync import local_adam, quality

SHORT = {"steps": 2, "evaluations": 1}


def test_the_rule_and_the_rate_alone_differ():
    jobs = [local_adam.job(mode, 3.0, 7, **SHORT) for mode in local_adam.RULES]
    assert [job.pop("protocol") for job in jobs] == [*local_adam.RULES.values()] and jobs[0] == jobs[1] == jobs[2]
    own = quality.TASKS["clicks"].workload.dense_optimizer
    assert jobs[0]["workload"].dense_optimizer.lr == pytest.approx(3 * own.lr) and own.name == "adam"
    assert local_adam.RULES["one group"] == DSSync(size=16) and DSSync(size=16).groups(1, 16) == (tuple(range(16)),)


def test_what_is_told_is_less_the_same_rate_and_seed():
    places = study.grid(mode=("BSP", "one group"), rate=[3.0], seed=[7])
    places += study.grid(mode=("BSP", "DS-Sync"), rate=[1.0], seed=[7])
    data, runs = local_adam.run(places, **SHORT)
    quality = data.set_index("subject")["quality"]
    less = data.set_index("subject")["quality less BSP's"]
    assert less["one group, 3"] == pytest.approx(quality["one group, 3"] - quality["BSP, 3"]) and less["BSP, 3"] == 0
    assert local_adam.regimes(data, runs).loc["updates in it", ("clicks, 16", "here")].startswith("20 ")


def test_all_seeds_are_at_the_rates_that_are_judged_and_one_beyond():
    places = pd.DataFrame(local_adam.cases(range(1000, 1005)))
    counts = places.groupby(["mode", "rate"]).size()
    assert counts["DS-Sync"].to_dict() == {1.0: 5}
    for mode in ("BSP", "one group"):
        assert counts[mode].to_dict() == {1 / 3: 1, 1.0: 5, 3.0: 5, 9.0: 1}
