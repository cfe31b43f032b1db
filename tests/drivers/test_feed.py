import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import LocalCluster, VirtualCluster, workloads
from lib.drivers.plan import split_batches
from lib.drivers.record import PartLog, check_batches_taken
from lib.drivers.trainer import BatchSource, OwnBatches, WorkQueue, own_batches
from lib.errors import BadOption, LockstepError
from tests.toys import clicks

KINDS = ("split", "stream", "queue")
BOWL = workloads.get("quadratic", samples=32 * 61)


def read(take, make, until, ahead, tasks):
    """The batches of a worker that takes and makes them like this."""
    asking, plan = BatchSource.__new__(BatchSource), SimpleNamespace(ahead=ahead)
    trainer, site = SimpleNamespace(record=PartLog("", None)), SimpleNamespace(now=lambda: 0.0)
    asking._take, asking._make, asking._plan, asking._trainer, asking._site = take, make, plan, trainer, site
    return asking.batches(until, tasks)


def feeds(kind, workers, batches, parts=()):
    if kind == "queue":
        return [WorkQueue(None, batches)] * workers
    return [own_batches(kind, rank, workers, batches, parts) for rank in range(workers)]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    workers=st.integers(1, 7),
    batches=st.integers(0, 40),
    pauses=st.lists(st.integers(0, 40), max_size=3),
    order=st.randoms(use_true_random=False),
    parts=st.lists(st.integers(0, 5), min_size=7, max_size=7),
)
def test_every_batch_is_taken_exactly_once_whoever_asks_when(kind, workers, batches, pauses, order, parts):
    shares = parts[:workers] if kind == "stream" and sum(parts[:workers]) else ()
    given, taken = feeds(kind, workers, batches, shares), []
    end = workers * max(size for _, size in split_batches(batches, workers, shares)) if kind != "queue" else batches

    async def drain():
        for until in [*sorted(min(pause, end) for pause in pauses), end]:
            asking = list(range(workers))
            while asking:
                rank = order.choice(asking)
                index = await given[rank].take(until) if batches else None
                if index is None:
                    asking.remove(rank)
                else:
                    taken.append(index)
            assert len(taken) <= until if kind != "split" else max(taken, default=0) < max(until, 1)

    asyncio.run(drain())
    check_batches_taken(taken, batches)


def test_stretches_by_hand():
    assert split_batches(10, 3) == [(0, 3), (3, 4), (7, 3)]
    assert split_batches(10, 3, (1, 0, 4)) == [(0, 2), (2, 0), (2, 8)]
    with pytest.raises(BadOption, match="a share of 0 or more for each of the 3 workers"):
        split_batches(10, 3, (1, 2))


@pytest.mark.parametrize(
    "taken, sentence",
    [([0, 2], r"never: \[1\]"), ([0, 1, 1, 2], r"more than once: \[1\]"), ([0, 1, 2, 3], r"are none: \[3\]")],
)
def test_accounting_catches_what_is_lost_and_what_is_doubled(taken, sentence):
    with pytest.raises(LockstepError, match=sentence):
        check_batches_taken(taken, 3)


@pytest.mark.parametrize("ahead", [1, 3])
async def test_no_more_than_asked_for_is_made_ahead(ahead):
    made, most, used = [], 0, 0

    async def make(index):
        made.append(index)
        return index

    async with asyncio.TaskGroup() as tasks:
        async for _ in read(own_batches("split", 0, 1, 12).take, make, 12, ahead, tasks):
            await asyncio.sleep(0.001)
            most = max(most, len(made) - used)
            used += 1
    # What is used now, what lies ready, and the one that waits for room.
    assert len(made) == 12 and most == ahead + 2


async def test_an_error_while_reading_ahead_comes_through():
    async def make(index):
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            async for _ in read(own_batches("split", 0, 1, 5).take, make, 5, 2, tasks):
                pass
    assert caught.group_contains(ZeroDivisionError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["sync", "async", "gba", "ds-sync", "s-easgd"])
def test_any_rule_takes_any_feed(kind, rule):
    run = lib.train(BOWL, rule, VirtualCluster(workers=5, slowdown=0.5), feed=kind, save=False)
    assert run.summary["samples"] == BOWL.samples and run.summary["issued"] == 61


def counts(run):
    computed = run.trace[run.trace["kind"] == "compute"]
    return computed.groupby("node").size().reindex([f"worker{rank}" for rank in range(4)], fill_value=0).tolist()


def test_a_queue_gives_fast_workers_more_and_nobody_all():
    speeds = (4.0, 2.0, 1.0, 1.0)
    workload = workloads.get("ctr-synthetic", samples=128 * 160, hidden=(512, 256), evaluation_samples=200)
    run = lib.train(workload, "async", VirtualCluster(workers=4, speeds=speeds), feed="queue", save=False)
    fast, middle, *slow = counts(run)
    assert fast > 1.5 * middle > 2 * max(slow) and min(slow) > 5 and fast < 120
    even = lib.train(workload, "async", VirtualCluster(workers=4, speeds=speeds), feed="split", save=False)
    assert counts(even) == [40] * 4


def test_stretches_may_differ_and_end_early():
    cluster = VirtualCluster(workers=4)
    for rule in ("sync", "ds-sync"):
        run = lib.train(BOWL, rule, cluster, feed="stream", partitions=(1, 0, 2, 3), save=False)
        assert counts(run) == [10, 0, 20, 31]
        assert run.trace.query("kind == 'compute' and node == 'worker2'")["batch"].tolist() == list(range(10, 30))


def test_reading_ahead_changes_no_bit():
    workload = clicks(2_000, 128)
    runs = [lib.train(workload, "sync", VirtualCluster(workers=3), prefetch=ahead, save=False) for ahead in (0, 3)]
    real = lib.train(workload, "sync", LocalCluster(workers=3), prefetch=2, save=False)
    assert runs[0].digest == runs[1].digest and real.summary["input_seconds"] >= 0
    assert runs[0].summary["auc"] == pytest.approx(real.summary["auc"], abs=1e-4)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"feed": "random"}, "feed must be 'rule', 'split', 'stream' or 'queue', not 'random'"),
        ({"partitions": (1, 2)}, "partitions are for feed='stream'"),
        ({"feed": "stream", "partitions": (1, 2)}, "for each of the 4 workers"),
        ({"feed": "stream", "partitions": "12"}, "partitions must be a list"),
        ({"prefetch": -1}, "prefetch must be 0 or more"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(BadOption, match=sentence):
        lib.train(BOWL, "sync", "virtual", save=False, **options)


@pytest.mark.parametrize("options", [{"feed": "queue"}, {"prefetch": 2}, {"reader_nodes": 1}])
def test_a_pipeline_says_that_it_has_readers_of_its_own(options):
    with pytest.raises(BadOption, match="oac drives one device, whose readers take the batches in order"):
        lib.train("kg-synthetic", "oac", "virtual", save=False, **options)


def test_who_goes_on_beyond_a_batch_takes_the_next_of_its_own():
    """Of the batches 3, 7, 11, 15, ... the one after 11; and the step counts where it is farther."""

    def following(steps, beyond):
        own = OwnBatches(first=3, size=10, stride=4, workers=4)
        own.resume_after(steps, beyond)
        return asyncio.run(own.take(400))

    places = [(0, 11), (1, 11), (5, 11), (0, -1), (2, -1)]
    assert [following(*place) for place in places] == [15, 15, 23, 3, 11]
