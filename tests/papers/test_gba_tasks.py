"""The scaled cluster of GBA's studies against the account of the paper that its settings give."""

from dataclasses import replace

import pytest

import lib
from lib.papers.gba import tasks


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=tasks.TASKS)
def test_moving_the_dense_vector_takes_the_stated_share_of_a_batch_of_async(task):
    workload = replace(task.workload("smoke"), batch_size=task.lone)
    vector = sum(part.nbytes for part in workload.model(0).state_dict().values())
    worker = task.cluster("smoke", "async").worker
    assert 2 * vector / worker.bandwidth / worker.seconds(workload.work()) == pytest.approx(0.05)
    twice = replace(task, moving=0.1).cluster("smoke", "async").worker
    assert twice.seconds(workload.work()) == pytest.approx(worker.seconds(workload.work()) / 2)


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
    batch = job["cluster"].worker.seconds(task.workload("smoke").work())
    seconds = lib.train(**job).summary["virtual_seconds"]
    assert 2 * batch < seconds < 2 * batch * 1.1
