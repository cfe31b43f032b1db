"""Embedding workers: who trains never sees an id, learns the same, and goes on when one dies; what that held is counted."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, Node, VirtualCluster, protocols
from lib.cluster.base import nbytes
from lib.cluster.spec import Work
from lib.drivers.embedding_worker import EmbeddingWorker
from lib.drivers.record import PartLog
from lib.drivers.server_worker import embedding_worker_of, first_sample
from lib.drivers.workers import EmbeddingWorkers
from lib.errors import BadOption, NodeLost
from lib.protocols import Pair
from lib.store import checkpoint
from tests.toys import clicks, records
from tests.training.stopping import assert_same, killed

CLICKS = clicks(16 * 41 - 5, 16, evaluation_samples=100)
BAGS = {"vocabularies": (20, 200, 60), "pooling": (1, 6, 3), "dim": 4, "evaluation_samples": 100}
BAGS = clicks(24 * 20, 24, network="dlrm", **BAGS)
[TABLE] = CLICKS.tables()
SLOW = {"embedding0": Node(latency=5e-3)}


def train(workload, protocol, cluster=None, embedding_workers=2, **options):
    cluster = cluster or VirtualCluster(workers=3, servers=2, slowdown=0.3)
    return lib.train(workload, protocol, cluster, embedding_workers=embedding_workers, save=False, **options)


def test_the_first_byte_of_a_sample_id_says_who_holds_it():
    assert first_sample(3, 0).to_bytes(8) == bytes([3, 0, 0, 0, 0, 0, 0, 0])
    assert (first_sample(255, 2) + 5).to_bytes(8) == bytes([255, 0, 2, 0, 0, 0, 0, 5])
    assert embedding_worker_of(first_sample(255, 0xFFFF) + 2**40 - 1) == 255


@settings(deadline=None, max_examples=8)
@example(name="async", embedding_workers=2, servers=2, readers=0, slow=False)
@example(name="async", embedding_workers=2, servers=2, readers=0, slow=True)
@given(
    name=st.sampled_from(["sync", "async", "gba", "hop-bs", "all-reduce", "hybrid", "fr-easgd", "ds-sync"]),
    embedding_workers=st.integers(1, 3),
    servers=st.integers(1, 3),
    readers=st.integers(0, 1),
    slow=st.booleans(),
)
def test_one_worker_learns_the_same_by_them_to_the_bit(name, embedding_workers, servers, readers, slow):
    """An embedding worker that is slow would bring a push later than the pull that follows it by another."""
    options = {"tau": 0} if name == "hybrid" else {}
    rule = protocols.get(name, **options)
    if name == "ds-sync":  # whose rows are the replicas'
        rule = Pair(sparse=protocols.get("async"), dense=rule)
    elif rule.dense is rule.sparse:
        rule = Pair(sparse=protocols.get(name), dense=rule)  # so that rows have servers of their own either way
    there = VirtualCluster(workers=1, servers=servers, nodes=SLOW if slow else {})
    alone = train(CLICKS, rule, VirtualCluster(workers=1, servers=servers), embedding_workers=0)
    served = train(CLICKS, rule, there, embedding_workers=embedding_workers, reader_nodes=readers)
    assert served.digest == alone.digest and served.summary["auc"] == alone.summary["auc"]
    assert served.summary["abandoned"] == 0 and "abandoned" not in alone.summary


@pytest.mark.parametrize("name", ["sync", "all-reduce"])
@pytest.mark.parametrize("nodes", [{}, SLOW], ids=["alike", "one slow"])
def test_workers_in_step_learn_the_same_by_them_to_the_bit(name, nodes):
    rule = Pair(sparse=protocols.get("sync"), dense=protocols.get(name))
    alone = train(CLICKS, rule, VirtualCluster(workers=3, servers=2, nodes=nodes), embedding_workers=0)
    for many in (1, 2):
        served = train(CLICKS, rule, VirtualCluster(workers=3, servers=2, nodes=nodes), embedding_workers=many)
        assert served.digest == alone.digest


def test_dense_parameters_and_rows_of_one_rule_have_servers_apart():
    there = VirtualCluster(workers=3, servers=2)
    together, apart = (train(CLICKS, "sync", there, many, keep=True) for many in (0, 2))
    assert np.array_equal(apart.model.dense["values"], together.model.dense["values"])
    assert np.array_equal(apart.model.rows[TABLE].values, together.model.rows[TABLE].values)


def test_each_hop_is_counted_once_and_no_id_comes_to_a_worker():
    runs = [train(CLICKS, "all-reduce", embedding_workers=many, reader_nodes=1) for many in (0, 2)]
    alone, served = (run.summary["bytes_by_kind"] for run in runs)
    batches = [CLICKS.batch(0, index) for index in range(CLICKS.batches())]
    ids = sum(batch.ids[TABLE].nbytes for batch in batches)
    rows = sum(batch.ids[TABLE].size * 4 * CLICKS.tables()[TABLE].dim for batch in batches)
    assert served["dispatched"] == sum(map(nbytes, batches)) - ids == served["batches"] - ids
    assert served["embeddings"] == served["pull rows"] == rows
    assert rows == served["embedding gradients"] == served["push rows"] - ids
    assert {kind: served[kind] for kind in alone} == alone


def test_multi_hot_fields_are_summed_where_the_ids_are():
    """Rows as they are between servers and embedding workers, a sum a field from there on, in half precision."""
    halves = {"rows": "fp16", "gradients": "fp16"}
    plain, there = train(BAGS, "hybrid", embedding_workers=0), VirtualCluster(workers=3, servers=2, slowdown=0.3)
    for store in ({}, halves, {"pooling": "server"}):
        told = train(BAGS, "hybrid", there, store=lib.RowStore(**store)).summary
        sums = BAGS.samples * 3 * 4 * (2 if store is halves else 4)
        moved = told["bytes_by_kind"]
        assert moved["embeddings"] == moved["embedding gradients"] == sums
        if "pooling" not in store:
            assert moved["pull rows"] == plain.summary["bytes_by_kind"]["pull rows"]
        assert told["train_loss"] == pytest.approx(plain.summary["train_loss"], abs=2e-2)
    one = VirtualCluster(workers=1, servers=2)
    alone, served = (train(BAGS, "async", one, embedding_workers=many) for many in (0, 2))
    assert served.summary["train_loss"] == pytest.approx(alone.summary["train_loss"], abs=2e-5)  # but for rounding


def test_servers_sum_the_rows_of_a_field_only_where_the_store_says_so():
    """A row of four numbers for each distinct id, or for each field of each sample."""
    batches = [BAGS.batch(0, index) for index in range(BAGS.batches())]
    distinct = sum(batch.ids[TABLE].size for batch in batches)
    for pooling, rows in (("worker", distinct), ("server", BAGS.samples * 3)):
        store = lib.RowStore(pooling=pooling)
        summary = train(BAGS, "async", VirtualCluster(workers=1), embedding_workers=0, store=store).summary
        assert summary["bytes_by_kind"]["pull rows"] == 4 * 4 * rows


@pytest.mark.parametrize("workload", [CLICKS, BAGS], ids=["one id", "multi-hot"])
def test_a_timing_run_sends_as_much_in_the_same_time(workload):
    real, timed = (train(workload, "hybrid", gradients=gradients).summary for gradients in (True, False))
    for name in ("bytes_by_kind", "virtual_seconds", "staleness"):
        assert timed[name] == real[name]


def test_they_are_real_on_threads():
    virtual = train(CLICKS, "all-reduce")
    assert train(CLICKS, "all-reduce", LocalCluster(workers=3, servers=2)).digest == virtual.digest
    assert math.isfinite(train(BAGS, "hybrid", LocalCluster(workers=2)).summary["auc"])


@pytest.mark.parametrize(
    "workload, protocol, said",
    [("ctr-synthetic", "ds-sync", "keeps rows with the workers"), ("quadratic", "async", "'quadratic' has no tables")],
)
def test_who_would_have_nothing_to_do_is_refused(workload, protocol, said):
    with pytest.raises(BadOption, match=f"embedding_workers would have nothing to ask servers for: .*{said}"):
        train(workload, protocol)


def test_a_byte_tells_so_many_apart():
    with pytest.raises(BadOption, match="embedding_workers must be at most 256"):
        train(CLICKS, "hybrid", embedding_workers=257)


# Deaths.


def seconds(run):
    return run.summary["virtual_seconds"]


def dying(base, *failures, **options):
    options = {"workers": 3, "servers": 2, "slowdown": 0.3} | options
    return VirtualCluster(failures=failures, patience=base / 50, **options)


@pytest.fixture(scope="module")
def pace():
    """Seconds of a run that nothing befalls."""
    return seconds(train(CLICKS, "hybrid"))


@pytest.mark.parametrize("many", [1, 2])
def test_what_a_dead_one_held_is_abandoned_and_the_others_go_on(pace, many):
    """Of three workers' batches at most 1 + tau are under way, and two more are made ahead: so many it can hold."""
    dies = Failure(node="embedding0", kind="dies", at=pace / 3, lasts=pace / 2)
    run = train(CLICKS, "hybrid", dying(pace, dies), many)
    told = run.summary
    assert told["applied"] == told["issued"] == CLICKS.batches() and told["samples"] == CLICKS.samples
    assert 0 < told["abandoned"] < told["batches_abandoned"] <= 3 * (1 + 4 + 2)
    assert told["returns_to_a_cut"] == 0 and told["lost"] == 0
    computed = run.trace[run.trace["kind"] == "compute"].sort_values("start")
    longest = (computed["start"] - computed["end"].cummax().shift()).max()
    assert (longest > pace / 6) == (many == 1), "who has another to ask does not wait"


@pytest.mark.parametrize("name", ["hybrid", "sync", "hop-bs", "gba", "all-reduce", "s-easgd", "frozen"])
def test_the_books_balance_whoever_dies(name):
    """`gradient_ledger` looks into each part's book, and raises an error where one does not balance."""
    base = seconds(train(CLICKS, name))
    worker = Failure(node="worker1", kind="dies", at=base / 2, lasts=base / 4)
    plan = Failure(node="embedding*", kind="dies", every=base / 4, lasts=base / 9), worker
    runs = [train(CLICKS, name, dying(base, *plan), seed=seed) for seed in range(4)]
    for told in (run.summary for run in runs):
        assert told["issued"] == sum(told[each] for each in ("applied", "decayed", "dropped", "lost", "in_flight"))
        assert told["abandoned"] <= told["batches_abandoned"] and told["samples"] > 0.6 * CLICKS.samples
    assert sum(run.summary["batches_abandoned"] for run in runs) > 0
    assert train(CLICKS, name, dying(base, *plan)).digest == runs[0].digest


def test_the_networks_stay_in_step(pace):
    rule, plan = protocols.get("hybrid"), [Failure(node="embedding*", kind="dies", every=pace / 4, lasts=pace / 9)]
    whole = replace(CLICKS, samples=16 * 42)
    parts = records(whole, rule, dying(pace, *plan), embedding_workers=2)
    assert sum(part.extra["batches abandoned"] for part in parts) > 0
    ends = [part.final["replica"]["values"] for part in parts if "replica" in part.final]
    assert len(ends) == 3 and all(np.array_equal(end, ends[0]) for end in ends)


def test_one_that_is_gone_for_good_is_done_without_unless_it_is_the_last(pace):
    gone = dying(pace, Failure(node="embedding0", kind="dies", at=pace / 3))
    assert train(CLICKS, "hybrid", gone).summary["samples"] == CLICKS.samples
    with pytest.raises(NodeLost, match="embedding0"):
        train(CLICKS, "hybrid", gone, embedding_workers=1)


def test_a_lost_server_takes_them_back_as_well(pace, reports):
    server = Failure(node="server0", kind="dies", at=0.6 * pace, lasts=0.1 * pace)
    plan = Failure(node="embedding0", kind="dies", at=0.45 * pace, lasts=0.5 * pace), server
    told = train(CLICKS, "hybrid", dying(pace, *plan), checkpoint_every=160).summary
    assert told["returns_to_a_cut"] == 1 and told["applied"] == CLICKS.batches()


def test_a_run_that_was_cut_while_one_was_dead_goes_on_to_the_bit(pace, reports, monkeypatch):
    there = dying(pace, Failure(node="embedding1", kind="dies", at=pace / 2, lasts=pace / 2))
    options = {"checkpoint_every": 160, "evaluations": 2}
    whole = train(CLICKS, "hybrid", there, **options)
    assert whole.summary["batches_abandoned"] > 0
    with killed(monkeypatch, 27):
        train(CLICKS, "hybrid", there, **options)
    [file] = (reports / "checkpoints").glob("*/stage-0000.pt")
    parts = checkpoint.load(file)["parts"]
    assert "embedding0" in parts and "embedding1" not in parts
    assert_same(train(CLICKS, "hybrid", there, resume=True, **options), whole)


def test_one_really_dies_on_threads():
    dies = Failure(node="embedding0", kind="dies", at=0.05, lasts=0.05)
    there = LocalCluster(workers=2, failures=[dies], patience=0.02)
    told = train(CLICKS, "hybrid", there, checkpoint_every=None).summary
    assert told["applied"] == CLICKS.batches() and told["abandoned"] <= told.get("batches_abandoned", 0)


@pytest.mark.nightly
@pytest.mark.ray
def test_a_process_of_theirs_is_killed_and_is_there_again_while_others_go_on(joined_ray):
    killed = Failure(node="embedding0", kind="dies", at=1.0, lasts=1.0)
    cluster = lib.RayCluster(workers=2, servers=1, failures=(killed,), patience=0.2)
    told = train(replace(CLICKS, samples=12_000), "hybrid", cluster).summary
    assert told["samples"] == 12_000 and told["applied"] == told["issued"] == 750
    assert told["returns_to_a_cut"] == 0 and told["abandoned"] <= told["batches_abandoned"] <= 2 * 6


def test_a_batch_that_was_being_made_for_a_worker_that_died_is_not_held():
    """A reader takes longer for a batch than a worker lives."""
    plan = [Failure(node="worker1", kind="dies", every=0.02, lasts=0.004)]
    cluster = VirtualCluster(workers=3, failures=plan, patience=1e-3, server=Node(reading=2e-4))
    logs = records(CLICKS, protocols.get("hybrid"), cluster, embedding_workers=2, readers=1, ahead=1)
    ledgers = [log.ledger for log in logs if log.node.startswith("embedding")]
    assert len(ledgers) == 2 and sum(ledger["samples forgotten"] for ledger in ledgers)
    for ledger in ledgers:
        assert ledger["samples held"] == ledger["samples returned"] + ledger["samples forgotten"]


def test_summing_costs_each_entrys_row_and_each_sum():
    worker = object.__new__(EmbeddingWorker)
    worker._plan = SimpleNamespace(dims={"a": 3, "b": 2})
    sizes = {"a": (5, 2), "b": (4, 1)}
    bags = {name: SimpleNamespace(entries=np.zeros(many), bags=np.zeros(few)) for name, (many, few) in sizes.items()}
    assert worker._pooling_cost(bags) == Work(bytes=4 * (3 * 7 + 2 * 5))
    assert worker._pooling_cost({}) is None


def test_a_dead_embedding_worker_abandons_the_batches_that_it_still_held():
    counts = {"samples held": 7, "samples returned": 3, "samples forgotten": 1}
    log = PartLog("embedding0", None, ledger=Counter(counts))
    EmbeddingWorkers.close_dead_ledger(None, log)
    assert log.extra["batches abandoned"] == 3
