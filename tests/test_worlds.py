"""Which protocol trains on which cluster: all on all. And what a run owes, whatever carried it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import LocalCluster, RayCluster, VirtualCluster, protocols, workloads
from lib.protocols import ALL, Pair, get
from tests.toys import clicks, diagonal, finals, records

CLICKS = clicks(500, 48)
TRIPLES = {"entities": 60, "triples": 400, "relations": 3, "evaluation_triples": 20}
GRAPH = workloads.get("kg-synthetic", samples=600, batch_size=50, **TRIPLES)
KINDS = {"virtual": VirtualCluster, "local": LocalCluster, "ray": RayCluster}
LEDGER = ("applied", "decayed", "dropped", "lost", "in_flight")
EVERY = ("qps", "staleness_mean", "staleness_max", "issued", *LEDGER, "bytes", "virtual_seconds", "wall_seconds")


def pipeline(name):
    return name in ALL and ALL[name].family == "pipeline"


def owes(run, workload, clock):
    """What every run must leave."""
    summary, metrics = run.summary, ("mrr",) if workload is GRAPH else ("auc", "ne", "logloss")
    assert set(EVERY) | set(metrics) <= set(summary)
    assert all(math.isfinite(summary[name]) for name in metrics)
    assert summary["issued"] == workload.batches() == sum(summary[outcome] for outcome in LEDGER)
    assert summary["in_flight"] == summary["lost"] == 0
    assert summary["samples"] == workload.samples and summary["bytes"] > 0
    assert (summary["virtual_seconds"] is None) == (clock == "wall") != (summary["wall_seconds"] is None)
    # Each batch was computed exactly once, and inside the training's time.
    computed = run.trace[run.trace["kind"] == "compute"]
    assert sorted(computed["batch"]) == list(range(workload.batches()))
    assert computed["start"].min() >= 0 and computed["end"].max() <= run.summary[f"{clock}_seconds"] + 1e-9
    assert (run.trace["end"] >= run.trace["start"]).all()
    assert run.history["samples"].max() == workload.samples and (run.history["time"].diff().dropna() >= 0).all()


ON_RAY = [pytest.param("ssp", marks=pytest.mark.nightly), "s-easgd", "oac"]
"""Under Ray each process of a run takes seconds to start. So of those that send alike one is tried: here workers that keep what
servers sent them, a copy in the middle, a pipeline; elsewhere sync and GBA (below), the mean of all beside rows in step
(`test_switching.py`) and beside rows read ahead (`test_embedding_workers.py`), groups (below), and workers that call each other
(`test_replica_protocols.py`). What tells others from these is decided within a part, which threads try; the soak draws all."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_every_protocol_trains_in_one_process(name, cluster):
    trains(name, cluster)


@pytest.mark.ray
@pytest.mark.parametrize("name", ON_RAY)
def test_protocols_of_all_kinds_train_in_processes(name, joined_ray):
    trains(name, "ray")


def trains(name, cluster):
    workload, workers = (GRAPH, None) if pipeline(name) else (CLICKS, 2)
    run = lib.train(workload, name, KINDS[cluster](workers=workers), evaluations=2, save=False)
    owes(run, workload, "virtual" if cluster == "virtual" else "wall")
    assert run.summary["staleness_max"] <= get(name).max_staleness or cluster != "virtual"


PAIRS = ["gba+sync", "async+sync", "async+gba", "gba+async"]
PAIRS += ["async+all-reduce", "gba+all-reduce", "gba+ds-sync", "sync+s-easgd"]


@pytest.mark.parametrize("pair, kind", diagonal(PAIRS, ["virtual", "local"]))
def test_a_pair_of_rules_trains(pair, kind):
    run = lib.train(CLICKS, pair, KINDS[kind](workers=2), save=False)
    owes(run, CLICKS, "virtual" if kind == "virtual" else "wall")


@pytest.mark.nightly
@pytest.mark.ray
def test_a_pair_of_rules_trains_on_ray_with_two_parts_on_one_server(joined_ray):
    run = lib.train(CLICKS, Pair(sparse=get("gba"), dense=get("sync")), RayCluster(workers=2), save=False)
    owes(run, CLICKS, "wall")


def arrays(name, thing):
    """Every array of the final parameters by its path."""
    if isinstance(thing, dict):
        return {path: a for key, value in thing.items() for path, a in arrays(f"{name}/{key}", value).items()}
    if isinstance(thing, np.ndarray):
        return {name: thing}
    return {f"{name}/{field}": getattr(thing, field) for field in ("ids", "values", "state", "stamps")}


def sync(kind, workload=CLICKS, **options):
    return arrays("", finals(records(workload, get("sync"), KINDS[kind](workers=2, **options))))


@pytest.mark.parametrize("kind, servers", [("local", 1), ("local", 2), pytest.param("ray", 2, marks=pytest.mark.ray)])
def test_sync_ends_with_the_same_parameters_on_every_cluster(kind, servers, request):
    if kind == "ray":
        request.getfixturevalue("joined_ray")
    modelled, real = sync("virtual", servers=servers), sync(kind, servers=servers)
    assert modelled.keys() == real.keys() and any("rows" in name for name in real)
    for name, values in modelled.items():
        np.testing.assert_allclose(real[name], values, rtol=1e-5, atol=1e-9, err_msg=name)


@settings(derandomize=True, max_examples=12)
@given(
    name=st.sampled_from([name for name in ALL if not pipeline(name)]),
    kind=st.sampled_from(["virtual", "local"]),
    workers=st.integers(1, 6),
    servers=st.integers(1, 3),
    batches=st.integers(1, 14),
    rest=st.integers(1, 48),
    slowdown=st.sampled_from([0.0, 1.0]),
)
@pytest.mark.filterwarnings("error")
def test_uneven_data_ends_well_in_every_shape(name, kind, workers, servers, batches, rest, slowdown):
    small = {"batch_size": 48, "fields": 2, "vocabulary": 9, "hidden": (4,)}
    workload = workloads.get("ctr-synthetic", samples=48 * (batches - 1) + rest, **small)
    options = {"slowdown": slowdown} if kind == "virtual" else {"threads": 4}
    rule, mixes = get(name), {"every": 1, "distance": 0.0}  # there may be one step, and it is to mix
    rule = replace(rule, **{option: value for option, value in mixes.items() if hasattr(rule, option)})
    run = lib.train(workload, rule, KINDS[kind](workers=workers, servers=servers, **options), save=False)
    owes(run, workload, "virtual" if kind == "virtual" else "wall")


@pytest.mark.nightly
@pytest.mark.ray
def test_groups_of_three_workers_that_end_at_different_steps_hold_nobody_up_on_ray(joined_ray):
    # Rank 0 meets 1, then 2, then nobody: each has made another number of groups when they meet.
    rule, bowl = get("ds-sync", size=2), workloads.get("quadratic", samples=32 * 7)
    modelled, real = (finals(records(bowl, rule, kind(workers=3))) for kind in (VirtualCluster, RayCluster))
    for rank in range(3):
        values = (final[f"worker{rank}/replica"]["values"] for final in (modelled, real))
        np.testing.assert_allclose(*values, rtol=1e-5, err_msg=f"worker {rank}")


def heavy(**options):
    """Work that LocalCluster gives to threads: more than lib.cluster.local.INLINE operations and bytes."""
    large = {"batch_size": 256, "hidden": (64, 32), "vocabulary": 300, "evaluation_samples": 300}
    return workloads.get("ctr-synthetic", **large, **options)


@pytest.mark.parametrize("servers", [1, 3])
def test_sync_is_exact_among_many_threads(servers):
    workload, sync = heavy(samples=256 * 40), get("sync")
    modelled = finals(records(workload, sync, VirtualCluster(workers=8, servers=servers)))
    threads = [finals(records(workload, sync, LocalCluster(workers=8, servers=servers, threads=8))) for _ in range(2)]
    for real in threads:
        assert lib.results.outcome.digest(real) == lib.results.outcome.digest(modelled)


WAIT = [name for name, rule in ALL.items() if rule.blocks and not rule.drops and get(name).max_staleness == 0]


@pytest.mark.parametrize("name", [name for name in WAIT if name != "sync"])
def test_protocols_that_wait_for_all_are_exact_among_many_threads(name):
    workload, rule = heavy(samples=256 * 22), protocols.get(name)
    workers = None if pipeline(name) else 5
    modelled = finals(records(workload, rule, VirtualCluster(workers=workers)))
    real = finals(records(workload, rule, LocalCluster(workers=workers, threads=8)))
    assert lib.results.outcome.digest(real) == lib.results.outcome.digest(modelled)
