"""The tables that GBA's claims read, with numbers that can be checked by hand."""

import pandas as pd

from lib.papers.gba import sudden_drop, switching, tasks
from lib.reporting import claims


def test_the_switching_study_gives_every_modes_auc_and_the_average_of_the_tasks():
    rows = [
        (task, "from Sync", mode, 1000, day, 0.7 + 0.1 * (mode == "gba") + 0.01 * day + (task == "b") / 10)
        for task in "ab"
        for mode in ("sync", "gba")
        for day in (5, 6, 7)
    ]
    daily = pd.DataFrame(rows, columns=["task", "direction", "protocol", "seed", "day", "auc"])
    judged = switching.judged(daily).set_index("subject")[["first", "last", "mean"]].round(6)
    assert judged.loc["a from sync gba"].tolist() == [0.85, 0.87, 0.86]
    assert judged.loc["b from sync sync"].tolist() == [0.85, 0.87, 0.86]
    assert judged.loc["average from sync gba"].tolist() == [0.9, 0.92, 0.91]
    less = switching.differences(daily).set_index(["task", "protocol"])["mean"].round(6)
    assert less.to_dict() == {("a", "sync"): -0.1, ("b", "sync"): -0.1, ("a", "gba"): 0.0, ("b", "gba"): 0.0}


def test_the_drops_have_a_subject_for_every_case_of_the_claims():
    found = [("criteo", case, 1000, 0.1) for case in sudden_drop.CASES] + [("private", "async (S)", 1000, 0.9)]
    scratch = pd.DataFrame(found, columns=["task", "protocol", "seed", "drop"])
    modes = {"from sync": ["sync S", "gba S", "async S", "async A"], "from async": ["async A", "sync S", "sync A"]}
    late = [(start, mode, 1000, 0.2) for start, names in modes.items() for mode in names]
    late = pd.DataFrame(late, columns=["start", "protocol", "seed", "drop"])
    judged = sudden_drop.judged(scratch, late)
    assert judged["subject"].is_unique and "private" not in set(judged["task"])
    assert dict(zip(judged["subject"], judged["drop"], strict=True))["late, sync stays"] == 0.2
    mine = [claim for claim in claims.load().values() if claim.notebook == "gba/figure_2_sudden_drop"]
    wanted = {name for claim in mine for each in claim.comparisons for name in each.subjects}
    assert len(mine) == 3 and wanted <= set(judged["subject"])


def test_where_no_batch_is_thrown_away_one_is_counted():
    table = pd.DataFrame({"protocol": ["gba", "hop-bw"], "time": "busy", "seed": 1000, "thrown": [0.0, 300.0]})
    judged = tasks.lines(table)
    assert judged["subject"].tolist() == ["gba busy", "hop-bw busy"] and judged["thrown"].tolist() == [1.0, 300.0]
