"""Replicas: what a composition promises holds, and what would train as something else is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib import Failure, LocalCluster, Node, Phase, Schedule, VirtualCluster, workloads
from lib.errors import BadOption
from lib.protocols import Pair, get
from lib.protocols.baselines import Async, Sync
from lib.protocols.decentralised import DPSGD
from lib.protocols.easgd import EASGD
from lib.protocols.local_sgd import LocalSGD, SlowMo
from lib.protocols.mixing import Background, Centre, Gradients, Loop, Mean, Neighbours, Peer
from lib.store.optim import SGD
from tests.drivers.composing import BOWL, CLICKS, SHADOWS, STEP, UNEVEN, ends, rule, train
from tests.toys import Letters, finals, records

# What would train as something else


@pytest.mark.parametrize(
    "exchange, when",
    [(Centre(), Loop()), (Centre(), Background()), (Mean(), Background()), (Neighbours(), Loop()), (Peer(), Loop())],
)
def test_rows_that_a_replica_holds_are_mixed_or_refused(exchange, when):
    """They drifted apart in silence wherever a rule did not average groups in the loop."""
    apart = rule(exchange=exchange, when=when, name="mine")
    with pytest.raises(BadOption, match=r"mine: rows of 'ctr-synthetic' .* never mixes"):
        train(apart)
    with pytest.raises(BadOption, match="never mixes"):
        train(Pair(sparse=apart, dense=apart))


APART = {"exchange": Centre(), "when": Background(), "update_centre": lambda self, centre, message: (centre, centre)}


@pytest.mark.parametrize("values, equal", [({"exchange": Gradients(), "when": Loop()}, True), (APART, False)])
def test_rows_in_the_replicas_are_averaged_where_gradients_are_or_said_to_stay_apart(values, equal):
    """Each worker takes its own step with its rows, and all have the same rows after each round."""
    stay = {} if equal else {"rows": "local"}
    final = finals(records(CLICKS, rule(**values, **stay), VirtualCluster(workers=2)))
    one, other = (final[f"worker{rank}/replica rows"]["feature"] for rank in range(2))
    both, *places = np.intersect1d(one.ids, other.ids, return_indices=True)
    values = [each.values[at] for each, at in zip((one, other), places, strict=True)]
    assert both.size > 10 and np.allclose(*values, rtol=1e-5, atol=1e-7) == equal


@pytest.mark.parametrize("groups", [((0, 1), (1, 2, 3)), ((0, 1), (2,)), ((0, 1), (2, 3, 4))])
def test_groups_that_are_no_partition_are_named(groups):
    wrong = rule(groups=lambda self, round, workers: groups, name="mine")
    with pytest.raises(BadOption, match=r"mine: groups\(round=0, workers=4\) must hold each rank from 0 to 3 once"):
        train(wrong, cluster=VirtualCluster(workers=4))


def test_weights_that_are_no_row_of_a_mixing_matrix_are_named():
    for row in ({0: 0.5}, {9: 1.0}, {1: 1.0}):
        wrong = rule(exchange=Neighbours(), weights=lambda self, round, rank, workers, row=row: row, name="mine")
        with pytest.raises(BadOption, match=r"mine: weights\(round=0, rank="):
            train(wrong, BOWL)


@pytest.mark.parametrize("name", ["ds-sync", "prague", "swarm-adam"])
def test_an_every_beyond_the_runs_steps_is_refused(name):
    """40 batches on 4 workers are 10 steps."""
    train(get(name, every=10))
    with pytest.raises(BadOption, match=f"{name}: its replicas would never mix: none of the 10 steps"):
        train(get(name, every=11))
    train(get(name, every=11), cluster=VirtualCluster(workers=1))  # there is nobody to mix with
    train(get(name, every=11), feed="stream", partitions=(22, 6, 6, 6))


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"exchange": Gradients(), "when": Loop(every=2)}, "in every step"),
        ({"exchange": Gradients(), "when": Background()}, "in every step"),
        ({"exchange": Gradients(), "worker_threads": 2}, "by one thread"),
        ({"exchange": Mean(), "model": "centre"}, "no sync servers"),
        ({"exchange": Mean(), "when": Loop(place="beside"), "worker_threads": 2}, "stand still"),
        ({"worker_threads": 0}, "worker_threads must be at least 1"),
    ],
)
def test_values_that_do_not_go_together(values, sentence):
    with pytest.raises(BadOption, match=f"toy: .*{sentence}"):
        rule(**values)


def test_values_out_of_range():
    for values in ({"every": 0}, {"seconds": -1}, {"place": "over"}):
        with pytest.raises(BadOption):
            Loop(**values)
    with pytest.raises(BadOption):
        Centre(servers=0)
    with pytest.raises(BadOption, match="2 threads of a worker cannot wait for their turn with 'sync'"):
        train(Pair(sparse=Sync(), dense=replace(get("s-easgd"), worker_threads=2)))


@pytest.mark.parametrize("sparse", ["sync", "hop-bs", "hop-bw"])
@pytest.mark.parametrize("dense", ["prague", "swarm-adam", "ds-sync"])
def test_replicas_that_wait_for_each_other_and_for_rows_are_refused(sparse, dense):
    """Who waited for a group held the barrier, and who could have completed the group was held by it."""
    with pytest.raises(BadOption, match=f"{dense}: workers that wait .* at the barrier of '{sparse}'"):
        train(Pair(sparse=get(sparse), dense=get(dense)))


@pytest.mark.parametrize(
    "values, waits",
    [
        ({"exchange": Mean()}, True),
        ({"exchange": Neighbours()}, True),
        ({"exchange": Gradients()}, False),
        ({"exchange": Peer()}, False),
        ({"exchange": Centre()}, False),
        ({"exchange": Mean(), "when": Background()}, False),
        ({"exchange": Mean(), "when": Background(until="all")}, True),
    ],
)
def test_who_waits_for_others_with_steps_to_make(values, waits):
    assert rule(**values).waits_for_others == waits


# When


def test_every_so_many_seconds():
    """A step takes one second and a mix next to nothing: the first step to begin 2.5 s after the last mix is the fourth."""
    cluster = VirtualCluster(workers=2, worker=Node(flops=BOWL.work().flops))
    run = train(rule(when=Loop(seconds=2.5)), BOWL, cluster)
    mixes = run.trace[(run.trace["kind"] == "mix") & (run.trace["node"] == "worker0")]["end"].to_numpy()
    np.testing.assert_allclose(mixes, [4, 8, 12, 16, 20], atol=0.05)
    assert run.summary["sync_gap"] == 4


@pytest.mark.parametrize("place, end", [("before", 7), ("after", 14), ("beside", 7)])
def test_the_place_in_a_step(place, end):
    """A step adds 1 and a mix doubles: three times w <- 2 w + 1, or w <- 2 (w + 1)."""
    twice = {"merge": lambda self, memory, mine, mix: (memory, 2 * mix.theirs)}
    doubling = rule(when=Loop(place=place), **twice, rows=Async())
    final, _ = ends(Letters(samples=6), doubling, VirtualCluster(workers=2))
    assert final[:, 0].tolist() == [end, end]


def test_the_gradient_beside_a_mix_is_that_of_the_parameters_before_it():
    """f = w^2 / 2 without noise: w <- 0 by the mix, then minus the rate times the old w."""
    one = {"dim": 1, "condition": 1, "noise": 0, "batch_size": 1, "samples": 2}
    workload = workloads.get("quadratic", dense_optimizer=SGD(lr=0.5), **one)

    def merge(self, memory, mine, mix):
        return memory, np.zeros_like(mine)

    start = float(workload.model(0).weights.detach())
    gradient = start - float(workload.model(0).optimum)
    for place, end in (("beside", -0.5 * gradient), ("before", 0.5 * float(workload.model(0).optimum)), ("after", 0.0)):
        for cluster in (VirtualCluster(workers=2), LocalCluster(workers=2)):
            final, _ = ends(workload, rule(when=Loop(place=place), merge=merge), cluster)
            np.testing.assert_allclose(final[:, 0], end, atol=1e-6)


# What is sent


def test_a_part_of_the_vector_in_turn():
    """Three parts of two numbers: of four rounds the last is the first part's again, where alone all replicas agree."""

    def send(self, memory, mine, round):
        return mine[2 * (round % 3) : 2 * (round % 3) + 2]

    def merge(self, memory, mine, mix):
        part = slice(2 * (mix.round % 3), 2 * (mix.round % 3) + 2)
        merged = mine.copy()
        merged[part] = mix.theirs
        return memory, merged

    parts = rule(send=send, merge=merge)
    final, _ = ends(workloads.get("quadratic", dim=6, batch_size=4, samples=4 * 12), parts, VirtualCluster(workers=3))
    agree = [bool(np.allclose(final[0, k : k + 2], final[:, k : k + 2])) for k in (0, 2, 4)]
    assert agree == [True, False, False]
    run = train(parts, BOWL)
    assert run.summary["bytes_by_kind"] == {"mix dense": 40 * 2 * 4}


def test_a_compressed_vector():
    halves = rule(
        send=lambda self, memory, mine, round: mine.astype(np.float16),
        merge=lambda self, memory, mine, mix: (memory, mix.theirs.astype(np.float32)),
    )
    for cluster in (VirtualCluster(workers=3), LocalCluster(workers=3)):
        final, _ = ends(BOWL, halves, cluster)
        whole, _ = ends(BOWL, rule(), cluster)
        np.testing.assert_allclose(final, whole, atol=2e-2)
    assert train(halves, BOWL).summary["bytes"] * 2 == train(rule(), BOWL).summary["bytes"]


# The end of the data


@pytest.mark.parametrize("cluster", [VirtualCluster(**UNEVEN), LocalCluster(workers=3)], ids=["virtual", "local"])
@pytest.mark.parametrize("shadow", SHADOWS, ids=["own", "all"])
def test_shadows_of_groups_end_cleanly(shadow, cluster):
    final, _ = ends(CLICKS, shadow, cluster)
    assert np.isfinite(final).all()


def mixes_of_uneven_stretches(protocol):
    """How often each of two workers mixes, of which one has 2 of 22 batches."""
    cluster = VirtualCluster(workers=2, worker=Node(flops=1e6))
    run = train(protocol, replace(CLICKS, samples=20 * 22), cluster, feed="stream", partitions=(1, 10))
    return run, run.trace[run.trace["kind"] == "mix"].groupby("node").size()


@pytest.mark.parametrize("until", ["own", "all"])
def test_a_shadow_goes_on_until_all_data_are_consumed(until):
    """The shadow of the worker that has little ends with it, or goes on while the other trains."""
    _, mixes = mixes_of_uneven_stretches(rule(**APART | {"when": Background(until=until)}, rows=Async()))
    assert mixes["worker1"] >= 19
    assert (mixes["worker0"] > 10) == (until == "all")


@pytest.mark.parametrize("rows", ["sync", "hop-bw", "gba"])
def test_who_goes_on_mixing_leaves_the_barrier_of_the_rows(rows):
    """At the servers nobody waits for it while its shadow waits for the end of the other's."""
    run, mixes = mixes_of_uneven_stretches(Pair(sparse=get(rows), dense=get("s-easgd", until="all")))
    assert mixes["worker0"] > 5 and run.summary["issued"] == run.trace["kind"].eq("push").sum() > 10


# Which parameters are the model


def test_the_model_is_the_average_and_history_follows():
    averaged = type("Averaged", (LocalSGD,), {"model": "average"})()
    run, plain = train(averaged, evaluations=4), train(LocalSGD(), evaluations=4)
    for metric in ("auc", "logloss"):
        assert run.summary[metric] == plain.summary[f"{metric}_of_average"] != plain.summary[metric]
        assert run.summary[f"{metric}_of_first"] == plain.summary[metric]
        assert f"{metric}_of_average" not in run.summary
    evaluated = run.history.dropna(subset="auc")
    assert len(evaluated) == 4 and evaluated["auc"].iloc[-1] == run.summary["auc"]
    assert run.digest == plain.digest


@pytest.mark.parametrize("model", ["first", "average", "centre"])
def test_the_model_is_what_the_parts_hold(model):
    protocol = type("Shown", (EASGD,), {"model": model})(sync_servers=2)
    held, final = ends(BOWL, protocol, VirtualCluster(**UNEVEN))
    centre = np.concatenate([final["sync0/centre"], final["sync1/centre"]])
    expected = {"first": held[0], "average": held.mean(0), "centre": centre}
    run = train(protocol, BOWL, evaluations=4)
    evaluated = run.history.dropna(subset="loss")
    assert len(evaluated) == 4 and evaluated["loss"].iloc[-1] == run.summary["loss"]
    for whose, values in expected.items():
        module = BOWL.model(0)
        module.weights.data = torch.from_numpy(values)
        name = "loss" if whose == model else f"loss_of_{whose}"
        assert run.summary[name] == pytest.approx(BOWL.evaluate(module, {}, 0)["loss"], rel=1e-4), name


def test_what_travels_is_counted():
    """40 steps of 6 numbers: a gradient each; or a message and an answer each."""
    vector = 40 * 6 * 4
    assert train("all-reduce", BOWL).summary["bytes_by_kind"] == {"mix gradients": vector}
    assert train(EASGD(), BOWL).summary["bytes_by_kind"] == {"mix dense": vector, "mix answers": vector}


@pytest.mark.parametrize("first", [EASGD(), Pair(sparse=Async(), dense=SlowMo()), DPSGD()], ids=lambda each: each.name)
def test_the_model_goes_over_to_the_next_protocol(first):
    """A next phase that changes nothing shows what it was given."""
    still = SGD(lr=1e-12)
    last = Phase(protocol="sync", dense_optimizer=still, row_optimizer=still)
    run = train(Schedule(phases=(Phase(protocol=first, until_samples=400), last)))
    one, other = run.summary["stages"]
    assert one["auc"] == pytest.approx(other["auc"], abs=1e-6)


# Sync servers


@pytest.mark.parametrize("servers", [2, 4])
def test_several_sync_servers_compute_what_one_does(servers):
    one, before = ends(BOWL, EASGD(), VirtualCluster(workers=3))
    many, final = ends(BOWL, EASGD(sync_servers=servers), VirtualCluster(workers=3))
    np.testing.assert_array_equal(many, one)
    whole = np.concatenate([final[f"sync{server}/centre"] for server in range(servers)])
    np.testing.assert_array_equal(whole, before["sync0/centre"])


def test_sync_servers_share_the_traffic():
    """A worker's network is wide and a sync server's narrow: two take half as long."""
    workload = workloads.get("quadratic", dim=2_000, batch_size=1, samples=40, dense_optimizer=SGD(lr=0.1))
    narrow = {"nodes": {f"sync{k}": Node(bandwidth=1e4, latency=0.0) for k in range(2)}}
    seconds = [
        train(EASGD(sync_servers=servers), workload, VirtualCluster(workers=4, **narrow)).summary["virtual_seconds"]
        for servers in (1, 2)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.05)


# Cuts and failures


@pytest.mark.parametrize("again", [None, 6 * STEP], ids=["for good", "and is back"])
@pytest.mark.parametrize("protocol", SHADOWS, ids=["own", "all"])
def test_nobody_waits_for_a_worker_that_dies(protocol, again):
    dies = Failure(node="worker1", kind="dies", at=3.2 * STEP, lasts=again)
    cluster = VirtualCluster(**UNEVEN, failures=[dies], patience=STEP)
    summary = train(protocol, cluster=cluster).summary
    assert summary["issued"] == sum(summary[each] for each in ("applied", "dropped", "lost", "in_flight"))
    assert summary["applied"] > 25


@pytest.mark.parametrize("exchange", [Mean(), Centre(), Peer()], ids=["mean", "centre", "peer"])
def test_a_rule_is_told_the_round(exchange):
    told = []
    counting = rule(
        exchange=exchange,
        partner=lambda self, round, rank, workers: told.append((rank, round)) or 1 - rank,
        send=lambda self, memory, mine, round: told.append((-1, round)) or mine,
        update_centre=lambda self, centre, message: (centre, message),
    )
    train(counting, replace(BOWL, samples=4 * 6), VirtualCluster(workers=2))
    assert sorted(round for rank, round in told if rank < 0) == [0, 0, 1, 1, 2, 2]
