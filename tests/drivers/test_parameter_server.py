"""A server at work: its updates side by side or in order, what gates and pulls wait for, and what staleness counts."""

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

import lib
from lib import LocalCluster, Node, RowStore, VirtualCluster, protocols
from lib.cluster.spec import Work
from lib.drivers.parameter_server import ParameterServer
from lib.drivers.plan import Plan
from lib.drivers.record import EvalPoint
from lib.drivers.shard import Gradient, Shard, _mean
from lib.store.dense import DenseStore
from lib.store.optim import SGD
from lib.store.table import Table
from lib.tasks.workload import TableSpec
from tests.toys import Letters

FAST = {"latency": 0.0, "bandwidth": 1e30}
A = np.array([ord("a")])


@dataclass(frozen=True, kw_only=True)
class Wide(Letters):
    """A few rows, each so wide that a thread is busy with it for a while."""

    name: ClassVar[str] = "wide"

    row_optimizer: SGD = field(default=SGD(lr=1.0))
    dim: int = 16_384

    def tables(self):
        return {"letter": TableSpec(self.dim, 0.0)}


def served(workload, rule, cluster, steps, **options):
    """What a server of rows wrote down, once `steps(server, world)` are over."""
    fixed = {"workers": cluster.workers, "servers": 1, "seed": 0, "on_nan": "stop", "trace": True}

    async def main(world):
        plan = Plan(workload=workload, protocol=rule, **fixed, **options)
        part = await world.host(ParameterServer, plan, rule, 0, frozenset({"rows"}), node="server0")
        await steps(part, world)
        return await part.report(EvalPoint(0, None))

    return cluster.open(0, cluster.workers).run(main)


def after(steps, workers=2, name="sync", **options):
    """The same of letters, of which workers push the first."""
    rule = protocols.get(name, **options)
    return served(Letters(), rule, VirtualCluster(workers=workers), lambda part, _: steps(part))


def pushed(worker, batch, ids=A, dim=1, token=0):
    """Ones for these rows."""
    return Gradient(worker, token, batch, 1, None, {"letter": (ids, np.ones((ids.size, dim), np.float32))})


def pull(part, worker, batch):
    return part.pull(worker, batch, {"letter": A})


async def step(part, worker, batch=0):
    await pull(part, worker, batch)
    await part.push(pushed(worker, batch))


@pytest.mark.parametrize("lanes, load", [(1, 0.7), pytest.param(4, 0.7, marks=pytest.mark.nightly), (8, 0.8)])
def test_poisson_pushes_wait_as_in_an_m_d_c_queue(lanes, load, pushes=25_000):
    """Crommelin (1932): what is in the system a service later is what arrived meanwhile, and what no lane had room for."""
    counts = np.arange(400)
    shares = np.eye(1, counts.size)[0]
    arriving = stats.poisson(load * lanes).pmf(counts)
    for _ in range(2_000):
        left = np.append(shares[: lanes + 1].sum(), shares[lanes + 1 :])
        shares = np.convolve(left, arriving)[: counts.size]
    expected = (shares * np.maximum(counts - lanes, 0)).sum() / (load * lanes)  # Little's law, in services
    work = 3 * 4.0  # bytes that an update of one float moves
    server = Node(cores=lanes, core_memory=work, **FAST)  # so that it takes a second

    async def arrive(part, world):
        part = part.bind(world.site("server0"))  # calls from the node itself take no time
        stream = np.random.default_rng(1)
        for batch in range(pushes):
            await part.pull(0, batch, {"letter": A[:0]})
        async with asyncio.TaskGroup() as sending:
            for batch in range(pushes):
                await asyncio.sleep(stream.exponential(1 / (load * lanes)))
                sending.create_task(part.push(pushed(0, batch)))

    record = served(Letters(), protocols.get("async"), VirtualCluster(workers=1, server=server), arrive)
    waits = [end - start - 1 for kind, start, end, *_ in record.spans if kind == "apply"]
    assert len(waits) == pushes
    assert np.mean(waits) == pytest.approx(expected, rel=0.05)


def applied(protocol, cores, workload="criteo-deepfm", **options):
    """When each update of a run with a slow server began and ended, in the order in which they did."""
    server = Node(cores=cores, core_memory=2e8)
    cluster = VirtualCluster(workers=16, slowdown=0.6, server=server)
    small = {"samples": 64 * 160, "evaluation_samples": 100, "vocabulary": 200}
    run = lib.train(workload, protocol, cluster, batch_size=64, save=False, **small, **options)
    spans = run.trace.query("kind == 'apply'")[["start", "end"]].to_numpy()
    return run, spans


@pytest.mark.parametrize("name, options", [("async", {}), ("hop-bs", {}), ("bsp", {"size": 1})])
def test_updates_of_one_gradient_run_side_by_side(name, options):
    slow, _ = applied(protocols.get(name, **options), cores=1)
    fast, spans = applied(protocols.get(name, **options), cores=8)
    assert (spans[1:, 0] < np.maximum.accumulate(spans[:, 1])[:-1]).mean() > 0.5
    assert fast.summary["qps"] > 2.5 * slow.summary["qps"]


@pytest.mark.parametrize("name", ["sync", "bsp", "gba", "hop-bw"])
def test_updates_of_several_gradients_follow_one_another(name):
    rule = protocols.get(name) if name in ("sync", "hop-bw") else protocols.get(name, size=4)
    run, spans = applied(rule, cores=8)
    assert (spans[1:, 0] >= spans[:-1, 1]).all()
    assert run.summary["issued"] == 160


def test_a_pull_does_not_wait_for_an_update_that_its_rule_does_not_make_it_wait_for():
    """A worker reads the parameters while others' update is under way; under Sync none does."""

    def reads_during_updates(name):
        run, spans = applied(protocols.get(name), cores=8)
        answered = run.trace.query("kind == 'pull'")["end"].to_numpy()
        return sum(((spans[:, 0] < end) & (end < spans[:, 1])).any() for end in answered)

    assert reads_during_updates("bsp") > 0
    assert reads_during_updates("sync") == reads_during_updates("hop-bw") == 0


@pytest.mark.parametrize("kind", [VirtualCluster, LocalCluster])
@pytest.mark.parametrize("name", ["async", "hop-bs", "bsp", "gba"])
def test_a_lone_worker_always_reads_what_it_has_pushed(kind, name):
    """Batches of 4 rows of 64 kB: large enough for threads."""
    options = {"size": 1} if name in ("bsp", "gba") else {}
    run = lib.train(Wide(samples=60), protocols.get(name, **options), kind(workers=1), save=False)
    assert run.summary["staleness"] == {"0": 60}


@pytest.mark.parametrize("name", ["async", "bsp", "gba"])
def test_a_lone_worker_reads_nothing_while_its_own_update_is_under_way(name):
    """On a server with lanes to spare, where the update takes long."""
    options = {"size": 1} if name in ("bsp", "gba") else {}
    slow = VirtualCluster(workers=1, server=Node(cores=8, core_memory=2e8))
    run = lib.train(Wide(samples=20), protocols.get(name, **options), slow, save=False)
    updates = run.trace.query("kind == 'apply'")[["start", "end"]].to_numpy()
    answered = run.trace.query("kind == 'pull'")["end"].to_numpy()
    assert len(updates) == len(answered) == 20
    assert not any(((updates[:, 0] < end) & (end < updates[:, 1])).any() for end in answered)


def updates_lost(locking, pushes=300):
    """Hundreds of pushes at once add one to every number of the same four rows: a number that ends short has lost updates."""
    workload, ids = Wide(dim=2**18), np.arange(4)

    async def push(part, world):
        for batch in range(pushes):
            await part.pull(0, batch, {"letter": ids})
        one = pushed(0, 0, ids, workload.dim)
        await asyncio.gather(*(part.push(replace(one, batch=batch)) for batch in range(pushes)))

    cluster = LocalCluster(workers=1, threads=4)
    record = served(workload, protocols.get("async"), cluster, push, store=RowStore(locking=locking))
    assert record.ledger["applied"] == pushes
    rows = -record.final["rows"]["letter"].values
    assert rows.max() <= pushes
    return int((pushes - rows).sum())


def test_rows_with_locks_lose_no_update_and_without_some_are_lost():
    """Whether two threads meet in a row is up to the machine: on a busy one it takes a few tries."""
    assert updates_lost("table") == 0
    assert any(updates_lost("none") for _ in range(30))


class TestAWorkerThatAsksAgain:
    """For the same step, since the embedding worker that brought its request died with the reply."""

    def test_starts_it_once_and_reads_what_is_there_by_then(self):
        async def steps(part):
            first = await pull(part, 0, 0)
            await step(part, 0, 1)
            again = await pull(part, 0, 0)
            assert again.token == first.token == 0 and again.rows["letter"] != first.rows["letter"]
            await part.push(pushed(0, 0))

        record = after(steps, 1, "async")
        assert record.ledger["started"] == record.ledger["applied"] == 2
        assert [age for _, age, _ in record.staleness] == [0, 0], "what it read last is what it was computed from"

    def test_takes_its_own_place_at_the_gate(self):
        async def steps(part):
            await step(part, 0, 0)
            before, again = (asyncio.ensure_future(pull(part, 0, 2)) for _ in range(2))
            assert await before is None
            await step(part, 1, 1)
            assert (await again).token == 1

        assert after(steps).ledger["started"] == 3

    def test_gives_up_a_gradient_that_nobody_waits_for_then(self):
        async def steps(part):
            for worker in (0, 1):
                await pull(part, worker, worker)
            await part.push(replace(pushed(0, 0), rows={}, void="abandoned"))
            await part.push(pushed(1, 1))
            await part.push(replace(pushed(1, 1), rows={}, void="abandoned"))  # it was here after all

        ledger = after(steps).ledger
        assert (ledger["started"], ledger["abandoned"], ledger["applied"], ledger["dropped"]) == (2, 1, 1, 0)


class TestALostWorker:
    """Two workers under Sync; worker 0 dies, and the other goes on."""

    def test_does_not_wait_at_a_gate_any_more(self):
        async def steps(part):
            await step(part, 0, 0)
            waiting = asyncio.ensure_future(pull(part, 0, 2))
            await asyncio.sleep(1)
            await part.note_change(0, "dies")
            assert await waiting is None
            await step(part, 1, 1)
            await step(part, 1, 3)

        record = after(steps)
        assert (record.ledger["started"], record.ledger["applied"]) == (3, 3)

    def test_what_it_had_started_is_lost_and_is_not_applied_when_it_arrives(self):
        async def steps(part):
            await pull(part, 0, 0)
            await part.note_change(0, "dies")
            await part.push(pushed(0, 0))
            await step(part, 1, 1)

        record = after(steps)
        assert (record.ledger["lost"], record.ledger["applied"], record.used) == (1, 1, [1])
        assert record.ledger["in_flight"] == 0


@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_that_pauses_is_waited_for_only_while_another_may_start(workers):
    """Under bounded staleness with bound 0: at the pause worker 1 has made no step, and worker 0 has made one."""

    async def steps(part):
        await step(part, 0)
        await part.note_change(1, "pauses")
        second = asyncio.ensure_future(step(part, 0, 1))
        await asyncio.sleep(1)
        assert second.done() == (workers == 2)
        if workers == 3:
            await step(part, 2)
        await second

    assert after(steps, workers, "hop-bs", bound=0).ledger["applied"] == workers


def test_reading_and_updating_cost_the_numbers_that_they_touch():
    """Read and sent: eight bytes a number; read, summed and written: twelve."""
    shard = object.__new__(Shard)
    shard._store, shard.tables = RowStore(), {"t": Table(3, SGD(lr=1.0), seed=0)}
    shard.dense, shard._size = DenseStore(np.zeros(10, np.float32), SGD(lr=1.0)), 10
    ids = np.arange(5)
    message = {"t": shard._store.encode_request(ids, ids, slice(None))}
    assert shard.decode_requests(message, with_dense=True)[1] == Work(bytes=8 * (3 * 5 + 10))
    assert shard.decode_requests(message, with_dense=False)[1] == Work(bytes=8 * 3 * 5)
    gradient = SimpleNamespace(dense=np.zeros(10, np.float32), rows={"t": (ids, None)})
    assert shard.update_cost(SimpleNamespace(gradients=[gradient])) == Work(bytes=12 * (3 * 5 + 10))


def test_a_weighted_mean_by_hand():
    grads = [np.float32([2, 6]), np.float32([4, 8]), np.float32([100, 100])]
    assert _mean(grads, [0.5, 1, 0], 2).tolist() == [2.5, 5.5]
    assert _mean(grads, [2, 1, 0], 4).tolist() == [2, 5]
    assert [each.tolist() for each in grads] == [[2, 6], [4, 8], [100, 100]], "they are read alone"
