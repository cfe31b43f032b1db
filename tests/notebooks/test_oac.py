"""OAC's running example ends as the paper says, and its page follows it letter by letter."""

import pytest

import lib
from lib import protocols
from notebooks import study
from notebooks.oac import conflicts, example, plays, tasks


def followed(name):
    records = example.record(protocols.get(name))
    return example.steps(records), example.updates(records)


def test_one_after_another():
    table, updates = followed("sequential")
    assert table.loc[1, "read"] == "a' (0), b, h"
    assert table.loc["store", "written"] == "a'' (1), b' (1), c' (0), d, e, f' (0), g, h' (1)"
    assert updates == {"a": 2, "b": 1, "c": 1, "f": 1, "h": 1}


def test_side_by_side_an_update_is_lost():
    table, updates = followed("pipelined")
    assert (table.loc[1, "read"], table.loc[1, "validated"]) == ("a, b, h", "a, b, h")
    assert table.loc["store", "written"].startswith("a' (1), b' (1)") and updates["a"] == 1


def test_under_oac_the_second_batch_is_validated():
    table, updates = followed("oac")
    assert (table.loc[1, "read"], table.loc[1, "validated"]) == ("a, b, h", "a' (0), b, h")
    assert table.loc[1, "computed"] == "a'' (1), b' (1), h' (1)" and updates["a"] == 2


def test_all_letters_end_as_printed():
    for name, matches in (("sequential", 1), ("oac", 1), ("pipelined", 0)):
        assert example.matches_paper(example.record(protocols.get(name))) == matches


@pytest.mark.parametrize("name", example.ORDERS)
def test_step_by_step_whoever_writes_first(name):
    """The second batch has a as it was read, then a' of the cache; a' never covers a'' in the store (Fig. 4)."""
    table = example.step_table(protocols.get("oac"), example.ORDERS[name])
    second = table.loc[1].set_index("stage")["the batch has"]
    assert second[["read", "validate", "compute"]].to_list() == ["a, b, h", "a' (0), b, h", "a'' (1), b' (1), h' (1)"]
    stored = table["the store has"]
    assert stored.iloc[-1] == "a'' (1), b' (1), c' (0), d, e, f' (0), g, h' (1)"
    assert ("a' (0)" in " ".join(stored)) == (name == "the first writes first")
    assert table["MFT"].iloc[-1] == 1


def test_finished_over_gaps():
    """Section 3.3's own numbers."""
    assert example.finished_table(protocols.get("oac"), (0, 1, 2, 5, 6, 3, 4))["MFT"].to_list() == [0, 1, 2, 2, 2, 3, 6]


def test_stages_are_in_their_order():
    spans = example.spans(example.record(protocols.get("oac")))
    one = spans[spans["node"] == "batch 1"].drop_duplicates("kind").set_index("kind")
    read, compute, write = (one.loc[kind] for kind in ("read", "compute", "write"))
    assert read["end"] <= compute["start"] < compute["end"] <= write["start"]


def test_every_fault_is_seen_and_oac_shows_nothing():
    found = plays.detect(1).set_index("fault")
    none = found.index.str.startswith("none")
    assert (found.loc[none, "show it"] == 0).all() and (found.loc[~none, "show it"] > 0).all()
    assert found.loc["no validation", "the first says"].startswith("stale read: batch ")


@pytest.mark.parametrize("name", ["host", "device"])
def test_a_fitted_machine_has_the_papers_seconds(name):
    """Setup 1: 205 ms a batch one after another and 107 with OAC, in closed form and where batches are sent about."""
    setup, machine = tasks.SETUPS["setup 1"], tasks.MACHINES[name]
    wanted = {"sequential": tasks.SYNC, "oac": tasks.PIPELINED}
    told = tasks.paces(setup.seconds(machine))
    assert [told["one after another"], told["pipelined"]] == pytest.approx([205, 107], rel=0.01)
    for mode, seconds in wanted.items():
        made = study.timing(setup.job(mode, 1, epochs=0.1, machine=machine))
        assert setup.batch / lib.train(**made, save=False).steady_qps == pytest.approx(seconds, rel=0.1)


def test_data_sheets_contradict_the_papers_seconds():
    """2 million rows of 100 numbers over 12 GB/s take 67 ms each way, and a pipeline no longer than that."""
    seconds = tasks.SETUPS["setup 1"].seconds(tasks.ESTIMATED)
    assert seconds["transfer"] == pytest.approx(800e6 / 12e9)
    assert tasks.paces(seconds)["pipelined"] == pytest.approx(66.7, abs=0.1)
    assert seconds["transfer"] + seconds["back"] + tasks.PIPELINED > 1.1 * tasks.SYNC


def test_what_setup_2_is_foretold():
    """By hand, all of the host's memory: 2 x 26.8 of copies, 2 x 22.9 on the way, 43.8 of a step, over 53.5."""
    found = tasks.predicted_speedups().set_index(["longest", "GraphSage's share", "memory"])["times as fast"]
    assert found["host", 0.0, 1.0] == pytest.approx((53.5 + 45.8 + 43.8) / 53.5, rel=0.01)
    assert found["host", 0.0, 0.25] == pytest.approx((214 + 45.8 + 43.8) / 214, rel=0.01)
    over = found[found > 3]  # copies of 42.8 ms, a step of 43.8
    assert list(over.index) == [("host", 0.2, 1.0), ("host", 0.8, 0.25)] and over.max() < 3.05


def test_over_three_wants_a_balance():
    """By hand, with 45.8 ms there and back and a step of 43.8: (41.8 + 45.8 + 43.8) / 43.8 is three, and with 44.8, over 44.8."""
    found = tasks.over_three().loc[43.8]
    assert found.to_list() == pytest.approx([41.8, 44.8], abs=0.05)
    share = 1 - found / 53.5  # of the host's time in setup 1 that would be GraphSage's
    assert share.to_list() == pytest.approx([0.22, 0.16], abs=0.005)


def test_conflicts_in_closed_form():
    """Four ids, all alike, two draws: each is in a batch with 7/16; two others in flight have a row with 1 - (9/16)^2."""
    task = conflicts.task(batch=2, exponent=0.0, batches=4, vocabulary=4)
    assert conflicts.expected(task, 3) == pytest.approx(1 - (9 / 16) ** 2)
    assert conflicts.expected(task, 1) == 0
