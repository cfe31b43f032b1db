"""The bench of advice: conditions that its own commit draws, and what a row of it says."""

from types import SimpleNamespace

import pandas as pd
import pytest

import lib
from notebooks.advisor import advice, compare, comparison, trial
from notebooks.bench import advised
from tests.notebooks.identity import identity, is_a_commit


def test_conditions_are_drawn_by_the_commit_and_their_number_alone():
    drawn = [advised.condition("0" * 40, number) for number in range(30)]
    assert drawn == [advised.condition("0" * 40, number) for number in range(30)]
    assert drawn[0] != advised.condition("1" * 40, 0) and len({str(each) for each in drawn}) == 30
    for each in drawn:
        assert len(each["speeds"]) == each["workers"] and min(each["speeds"]) >= 1 / 4
        assert each["worker"].bandwidth == each["server"].bandwidth >= 0.3e9 / 8
    assert {sum(speed < 1 for speed in each["speeds"]) for each in drawn} > {0, 1}


def test_conditions_are_drawn_anew_when_advice_changes():
    """`advised.DRAWN_BY` is the commit that last changed what an advice is. If this digest changes, draw anew with the commit of
    the change; if the change leaves every advice as it was, store the new digest alone."""
    assert identity(advice, compare, comparison, trial) == "2ffd77d83506"
    assert is_a_commit(advised.DRAWN_BY) in (True, None)


def test_the_rows_of_a_condition_have_the_times_that_choose_and_those_that_judge(monkeypatch):
    """GBA is the choice. BSP, the fastest on the first seed, misses the goal on the second; HOP-BS takes too long on the first
    and is run on no other."""
    took = {"sync": (10, 10, 20, 20), "gba": (4, 6, 8, 8), "async": (4, 4, 9, 11), "bsp": (3, float("nan"), 1, 1)}
    took["hop-bs"] = (7, 1, 1, 1)
    every = advised.judging(4)
    all_rows = [
        {"protocol": name, "seed": every[at], "seconds": x}
        for name, times in took.items()
        for at, x in enumerate(times)
    ]
    tried = pd.DataFrame({"protocol": ["gba", "async", "bsp", "hop-bs", "sync"], "time": [0.5, 0.6, 0.7, 0.8, 1.0]})
    found = SimpleNamespace(tried=tried, comparison=SimpleNamespace(fastest=lambda: {"protocol": "gba = x"}))
    monkeypatch.setattr(lib, "advise", lambda *given, **options: found)
    asked, samples = [], set()

    def compared(trials, rates, seeds, goal):
        asked.append((list(trials), list(seeds)))
        samples.update(trial.workload.samples for trial in trials.values())
        assert goal == 0.9 and rates["gba"] == (3.0,)
        mine = [row for row in all_rows if row["protocol"] in trials and row["seed"] in seeds]
        return SimpleNamespace(paired=lambda: pd.DataFrame(mine))

    monkeypatch.setattr(advised, "measure", compared)
    monkeypatch.setattr(advised, "tune", lambda trials: {name: {3.0: None} for name in trials})
    monkeypatch.setattr(advised, "best_rate", lambda runs: next(iter(runs)))
    rows = pd.DataFrame(advised.rows(0, 100, 2))
    drawn = advised.condition(advised.DRAWN_BY, 0)
    assert samples == {100 * max(640, drawn["workers"] * drawn["batch_size"])}
    near = ["sync", "gba", "async", "bsp"]
    assert asked == [([*near, "hop-bs"], list(every[:1])), (near, list(every[:2])), (near, list(every[2:]))]
    table = rows.set_index("protocol")
    assert table["choosing"].round(2).dropna().to_dict() == {"sync": 1.0, "gba": 0.5, "async": 0.4}
    assert table["judging"].round(2).dropna().to_dict() == {"sync": 1.0, "gba": 0.4, "async": 0.5, "bsp": 0.05}
    assert table.index[table["choice"]].tolist() == ["gba"]


def test_a_choice_is_compared_with_what_exhaustive_search_reaches_on_other_seeds():
    """In the first condition the ceiling is async, which wins on the choosing seeds, and the choice is better; in the second the
    choice takes a quarter longer than the ceiling."""
    where = {"workers": 4, "slow": "0", "sigma": 0.0, "Gbit/s": 1.0, "step, ms": 1.0, "batch": 32}
    names = ("sync", "gba", "async")
    times = {0: ((1.0, 0.5, 0.4), (1.0, 0.4, 0.5)), 1: ((1.0, 0.5, 0.4), (1.0, 0.5, 0.4))}
    rows = pd.DataFrame([
        {**where, "condition": number, "protocol": name, "choosing": choosing[at], "judging": judging[at]}
        for number, (choosing, judging) in times.items() for at, name in enumerate(names)
    ]).assign(choice=lambda t: t["protocol"] == "gba")  # fmt: skip
    found = advised.judged(rows)
    assert found["ceiling"].tolist() == ["async", "async"]
    assert found["longer"].tolist() == pytest.approx([-0.2, 0.25])
    assert found["Sync longer"].tolist() == pytest.approx([1, 1.5])
    assert advised.best_single(rows) == "async" and found["control longer"].tolist() == [0, 0]
    assert advised.sentence(rows) == (
        "The choice is within 3 % of the ceiling in 1 of 2 conditions. It takes 2.5 % longer on average and 25 % at most; Sync "
        "takes 125 % longer. The best single protocol, async, is within 3 % in 2."
    )
