"""What `lib.compare` says of protocols."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from lib.command_line import main
from lib.errors import BadOption, UnknownOption
from lib.protocols import ALL
from notebooks import study
from notebooks.advisor import advice, compare, trial
from notebooks.advisor.comparison import Comparison
from notebooks.advisor.trial import Trial, crossing
from notebooks.compare_figure import families
from tests.notebooks.comparisons import comparison
from tests.toys import evaluated_run

SMALL = {"workers": 4, "samples": 6_400, "evaluation_samples": 2_000, "slowdown": 0.6, "vocabulary": 200}


@pytest.fixture
def some_protocols(monkeypatch):
    """Those of which advice is asked: some of each kind, and the two that it leaves out."""
    some = ("sync", "async", "gba", "s-easgd", "ds-sync", "local-sgd", "oac", "frozen")
    monkeypatch.setattr(advice, "ALL", {name: ALL[name] for name in some})


@pytest.fixture
def by_hand():
    """Sync takes 10 and 20 seconds; GBA half of that, losing 0.002 and 0.004; BSP is GBA to the bit."""
    seconds = {"sync": (10, 20), "gba": (5, 10), "bsp": (5, 10)}
    metric = {"sync": (0.8, 0.7), "gba": (0.798, 0.696), "bsp": (0.798, 0.696)}
    return comparison(seconds, metric, same={"bsp": "gba"})


def test_differences_are_of_the_same_seed(by_hand):
    table = by_hand.summary().set_index("protocol")
    assert list(table.index) == ["gba = bsp", "sync"]
    assert table.loc["gba = bsp", "time"] == 0.5 and table.loc["gba = bsp", "time, high"] == 0.5
    # The mean of two, and t(0.975, 1) = 12.71 times half of their distance on either side.
    assert table.loc["gba = bsp", "difference"] == pytest.approx(-0.003)
    assert table.loc["gba = bsp", "difference, low"] == pytest.approx(-0.003 - 12.706 * 0.001, abs=1e-5)


def test_the_answer_names_the_more_careful_of_identical_protocols_and_says_that_no_loss_was_measured(by_hand):
    assert by_hand.answer() == [
        "Fastest to 90 % of what sync learns without a measurable loss: gba (bsp gives identical runs), in 0.500 of sync's time; "
        "no difference in the final AUC was measured (−3 [−16, 10] × 10⁻³).",
        "Fastest at any price: the same.",
    ]
    shuffled = Comparison(by_hand.runs.iloc[[0, 2, 1, 3, 5, 4]], "auc", 0.9)
    assert shuffled.choice() == "gba", "protocols.yaml lists it first"
    assert Comparison(by_hand.runs.iloc[[2, 1, 0, 5, 4, 3]], "auc", 0.9).choice() == "bsp", "what is used now"


def test_who_is_never_at_the_goal_is_last_and_named():
    found = comparison({"sync": (10, 10), "async": (5, np.nan)}, {"sync": (0.8, 0.8), "async": (0.7, 0.7)})
    assert found.table()["protocol"].tolist() == ["sync", "async"] and found.table().iloc[1, 2] == "never"
    assert found.verdict() == (
        "Fastest to 90 % of what sync learns without a measurable loss: sync; no other protocol is both faster on average and "
        "without a loss. Fastest at any price: the same. Measurably below sync at the end: async. Below the goal on some seed: "
        "async."
    )
    found.figure()


def test_what_is_compared_are_runs_of_train(tmp_path):
    """The difference at one rate is that of two runs of one seed on clicks of that seed; `iota` is GBA's alone."""
    found = lib.compare(["sync", "gba"], "clicks-light", "virtual", seeds=2, iota=1, **SMALL)
    own = {"evaluations": study.marks(10), "trace": False, **SMALL}
    for seed, mine in found.paired(own=False).groupby("seed"):
        runs = [lib.train("clicks-light", name, "virtual", seed=seed, world=seed, **own, **more)
                for name, more in (("sync", {}), ("gba", {"iota": 1}))]  # fmt: skip
        assert mine["digest"].tolist() == [run.digest for run in runs]
        assert mine["difference"].iloc[1] == runs[1].quality("expected_auc") - runs[0].quality("expected_auc")
    best = found.runs.groupby("protocol")["best"].first()
    assert set(best) <= {3.0**power for power in range(-4, 5)}


def test_the_choice_loses_nothing_and_the_fastest_may():
    """Async takes half of sync's time and loses 0.01 with every seed, GBA takes 0.7 of it and loses nothing."""
    took = {"sync": [10] * 3, "async": [5] * 3, "gba": [7] * 3}
    found = comparison(took, {"sync": (0.8, 0.7, 0.6), "async": (0.79, 0.69, 0.59), "gba": (0.8, 0.7, 0.6)})
    assert (found.choice(), found.fastest()["protocol"]) == ("gba", "async")
    told = "async, in 0.500 of sync's time; its final AUC is 10.0 × 10⁻³ lower than sync's."
    assert found.answer()[1] == f"Fastest at any price: {told}"


def test_a_choice_that_is_not_measurably_faster_says_so():
    found = comparison({"sync": (10, 10), "gba": (5, 9.9)}, {"sync": (0.8, 0.8), "gba": (0.8, 0.8)})
    assert found.choice() == "gba" and "of sync's time, which is not measurably faster; " in found.verdict()
    kept = "Keep sync: without a measurable loss, none is measurably faster to 90 % of what sync learns. Fastest on average: "
    assert found.verdict().startswith(f"{kept}gba, ")
    sure = comparison(
        {"sync": (10, 10), "gba": (5, 9.9), "bsp": (9, 9.1)}, dict.fromkeys(("sync", "gba", "bsp"), (0.8, 0.8))
    )
    assert sure.choice() == "gba" and sure.verdict().startswith("Fastest to 90"), (
        "bsp is measurably faster, so gba may be, too"
    )
    assert "no difference in the final AUC was measured (0 × 10⁻³)" in found.verdict()


def test_protocols_as_fast_as_the_choice_are_named():
    took = {"sync": (10, 10), "gba": (5, 5.2), "hop-bw": (5.1, 5.1)}
    found = comparison(took, dict.fromkeys(took, (0.8, 0.8)))
    assert "As fast within the intervals, without a measurable loss: hop-bw." in found.verdict()


class Peaked:
    """A trial whose AUC is best at a multiple of its rates."""

    def __init__(self, best):
        self._best = best

    def job(self, rate, seed, **options):
        return evaluated_run(-abs(np.log(rate / self._best)))


@pytest.mark.parametrize("best, found", [(1, 1), (30, 27), (1 / 30, 1 / 27), (1e6, 81)])
def test_the_best_rate_has_worse_ones_on_either_side_or_is_the_last_that_may_be(best, found, monkeypatch):
    monkeypatch.setattr(compare, "sweep", lambda jobs, label: list(jobs))
    tried = compare.tune({"a": Peaked(best), "b": Peaked(1)})
    assert {name: compare.best_rate(of) for name, of in tried.items()} == pytest.approx({"a": found, "b": 1})
    assert sorted(tried["b"]) == pytest.approx([1 / 3, 1, 3])


def test_who_learns_nothing_at_a_rate_stops_no_comparison(capsys):
    """Rates a million times too large: gradients overflow, and nobody comes to the goal."""
    given = {**SMALL, "dense_optimizer": {"name": "sgd", "lr": 1e30}, "row_optimizer": {"name": "sgd", "lr": 1e30}}
    found = lib.compare(["sync", "async"], "clicks-light", "virtual", seeds=2, **given)
    assert "Below the goal on some seed" in found.verdict()


def test_advice_tries_every_protocol_and_compares_the_soonest(some_protocols, capsys):
    hasty = {"dense_optimizer": {"name": "adam", "lr": 0.1}, "row_optimizer": {"name": "adam", "lr": 0.1}}
    found = lib.advise("clicks-light", "virtual", keep=2, seeds=2, iota=1, **SMALL, **hasty)
    tried = found.tried.set_index("protocol")
    assert tried.loc["sync", ["time", "difference"]].tolist() == [1, 0]
    assert tried["time"].dropna().is_monotonic_increasing
    assert {"gba", "s-easgd", "ds-sync"} <= {*tried.index, *found.refused} and not {"oac", "frozen"} & {*tried.index}
    first, *few = dict.fromkeys(found.comparison.runs["protocol"])
    assert first == "sync"
    for each in families():
        able = [name for name in tried.dropna().index if name in each["members"] and name != "sync"]
        compared = {tried.loc[name, "as"] for name in able} & {*few, "sync"}
        assert compared or not able, f"the best {each['family']} is compared"
    rates = found.comparison.runs.drop_duplicates("protocol").set_index("protocol")["best"]
    assert rates.to_dict() == tried.loc[rates.index, "rate"].to_dict(), "they are compared at the rates that were tried"
    assert rates["sync"] < 1
    own = found.comparison.paired().groupby("protocol")["seconds"].agg(lambda of: of.mean(skipna=False))
    assert found.what_if.loc["all is as given"].to_dict() == pytest.approx(own.to_dict(), nan_ok=True)
    assert len(found.what_if) == 7 and found.depends_on() and found.updates == 6_400 / (4 * 64)
    assert found.doubts()[0].startswith("A run is only 25 updates")
    assert found.assumed["workers"] == "4" and found.assumed["a step"].endswith("ms (default)")
    assert json.loads(json.dumps(found.to_json()))["without_loss"] == found.comparison.choice()


def run(seconds, samples_a_second):
    return SimpleNamespace(seconds=seconds, summary={"qps": samples_a_second})


def test_who_could_not_be_the_soonest_with_few_samples_is_tried_at_no_other_rate():
    """Sync needs 1,000 samples and 10 seconds, async 4,000 and 8 s; with 800, the fewest that are thought of, and the soonest at
    8 s, a hundred samples a second are needed."""
    runs = {"sync": {1.0: run(20, 100), 3.0: run(10, 100)}, "async": {1.0: run(8, 500)}}
    runs |= {"slow": {1.0: run(np.nan, 99)}, "hopeful": {1.0: run(np.nan, 101)}}
    assert advice._could_be_first(runs, lambda run: run.seconds) == ["async", "hopeful"]
    nothing = {"sync": {1.0: run(0.0, 100)}, "async": {1.0: run(np.nan, 500)}}
    assert advice._could_be_first(nothing, lambda run: run.seconds) == []


@pytest.mark.parametrize(
    "given, samples", [({}, 64_000), ({"workers": 16, "batch_size": 128}, 204_800), ({"samples": 640}, 640)]
)
def test_a_run_has_a_hundred_batches_of_every_worker_unless_the_options_say(given, samples):
    """4 workers with batches of 64: 25,600 samples, below the least; 16 with 128: 204,800."""
    assert trial.with_samples("clicks-light", "sync", "virtual", given) == {**given, "samples": samples}
    assert trial.with_samples("clicks-light", "sync", "virtual", {"profile": "laptop"}) == {"profile": "laptop"}


@pytest.mark.parametrize("updates, first", [(500.0, "Fastest to 90"), (26.0, "Doubt: A run is only 26 updates")])
def test_an_advice_begins_with_the_doubt_where_there_are_few_updates(updates, first, monkeypatch, capsys):
    """GBA takes half of the time, and ends measurably below."""
    found = comparison({"sync": (10, 10), "gba": (5, 5.1)}, {"sync": (0.8, 0.7), "gba": (0.79, 0.6899)})
    tried = {"protocol": ["gba", "sync"], "rate": 1.0, "time": [0.5, 1.0], "difference": 0.0, "as": ["gba", "sync"]}
    given = advice.Advice({"workers": "4 (default)"}, pd.DataFrame(tried), {}, found, pd.DataFrame(), updates)
    monkeypatch.setattr(lib, "advise", lambda *given_, **options: given)
    assert main(["advise"]) == 0
    assumed, *rest = capsys.readouterr().out.splitlines()
    assert assumed == "Assumed: workers: 4 (default)."
    answer = next(line for line in rest if line.startswith(("Doubt", "Fastest")))
    assert answer.startswith(first) and "Fastest at any price: gba, in 0.5" in " ".join(rest)
    assert main(["advise", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["without_loss"] == "sync"


def test_who_cannot_be_run_with_so_few_samples_stops_no_advice(some_protocols, capsys):
    """Of 16 workers each has one batch, and local-sgd mixes every eight."""
    assert main(["advise", "--workers=16", "--samples=1024", "--seeds=2", "--keep=1", "-oevaluation_samples=500"]) == 0
    printed = capsys.readouterr().out
    assert "local-sgd cannot run there" in printed and "its replicas would never mix" in printed


IN_SHORT = {
    ("--workers=16", "--slow=4@2x"): {"workers": 16, "speeds": [1.0] * 12 + [0.5] * 4},
    ("--network=10Gbit/s", "--keep=4"): {"network": "10Gbit/s"},
    ("--model=dlrm", "--json"): {"model": "dlrm", "workload": "ctr-synthetic"},
    ("--model=dlrm", "--workload=criteo-dlrm"): {"model": "dlrm", "workload": "criteo-dlrm"},
    ("--workers=4", "-oworkers=8"): {"workers": 8},
}


@pytest.mark.parametrize("flags", IN_SHORT)
def test_what_is_said_in_short_are_options(flags, monkeypatch):
    asked = {}
    monkeypatch.setattr(lib, "advise", lambda *given, **options: asked.update(options, workload=given[0]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["advise", *flags])
    usual = {"first": "sync", "keep": 4, "seeds": 5, "goal": 0.9, "workload": "clicks-light"}
    assert asked == {**usual, **IN_SHORT[flags]}


@pytest.mark.parametrize("protocol", ["sync", "s-easgd", "local-sgd"])
def test_a_step_takes_what_is_said_whoever_steps_the_optimiser(protocol, monkeypatch):
    """A batch of 64 in 5 ms: 12,800 samples a second of each worker, where next to nothing is waited for."""
    asked = {}
    monkeypatch.setattr(lib, "compare", lambda *given, **options: asked.update(options) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["compare", "sync", "gba", "--step=5ms", "--workers=2", "--samples=6400"])
    given = {name: value for name, value in asked.items() if name not in ("seeds", "goal")}
    run = lib.train("clicks-light", protocol, "virtual", **given, gradients=False, save=False)
    assert run.summary["qps"] == pytest.approx(2 * 64 / 0.005, rel=0.1)


@pytest.mark.parametrize(
    "column, columns, step",
    [("took_s", "took=took_s", 0.1), ("took_ms", "took=took_ms", 1e-4), ("took", "took=took:ms", 1e-4)],
)
def test_a_trace_gives_the_slowdown_and_the_step(column, columns, step, monkeypatch, tmp_path, capsys):
    """Two of four workers take 0.05 and two 0.1, 0.075 in the middle; the step is in the column's unit."""
    rows = [f"{worker},{0.05 * (1 + worker % 2)}" for _ in range(20) for worker in range(4)]
    (tmp_path / "steps.csv").write_text("\n".join([f"rank,{column}", *rows]))
    asked = {}
    monkeypatch.setattr(lib, "advise", lambda *given, **options: asked.update(options) or 1 / 0)
    given = ["advise", "--workers=4", "--trace", str(tmp_path / "steps.csv")]
    with pytest.raises(ZeroDivisionError):
        main([*given, "--columns", f"worker=rank,{columns}"])
    steady = lib.Slowdown.read(asked["slowdown"]).parts[0]
    assert steady.factors == pytest.approx((2 / 3, 4 / 3, 2 / 3, 4 / 3), rel=1e-3)
    flops = Trial.of("clicks-light", "sync", "virtual", {}).workload.work().flops
    assert flops / asked["worker.flops"] == pytest.approx(0.75 * step)
    with pytest.raises(ZeroDivisionError):
        main([*given, "--columns", f"worker=rank,{columns}", "--step=5ms"])
    assert flops / asked["worker.flops"] == pytest.approx(0.005), "what is said counts"
    if column != "took":
        assert main(given) == 2
        assert "no trace that is known here begins so" in capsys.readouterr().err


@pytest.mark.parametrize(
    "protocols, workload, options, error, words",
    [
        (["gba", "sync"], "clicks-light", {"iotta": 3}, UnknownOption, "iotta.*iota"),
        (["sync"], "clicks-light", {}, BadOption, "two protocols"),
        (["sync", "sync"], "clicks-light", {}, BadOption, "two protocols"),
        (["sync", "async"], "quadratic", {"workers": 2, "samples": 64}, BadOption, "evaluated by none of auc"),
    ],
)
def test_what_cannot_be_compared_is_refused(protocols, workload, options, error, words):
    with pytest.raises(error, match=words):
        lib.compare(protocols, workload, "virtual", **options)


def test_the_command_prints_the_table_and_the_verdict_and_saves_the_figure(tmp_path, capsys):
    options = [f"-o{name}={value}" for name, value in SMALL.items() if name != "samples"]
    assert main(["compare", "sync", "async", "--seeds", "2", "--samples", "6400", *options,
                 "--figure", str(tmp_path / "figure.svg")]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "AUC − sync's" in printed and "of what sync learns" in printed and "Time is simulated" in printed
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize(
    "goal, at", [(0.5, (0, 0)), (0.55, (1, 50)), (0.6, (2, 100)), (0.65, (6, 150)), (0.7, (10, 200))]
)
def test_a_course_crosses_its_goal_on_a_straight_line(goal, at):
    """0.5 at the start, 0.6 after two seconds and 0.7 after ten: 0.65 is half of the way from the one to the other."""
    course = np.array([(0, 0, 0.5), (2, 100, 0.6), (10, 200, 0.7)])
    assert crossing(course, goal) == pytest.approx(at)


def test_a_fall_is_crossed_on_the_way_up_again_and_what_is_never_reached_is_none():
    """From 0.5 up to 0.6, down to 0.4 and up to 0.8: at 0.7 three quarters of the last way are done."""
    course = np.array([(0, 0, 0.5), (1, 10, 0.6), (2, 20, 0.4), (6, 60, 0.8)])
    assert crossing(course, 0.7) == pytest.approx((5, 50))
    assert crossing(course, 0.81) is None
