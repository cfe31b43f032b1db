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
    assert identity(advice, compare, comparison, trial) == "ac7f195a3470"
    assert is_a_commit(advised.DRAWN_BY) in (True, None)


def test_a_row_holds_the_choice_against_the_soonest_of_all(monkeypatch):
    """GBA was chosen, at half of sync's time as one run foretold; async takes 4 of sync's 10 seconds, GBA 5; BSP,
    the soonest on the first seed, is not there on the other, on which HOP-BS is not run: it took too long on the first."""
    took = {"sync": (10, 10), "gba": (4, 6), "async": (4, 4), "bsp": (3, float("nan")), "hop-bs": (7, 1)}
    rows = [{"protocol": name, "seed": at, "seconds": x} for name, times in took.items() for at, x in enumerate(times)]
    tried = pd.DataFrame({"protocol": ["gba", "async", "bsp", "hop-bs", "sync"], "time": [0.5, 0.6, 0.7, 0.8, 1.0]})
    advice = SimpleNamespace(tried=tried, comparison=SimpleNamespace(choice=lambda: "gba"))
    monkeypatch.setattr(lib, "advise", lambda *given, **options: advice)
    asked, samples = [], set()

    def judged(trials, rates, seeds, goal):
        asked.append((list(trials), seeds))
        samples.update(trial.workload.samples for trial in trials.values())
        assert goal == 0.9 and rates["gba"] == (3.0,)
        mine = [row for row in rows if row["protocol"] in trials and row["seed"] < seeds]
        return SimpleNamespace(paired=lambda: pd.DataFrame(mine))

    monkeypatch.setattr(advised, "measure", judged)
    monkeypatch.setattr(advised, "tune", lambda trials: {name: {3.0: None} for name in trials})
    monkeypatch.setattr(advised, "best_rate", lambda runs: next(iter(runs)))
    row = advised.row(0, 100, 2)
    drawn = advised.condition(advised.DRAWN_BY, 0)
    assert samples == {100 * max(640, drawn["workers"] * drawn["batch_size"])}
    assert asked == [(["sync", "gba", "async", "bsp", "hop-bs"], 1), (["sync", "gba", "async", "bsp"], 2)]
    assert (row["choice"], row["soonest"], row["foretold"]) == ("gba", "async", 0.5)
    assert (row["takes longer"], row["found"]) == (pytest.approx(0.25), pytest.approx(0.5))
    table = pd.DataFrame([row, {**row, "takes longer": 0.03, "found": 0.4}])
    assert advised.sentence(table) == (
        "the first choice is within 3 % of the soonest in 1 of 2 conditions, and takes 14.0 % longer on average, 25 % at "
        "most, where Sync takes 150 % longer; the time that one run foretold is off by 12 % (median), 25 % at most"
    )
