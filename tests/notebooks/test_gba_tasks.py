"""The scaled cluster of GBA's studies against the account of the paper that its settings give."""

from dataclasses import replace

import pytest

import lib
from notebooks.gba import tasks


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=tasks.TASKS)
def test_moving_the_dense_vector_takes_the_stated_share_of_a_batch_of_async(task):
    workload = replace(task.workload("smoke"), batch_size=task.lone)
    vector = sum(part.nbytes for part in workload.model(0).state_dict().values())
    worker = task.cluster("smoke", "async").worker
    assert 2 * vector / worker.bandwidth / a_batch(worker, workload) == pytest.approx(0.05)
    twice = replace(task, moving=0.1).cluster("smoke", "async").worker
    assert a_batch(twice, workload) == pytest.approx(a_batch(worker, workload) / 2)


def a_batch(worker, workload):
    """Seconds to make it and to compute its gradient."""
    return worker.seconds(workload.work()) + worker.reading * workload.batch_size


@pytest.mark.parametrize("held", [0.2, 1.0])
def test_parameters_are_held_for_a_share_of_a_batch_that_takes_its_time_whatever_that_is(held):
    task = tasks.TASKS["private"]
    workload, crew = replace(task.workload("smoke"), batch_size=64), 2 * task.others[0]
    one, many = (task.cluster("smoke", "gba", workers=workers, held=held).worker for workers in (None, crew))
    assert one.seconds(workload.work()) / a_batch(one, workload) == pytest.approx(held)
    assert a_batch(one, workload) == pytest.approx(a_batch(task.cluster("smoke", "gba").worker, workload))
    assert a_batch(many, workload) == pytest.approx(2 * a_batch(one, workload)), "half a worker's machine each"


PRINTED = {"criteo": (32, 100, 40, 12.8, 5), "alimama": (32, 128, 3, 0.75, 1), "private": (64, 400, 6.4, 1, 1)}
"""Tab. 5.1: workers of Sync and of the others, and thousands of samples a step of Sync, GBA and Async."""


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=tasks.TASKS)
@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_workers_and_local_batches_have_the_ratios_of_the_papers_table(task, profile):
    few, many, sync, gba, lone = PRINTED[task.name]
    phases = {mode: task.at(profile).phase(mode) for mode in (*tasks.MODES, "one worker")}
    assert {phases[mode].batch_size for mode in ("sync", "hop-bs", "bsp", "hop-bw")} == {task.at(profile).sync[1]}
    assert phases["gba"].batch_size / phases["sync"].batch_size == pytest.approx(gba / sync, rel=0.25)
    assert phases["async"].batch_size / phases["sync"].batch_size == pytest.approx(lone / sync, rel=0.05)
    assert {phases[mode].workers for mode in ("async", "hop-bs", "bsp", "hop-bw", "gba")} == {phases["gba"].workers}
    assert phases["gba"].workers / phases["sync"].workers == pytest.approx(many / few)
    together = [phases[mode].workers * phases[mode].batch_size for mode in ("sync", "gba")]
    assert together[0] == pytest.approx(together[1], rel=0.03 if profile == "full" else 1e-9)
    assert phases["one worker"] == replace(phases["async"], workers=1)


@pytest.mark.parametrize("name, bsp, hop_bw", [("criteo", 0.62, 2.5), ("alimama", 0.62, 3.4), ("private", 0.78, 4.7)])
def test_aggregated_batches_beside_syncs_are_the_papers(name, bsp, hop_bw):
    task = tasks.TASKS[name].at("laptop")
    (few, _), (many, _) = task.sync, task.others
    assert task.rule("bsp").size / few == pytest.approx(bsp, rel=0.05)
    assert (many - task.rule("hop-bw").spare) / few == pytest.approx(hop_bw, rel=0.02)


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=tasks.TASKS)
def test_sync_has_the_hardware_of_the_other_modes(task):
    ours, others = task.cluster("smoke", "sync"), task.cluster("smoke", "gba")
    assert ours.server == others.server
    assert (ours.workers, others.workers) == (task.sync[0], task.others[0])
    for name in ("flops", "bandwidth"):
        assert ours.workers * getattr(ours.worker, name) == pytest.approx(others.workers * getattr(others.worker, name))


def test_more_workers_bring_their_nodes_and_servers_where_each_is_one():
    task = tasks.TASKS["private"]
    few, many = (task.cluster("smoke", "gba", workers=count, each=True) for count in (100, 800))
    assert few.worker == many.worker
    assert many.server.bandwidth == pytest.approx(8 * few.server.bandwidth)
    assert few.servers * few.server.bandwidth == pytest.approx(12 * 25e9 / 8)


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_run_for_its_throughput_has_as_many_batches_for_each_worker(name):
    """Then the draws of slowdowns that two modes meet are the same, though Async's batches have another size."""
    task = tasks.TASKS[name]
    for mode in tasks.MODES:
        job = task.speed_job("smoke", mode, 0, 0.6, 3)
        (phase,) = job["protocol"].phases
        assert job["workload"].samples == 3 * job["cluster"].workers * phase.batch_size


def test_a_run_without_slowdowns_takes_the_time_of_its_batches():
    """Two updates of Sync: each is a batch, plus moving the vector in a few per cent of the time."""
    task = tasks.TASKS["criteo"]
    job = task.speed_job("smoke", "sync", 0, 0.0, 2)
    batch = a_batch(job["cluster"].worker, task.workload("smoke"))
    seconds = lib.train(**job).summary["virtual_seconds"]
    assert 2 * batch < seconds < 2 * batch * 1.1
