"""ShadowSync's cluster: its pace follows from the paper's figures, and what is said of a curve can be checked by hand."""

import zlib
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import lib
from lib.protocols.mixing import Mix
from lib.protocols.shadowsync import ForegroundEASGD, ShadowBMUF
from notebooks import loads, study
from notebooks.shadowsync import alphas, placement, quality, tasks
from notebooks.toys import Letters
from reports import runner as notebooks
from reports.claims.statistics import interval, smallest_effect
from tests.toys import run_of


def test_the_pace_follows_from_the_printed_gaps():
    """Two links of 3.125 GB/s take 50 MB 125 times a second: at 20 trainers 6.25 times each, with 12.48 steps in between."""
    assert tasks.syncs(2) == 125
    assert tasks.GAPS[20] * 125 / 20 == 78
    assert pytest.approx(74.9) == tasks.STEPS and pytest.approx(29.6, abs=0.01) == tasks.STEPS_1


def test_a_trainer_makes_its_steps_and_a_synchronisation_takes_its_time():
    rule = tasks.rule("fr-easgd (5)", threads=24)
    job = tasks.speed_job(rule, 2, 1000, each=10)
    run = lib.train(**job, save=False)
    assert run.steady_qps / 2 / tasks.BATCH == pytest.approx(tasks.STEPS, rel=0.2)  # it stops for every fifth step
    never = lib.train(**job | {"protocol": tasks.rule("s-easgd", alpha=0.0)}, save=False)
    assert never.steady_qps / 2 / tasks.BATCH == pytest.approx(tasks.STEPS, rel=0.12)  # rows wait behind copies
    cluster, task = job["cluster"], job["workload"]
    assert 4 * tasks.dense_parameters(task) / cluster.server.bandwidth == pytest.approx(50e6 / 3.125e9)


@pytest.mark.nightly
@pytest.mark.parametrize("made", [tasks.workload, tasks.light])
@pytest.mark.parametrize(("trainers", "servers", "steps"), [(20, 2, tasks.STEPS), (11, 1, tasks.STEPS_1)])
def test_runs_that_learn_mix_as_far_apart_as_calibrated(trainers, servers, steps, made):
    """Two links take 125 copies a second, so each of 20 trainers has 6.25 mixes, and 74.9 steps, a second: 11.98 in between."""
    shadow = tasks.rule("s-easgd", servers=servers, threads=4)
    job = tasks.job(shadow, trainers, 500, samples=40_000, steps=steps, servers=servers, build=made)
    run = lib.train(**study.timing(job), save=False)
    assert run.steady_qps / trainers / tasks.BATCH == pytest.approx(steps, rel=0.1)
    assert run.summary["sync_gap"] == pytest.approx(steps * trainers / tasks.syncs(servers), rel=0.1)


def test_threads_that_are_too_few_for_the_pace_are_told():
    with pytest.raises(ValueError, match=r"1 threads cannot make 74\.9 steps a second: rows alone take"):
        tasks.paced_cluster(5, 1, 2, tasks.STEPS)


def test_a_rule_by_its_name():
    foreground = tasks.rule("fr-easgd (30)", servers=4, threads=12)
    assert isinstance(foreground, ForegroundEASGD)
    assert (foreground.every, foreground.sync_servers, foreground.worker_threads) == (30, 4, 12)
    assert isinstance(tasks.rule("s-bmuf", alpha=0.9), ShadowBMUF)


def test_what_trainers_keep_and_where_growth_ends():
    curves = {"straight": [100, 200, 400], "bent": [100, 150, 150]}
    rows = [(name, 1, crew, value) for name in curves for crew, value in zip((5, 10, 20), curves[name], strict=True)]
    data = pd.DataFrame(rows, columns=["protocol", "seed", "trainers", "eps"])
    assert quality.lines(data).set_index("subject")["efficiency"].to_dict() == {"straight": 1, "bent": 0.375}
    assert quality.lines(data).set_index("subject")["bend"].to_dict() == {"straight": 20, "bent": 7.5}


def test_names_as_pages_write_them():
    rules = tasks.compared_rules(threads=2)
    assert [rules[f"{how}fr-ma"].alpha for how in ("", "copied ")] == [0.25, 1.0] and rules["copied fr-bmuf"].eta == 0.5
    assert (rules["fr-easgd (30)"].every, rules["s-bmuf larger"].alpha, rules["s-bmuf"].alpha) == (30, 0.5, 0.25)
    assert (rules["fr-bmuf"].seconds, rules["copied fr-bmuf"].seconds) == (tasks.PAUSE, tasks.PAUSE)
    assert {rule.alpha for name, rule in tasks.compared_rules(2, 0.1).items() if "copied" not in name} == {0.1, 0.5}


@pytest.mark.parametrize("page", ["table_2_sync_gap", "figure_8_hogwild_threads"])
def test_pages_with_an_alpha_of_their_own_begin_with_the_one_for_all(page):
    (experiment,) = notebooks.resolve(f"shadowsync/{page}")
    assert notebooks.parameters(experiment.path)["alpha"].default == tasks.ALPHA


def test_bmuf_is_timed_as_ma():
    """It sends what MA sends, when MA sends it, so its timing runs are not made."""
    for way, pause in (("s", {}), ("fr", {"seconds": 0.5})):
        jobs = [tasks.speed_job(tasks.rule(f"{way}-{name}", **pause), 3, 500, each=3) for name in ("ma", "bmuf")]
        ma, bmuf = (lib.train(**job, save=False) for job in jobs)
        assert (ma.steady_qps, ma.summary["sync_gap"]) == (bmuf.steady_qps, bmuf.summary["sync_gap"])


def past(ne):
    """A run of 400 examples that was evaluated four times."""
    rows = [{"samples": 100 * (i + 1), "train_ne": each + 0.1} for i, each in enumerate(ne)]
    rows += [{"samples": 100 * (i + 1), "ne": each} for i, each in enumerate(ne)]
    rows = [{"step": i + 1 if "train_ne" in row else np.nan, "time": float(i), **row} for i, row in enumerate(rows)]
    return run_of(rows, samples=400, sync_gap=3.0)


def test_quality_is_that_of_the_average_of_all_copies_and_one_copy_stands_next_to_it():
    runs = [past([9.0, 9.0, 0.8, 0.6]) for _ in range(3)]
    runs[1].summary.update(ne_of_average=0.55, expected_ne_of_average=0.5, ne_of_centre=0.75, expected_ne_of_centre=0.7)
    runs[2].summary.update(ne_of_average=0.55, ne_of_centre=0.75)  # real data, whose probabilities are not known
    found = study.table([{"protocol": "a", "seed": seed} for seed in (1, 2, 3)], runs, quality.figures)
    assert found["ne by labels"].tolist() == pytest.approx([np.nan, 0.55, np.nan], nan_ok=True)
    assert found["train_ne"].tolist() == pytest.approx([0.8, 0.8, 0.8]) and found["sync_gap"].tolist() == [3, 3, 3]
    assert found["ne"].tolist() == [0.6, 0.5, 0.55] and found[quality.ONE_COPY].tolist() == [0.6, 0.6, 0.6]
    assert found["ne of the servers' copy"].tolist() == pytest.approx([np.nan, 0.7, 0.75], nan_ok=True)


def test_the_course_is_told_over_the_base_at_the_same_place_and_seed():
    places = study.grid(seed=(1, 2), protocol=("base", "other"))
    runs = [past([1, 1, 0.5, 0.5]), past([2, 1, 1, 0.5]), past([1, 1, 1, 1]), past([3, 3, 3, 3])]
    course = quality.relative_histories(places, runs, protocol="base")
    assert quality.trend(course, "protocol", (0.25, 1.0)).loc["other"].to_dict() == {0.25: 150, 1.0: 100}
    found = course.pivot_table(index=["seed", "protocol"], columns="part", values="over the base's")
    assert found.loc[(1, "other")].to_dict() == {0.25: 2, 0.5: 1, 0.75: 2, 1.0: 1}
    assert set(found.loc[(2, "other")]) == {3} and set(found.loc[(1, "base")]) == {1}


def test_how_far_entropy_rises_with_trainers_beside_the_papers():
    models = pd.DataFrame(
        [("s-easgd", crew, seed, 0.8, ne) for seed in (1, 2) for crew, ne in ((5, 0.5), (10, 0.505), (20, 0.51))],
        columns=["protocol", "trainers", "seed", "train_ne", "ne"],
    )
    rise = quality.rises(models).loc[("s-easgd", 20)]
    assert rise.tolist() == pytest.approx([0, 2, 0.23, 0.177])
    found = quality.claim_table(models).set_index(["subject", "seed"])
    assert found.loc[("s-easgd with 20", 2), ["train rise", "rise"]].tolist() == pytest.approx([0, 0.02])
    assert found.loc[("s-easgd with 5", 2), "rise"] == 0
    assert {name for name, _ in found.index} == {f"s-easgd with {crew}" for crew in (5, 10, 20)}


def test_who_is_beside_several_is_there_once_for_each():
    rows = [(mode, crew, 1, ne, 2 * ne) for crew in (5, 20) for mode, ne in (("a", 0.5), ("b", 0.6), ("c", 0.7))]
    models = pd.DataFrame(rows, columns=["protocol", "trainers", "seed", "train_ne", "ne"])
    found = quality.claim_table(models, "a", ("b", "c")).set_index("subject")["ne"]
    assert {found[f"a beside {other} with {crew}"] for other in "bc" for crew in (5, 20)} == {1.0}
    assert found["c with 20"] == 1.4 and len(found) == 10


def test_a_slow_average_is_merged_when_it_is_there_and_nothing_in_between():
    """Of three rings that are one slow one the first sends: its mean is merged with the third, whatever these bring."""
    rule, mine, memory = tasks.SlowMA(lasts=3, alpha=0.25), np.array([8.0]), None
    for round, theirs in enumerate((4.0, 100.0, -100.0, 0.0, 100.0, 1.0)):
        mix = Mix(round=round, members=(0, 1), sent=mine, theirs=np.array([theirs]))
        memory, mine = rule.merge(memory, mine, mix)
        assert mine == {0: 8, 1: 8, 2: 7, 3: 7, 4: 7, 5: 5.25}[round]
    once = tasks.SlowMA(lasts=1, alpha=0.25).merge(None, np.array([8.0]), Mix(7, (0, 1), mine, np.array([4.0])))
    assert once[1] == 7, "S-MA"


def test_under_a_slow_average_a_copy_undoes_what_was_learnt_meanwhile():
    """Each of 240 batches adds 1: a copy keeps about one step of each slow average, half of the way about half of them."""
    found = {}
    there = lib.VirtualCluster(workers=3, slowdown=0.5, worker=lib.Node(cores=3))
    for way in tasks.SHARES:
        rule = tasks.SlowMA(lasts=8, alpha=tasks.SHARES[way])
        found[way] = lib.train(Letters(samples=240), rule, there, seed=4, save=False).summary["w"]
    assert found["copied"] < found["half"] / 2 < found["never"]


def test_entropies_less_a_bases_are_of_the_same_crew_and_seed():
    rows = [(mode, crew, 1, ne, ne + crew) for mode, ne in (("s-ma", 0.5), ("fr-ma", 0.6)) for crew in (5, 20)]
    data = pd.DataFrame(rows, columns=["protocol", "trainers", "seed", "train_ne", "ne"])
    found = quality.differences(data.assign(**{quality.ONE_COPY: data["ne"] ** 2}), "s-ma")
    theirs = found[found["protocol"] == "fr-ma"]
    assert theirs["train_ne less s-ma's"].tolist() == pytest.approx([0.1, 0.1])
    assert theirs["ne less s-ma's"].tolist() == pytest.approx([0.1, 0.1]) and set(theirs["trainers"]) == {5, 20}


def test_the_gap_by_the_papers_formula():
    """120 steps; the servers took ten copies of 1,000 bytes and gave ten."""
    moved = {"mix dense": 10_000, "mix answers": 10_000, "pull rows": 7}
    run = SimpleNamespace(summary={"bytes_by_kind": moved, "issued": 120, "sync_gap": 11.5}, steady_qps=3.0)
    assert quality.speed(run, 1000) == {"eps": 3, "gap": 11.5, "taken": 12, "taken and given": 6}


def test_what_a_run_measures_of_its_servers_is_what_they_look_up():
    """By name every table is on one server, and a sample looks up as many of its rows as its pooling says."""
    work = [0, 0, 0]
    for field, many in enumerate(placement.workload(1000, 12, 16).pooling):
        work[zlib.crc32(f"feature/{field}".encode()) % 3] += many
    by_name, by_cost = (
        lib.train(**placement.job(how, 3, 1000, tables=12, each=1), save=False) for how in ("by-group", "by-cost")
    )
    found = loads.imbalance(loads.measured(by_name))
    assert found == pytest.approx(max(work) / sum(work) * 3, rel=1e-9)
    assert found == pytest.approx(placement.predicted_imbalance("by-group", 3, 1000, 12), rel=1e-9)
    assert loads.imbalance(loads.measured(by_cost)) < loads.imbalance(loads.measured(by_name))
    assert loads.imbalance(loads.measured(by_name, "sync")) == pytest.approx(1, abs=0.01), "slices of one length"
    free = lib.train(**placement.job(placement.FREE, 3, 1000, tables=12, each=1), save=False)
    assert free.summary["virtual_seconds"] < by_cost.summary["virtual_seconds"]
    assert loads.imbalance(loads.measured(free)) == pytest.approx(loads.imbalance(loads.measured(by_cost)))


def test_modes_are_the_shadow_its_twins_and_two_controls():
    options = {"samples": 1_000, "rate": 0.1, "rows": 0.3}
    made = {mode: alphas.job(5, mode, 500, alpha=0.25, **options)["protocol"] for mode in alphas.MODES}
    assert made["s-easgd"].alpha == 0.25 and made["fr-easgd (30)"].alpha == 0.25 and made["fr-easgd (30)"].every == 30
    assert made["never"].alpha == 0 and type(made["never"]) is type(made["s-easgd"])
    task = alphas.job(5, "never", 500, **options)["workload"]
    assert (task.dense_optimizer.lr, task.row_optimizer.lr, task.world) == (0.1, 0.3, 500)


def test_what_never_trains_brings_nothing():
    run = lib.train(**alphas.job(5, "frozen", 500, samples=2_000), save=False)
    assert run.history["ne"].dropna().nunique() == 1
    figures = quality.figures(run)
    assert figures["ne"] == figures[quality.ONE_COPY] == pytest.approx(run.history["expected_ne"].dropna().iloc[0])


def test_entropy_less_a_modes_is_of_the_same_place():
    modes = (("a", 0.5), ("b", 0.75))
    rows = [(crew, mode, seed, ne + seed) for crew in (5, 20) for seed in (1, 2) for mode, ne in modes]
    data = pd.DataFrame(rows, columns=["trainers", "mode", "seed", "ne"])
    found = alphas.differences(data, ["trainers", "seed"], "a", "b")
    assert set(found.loc[found["mode"] == "b", "ne less a's"]) == {0.25}
    assert set(found.loc[found["mode"] == "a", "ne less b's"]) == {-0.25}


def test_the_mean_its_interval_and_the_smallest_effect_stand_together():
    data = pd.DataFrame({"trainers": [5] * 3, "x": [1.0, 2.0, 3.0]})
    found = alphas.intervals(data, ["x"], ["trainers"]).loc[(5, "x")]
    mean, low, _ = interval([1.0, 2.0, 3.0])
    assert found.tolist() == pytest.approx([2, mean - low, smallest_effect(mean - low, 3)])
    assert found["tells"] > found["+-"]
