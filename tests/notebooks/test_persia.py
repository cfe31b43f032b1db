"""Persia's experiments: sizes that the paper prints, a bound that its proof has, times to an AUC, and what compression keeps."""

import numpy as np
import pandas as pd
import pytest

import lib
from lib.tasks.clicks import TABLE
from lib.tasks.workload import dense_parameters
from notebooks import study
from notebooks.persia import adult, compression, convergence, scaling, tasks, theory
from tests.toys import evaluated_run

ADULT = 2_560
"""Samples of a short run on Adult."""


@pytest.mark.parametrize("task, millions", [("taobao", 12), ("avazu", 12), ("criteo", 12), ("kwai", 34)])
def test_networks_have_the_papers_dense_parameters(task, millions):
    made = tasks.SCALES[task].workload(1, 0, batch=16, steps=1)
    assert dense_parameters(made) / 1e6 == pytest.approx(millions, rel=0.08)


def test_a_small_network_takes_as_long_as_the_papers():
    """4096 samples of 12 million parameters: 6 operations each, on a device of 7 TFLOP/s; and 48 MB over 100 Gbit/s."""
    made = tasks.learning_task("criteo", 1000, world=0)
    there = tasks.small(made)
    assert there.worker.device.seconds(made.work()) == pytest.approx(6 * 12e6 * 4096 / 7e12, rel=0.1)
    assert 4 * dense_parameters(made) / there.worker.bandwidth == pytest.approx(48e6 / 12.5e9)


def test_read_ahead_rows_hide_a_slow_look_up_and_sync_waits_for_it():
    speed = {}
    for mode in ("sync", "hybrid"):
        job = tasks.speed_job("taobao", mode, 2, 0, batch=256, steps=16, wait=0.03)
        speed[mode] = lib.train(**job, save=False).steady_qps
    assert speed["hybrid"] > 2.5 * speed["sync"]


@pytest.mark.parametrize("workers, hops", [(8, 14), (16, 14 + 2)])
def test_the_parts_of_a_step_by_hand(workers, hops):
    """Of D bytes each GPU sends 7/8 twice at NVLink's rate, and a machine half twice over its interface; rows of 16 numbers with
    an id of 8 bytes come for eight at a time, one GPU's after the other's, of which the last one's go back beside the average."""
    job = tasks.speed_job("taobao", "sync", workers, 0, batch=256, steps=10)
    part, task = scaling.predict(job), job["workload"]
    size, ids = 4 * dense_parameters(task), task.batch(0, 0).ids["feature"].size
    between = size / 12.5e9 if workers > 8 else 0
    assert part["average"] == pytest.approx(2 * 7 / 8 * size / 100e9 + between + hops * 50e-6)
    assert part["rows"] == pytest.approx(8 * ids * 72 / 12.5e9)
    sync = part["compute"] + part["average"] + 2 * part["rows"]
    assert part["bound"] == pytest.approx(sync / max(part["compute"], part["average"] + part["rows"]))
    assert part["between"] == pytest.approx(between + (hops - 14) * 50e-6)
    servers = 4 * job["cluster"].server.bandwidth
    assert part["answer"] == pytest.approx((workers > 8) * part["rows"] * 12.5e9 / servers)
    assert part["own"] == pytest.approx(part["rows"] / 8) and part["own"] < part["average"]
    moments = 1e-5 + 9 * size / 700e9  # values and two moments, read and written, and as much again
    assert part["step"] == pytest.approx(moments)
    way = part["rows"] + part["answer"] + part["compute"] + part["average"] + min(part["between"], part["own"])
    hybrid = part["both"] + min(part["between"], part["rows"])
    assert part["foretold"] == pytest.approx((way + part["step"]) / (hybrid + part["step"]))
    assert max(part["compute"], part["average"]) < part["both"] < part["compute"] + part["average"] + hops * 50e-6


def test_runs_keep_to_what_is_foretold_of_even_steps():
    settings = {"few": tasks.speed_job("taobao", "sync", 8, 0, batch=4096, steps=10)}
    data, runs = scaling.check_predictions(settings, 0)
    assert data["subject"].tolist() == ["few"] and len(runs) == 2
    assert data["over foretold"].item() == pytest.approx(1, abs=0.02)


def test_all_cores_of_a_server_work_at_what_one_worker_asks():
    """As PERSIA's store does, which has a part for each thread: sync waits for no single core."""
    for workers in (8, 64):
        server = tasks.SCALES["taobao"].cluster(workers).server
        assert server.core_memory == server.memory > 200e9


def test_embedding_workers_stand_between_where_they_are_asked_for():
    data = scaling.with_slow_servers(["sync", "hybrid"], [16], [0], 0, width=64)
    assert data["between"].tolist() == [False, False, True, True] and (data["over sync"][::2] == 1).all()
    assert data["qps"][2] < data["qps"][0], "a way more"


def test_eight_gpus_share_a_machines_interface():
    cluster = tasks.SCALES["taobao"].cluster(16)
    assert [each.nodes[0] for each in cluster.uplinks] == ["worker0", "worker8"]
    assert [len(each.nodes) for each in cluster.uplinks] == [8, 8]
    assert {each.bandwidth for each in cluster.uplinks} == {12.5e9} and cluster.collective == "hierarchical"
    assert len(tasks.SCALES["taobao"].cluster(1).uplinks) == 1
    assert not tasks.SCALES["criteo-syn"].cluster(8).uplinks, "a worker there is a machine"


def test_modes_learn_and_are_judged_beside_table_2():
    places = study.grid(task=["taobao"], protocol=("sync", "hybrid", "frozen"), seed=[0])
    runs = [lib.train(**tasks.job(**place, samples=6_000), save=False) for place in places]
    data = convergence.claim_table(places, runs)
    assert list(data["subject"][:3]) == ["taobao, sync", "taobao, hybrid", "taobao, frozen"]
    assert data["staleness"][0] == 0 < data["staleness"][1]
    beside = convergence.beside_paper(data)
    assert beside.loc["taobao", "paper, hybrid"] == -0.07 and beside.loc["taobao", "paper, async"] == -0.27


def test_the_average_of_the_tasks_is_of_one_seed():
    auc = {("taobao", "sync"): 0.6, ("taobao", "hybrid"): 0.5, ("avazu", "sync"): 0.8, ("avazu", "hybrid"): 0.75}
    places = study.grid(task=["taobao", "avazu"], protocol=["sync", "hybrid"], seed=[1, 2])
    runs = [evaluated_run(auc[at["task"], at["protocol"]] + at["seed"], staleness_mean=0.0) for at in places]
    data = convergence.claim_table(places, runs).set_index(["subject", "seed"])
    assert data.loc[("average, hybrid", 2), "auc"] == pytest.approx(2.625)
    assert data.loc[("average, hybrid", 2), "auc less sync's"] == pytest.approx(-0.075)


def test_efficiency_by_hand():
    data = pd.DataFrame({"subject": "x", "seed": 1, "workers": [1, 8, 64], "qps": [10.0, 72.0, 576.0]})
    assert scaling.efficiencies(data)["efficiency"].tolist() == [0.9, 1.0]
    assert scaling.efficiencies(data)["subject"].tolist() == ["x, 1 to 8", "x, 8 to 64"]


def test_the_mean_loss_is_as_curved_as_is_said():
    """Samples drawn one by one, against the closed form; no sample's direction is steeper than 1 on average."""
    random, alpha = np.random.default_rng(0), 0.3
    features = (random.random((200_000, theory.ROWS)) < alpha) / np.sqrt(alpha * theory.ROWS)
    np.testing.assert_allclose(features.T @ features / len(features), theory.curvature(alpha), atol=2e-4)
    assert np.linalg.eigvalsh(theory.curvature(1.0))[-1] == pytest.approx(1)


def test_delay_shows_where_every_sample_has_every_id_and_not_where_few_have():
    """At the rate that the theorem gives SGD: by its own for a delay, that shows in the rate as well."""
    data = theory.run_grid([0.01, 1.0], [0, 32], 1000, range(2), delay_known=False).set_index(["alpha", "tau", "seed"])
    over, gamma = data["over no delay"], data["gamma"]
    assert (over[0.01, 0] == 1).all() and abs(over[0.01, 32] - 1).max() < 0.05 and over[1.0, 32].min() > 1.5
    assert (gamma[1.0, 32] == gamma[1.0, 0]).all(), "whatever the delay"


def test_learning_rates_of_the_theorem_keep_its_bound():
    data = theory.run_grid([0.1, 1.0], [0, 16], 500, range(2))
    assert (data["of the bound"] < 1).all()
    assert theory.rate(100, 0, 1.0, 1.0, 0.0) == 1 and theory.rate(100, 2, 0.5, 1.0, 0.2) == 1 / (1 + 2 + 4)


def test_lemma_1_by_hand():
    """Four of eight ids in each sample: alpha and features are 1 / 2, a sample's curvature is 4 / 4, and the mean's alpha."""
    found = theory.lemma([0, 1]).set_index(["subject", "seed"])
    four = found.loc[("4 of 8 ids", 0)]
    assert four[["alpha", "L", "L of the mean", "of alpha L"]].tolist() == pytest.approx([0.5, 1, 0.5, 1])
    assert found.loc[("1 of 8 ids", 0), "alpha"] == pytest.approx(1 / 8)
    unequal = found.loc["unequal ids"]
    assert unequal["of alpha L"].nunique() == 2 and (unequal["of alpha L"] < 1).all()


@pytest.mark.parametrize("size", [64, 2000])
def test_indices_are_as_many_bytes_as_is_said_and_lose_nothing(size):
    """8 bytes an entry against 2, and 10 for each distinct id: less than four times, however skewed."""
    found = compression.indices(size, 1.4, 0)
    assert found["lossless"] == 1 and found["ratio"] == pytest.approx(found["predicted"]) and found["ratio"] < 4


def test_codecs_promise_their_bytes():
    places = study.grid(subject=[*compression.CODECS, "frozen"], seed=[0])
    runs = [lib.train(**compression.compressed_job(**place, samples=2_000), save=False) for place in places]
    found = compression.claim_table(places, runs)
    assert found["over the promise"].tolist() == pytest.approx([1] * len(places))
    assert found["bytes over fp32"].iloc[1] == pytest.approx(40 / 72)
    lost = compression.errors(4096, 0).set_index("codec")
    assert lost.loc["scaled fp16", "share lost"] == 0 < lost.loc["fp16", "share lost"]


def test_what_late_rows_lose_is_a_share_of_what_training_brings():
    """By hand: 0.8 without delay and 0.5 untrained; 0.74 is a fifth of 0.3 below."""
    places = study.grid(ids=[30], tau=(0, 64, theory.FROZEN), seed=[0])
    runs = [
        evaluated_run(auc, staleness_mean=late, issued=1600) for auc, late in ((0.8, 0.0), (0.74, 480.0), (0.5, 0.0))
    ]
    found = theory.clicks_table(places, runs).set_index("tau")
    assert found["lost"].tolist() == pytest.approx([0, 0.2]) and found.loc[64, "alpha tau / T"] == pytest.approx(0.01)
    assert found.loc[64, "subject"] == "one of 30, tau 64"


def test_an_id_is_in_one_of_as_many_samples_as_a_field_has_ids():
    task = theory.clicks_job(30, 64, 3, 2_560)["workload"]
    ids = np.concatenate([task.batch(0, index).ids["feature"] for index in range(4)])
    assert len(np.unique(ids)) == 30 * task.fields and task.world == 3


def test_runs_are_held_against_sync_of_their_seed():
    places = study.grid(task=["taobao"], protocol=("sync", "hybrid", "async (32)", "frozen"), seed=[0])
    runs = [lib.train(**tasks.job(**place, samples=8_000, evaluations=4), save=False) for place in places]
    data = convergence.time_to_auc(places, runs).set_index("protocol")
    assert list(data.index) == ["sync", "hybrid", "async (32)"] and data.loc["sync", "times as fast as sync"] == 1
    ends = [run.quality("expected_auc") for run in runs]
    assert data["goal"].tolist() == [pytest.approx(ends[0] - 0.1 * (ends[0] - ends[3]))] * 3
    assert 0 < data.loc["sync", "seconds"] < runs[0].summary["virtual_seconds"]
    assert data.loc["async (32)", "times as fast as sync"] == 0 < data.loc["hybrid", "times as fast as sync"]


def test_a_slow_look_up_holds_sync_up_and_not_the_hybrid():
    pace = {}
    for mode in ("sync", "hybrid"):
        usual, slow = (convergence.slow_server_job("taobao", mode, 0, wait, samples=8_000) for wait in (0.0, 0.03))
        assert usual == tasks.job("taobao", mode, 0, samples=8_000)
        pace[mode] = [lib.train(**job, save=False).summary["virtual_seconds"] for job in (usual, slow)]
    steps = 8_000 / 64 / 8
    assert pace["sync"][1] - pace["sync"][0] > steps * 0.03 and pace["hybrid"][1] - pace["hybrid"][0] < steps * 0.01


def test_rarer_ids_have_fewer_samples_each():
    found = convergence.by_rareness(["sync", "hybrid"], (1, 16), [0], 2_000)
    assert (found["sync"] == 0).all() and found["hybrid"].notna().all()
    assert found.index[0] > 1.4 * found.index[1]


def test_the_task_has_adults_shape():
    """Eight categorical columns with 102 values and six numbers; a pass is 254 steps of four batches of 32, and one begun."""
    task = adult.task(adult.TRAINING, 0)
    batch = task.batch(0, 0, task.batch_size)
    assert batch.where[TABLE].shape == (32, 8) and batch.features["dense"].shape == (32, 6)
    assert sum(adult.FIELDS.values()) == 102 and task.batches() == 254 * 4 + 2
    many = task.clicks.draw(20_000, seed=0, day=0)
    assert len(np.unique(many.ids)) <= 102 and abs(many.labels.mean() - adult.EARN_MORE) < 0.02


def test_sync_is_the_same_in_threads_and_the_hybrid_learns_in_both():
    kept = {
        (mode, threads): lib.train(**adult.job(mode, 0, ADULT, threads=threads), save=False)
        for mode in ("sync", "hybrid")
        for threads in (False, True)
    }
    assert kept["sync", False].digest == kept["sync", True].digest
    assert all(run.summary["auc"] > 0.6 and run.summary["samples"] == ADULT for run in kept.values())
    assert kept["hybrid", False].summary["staleness_max"] > 0 == kept["sync", True].summary["staleness_max"]
