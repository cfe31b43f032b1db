"""Outer steps beside training, in pairs and at a centre, and means of the optimiser's state: each is its paper's recursion."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, VirtualCluster
from lib.errors import BadOption
from lib.protocols import get
from lib.protocols.easgd import AsyncLocalSGD
from lib.protocols.local_sgd import DESLOC, DiLoCo, LocalSGD, NoLoCo
from lib.protocols.mixing import Centre, Loop, Mean
from lib.protocols.streaming import EagerDiLoCo, StreamingDiLoCo
from lib.store.optim import SGD, Adam, DelayedNesterov, Momentum
from tests.drivers.composing import rule
from tests.protocols.by_hand import RATE, SLOW, both, bowl, replicas, same
from tests.toys import finals, records

PROPERTY = settings(max_examples=8, deadline=None, derandomize=True)


def nesterov(outer, velocity, gradient, rate=0.7, momentum=0.9):
    velocity = momentum * velocity + gradient
    return outer - rate * (gradient + momentum * velocity), velocity


# Streaming DiLoCo


@PROPERTY
@given(
    workers=st.integers(1, 4),
    steps=st.integers(8, 15),
    fragments=st.integers(1, 5),
    overlap=st.integers(0, 3),
    alpha=st.sampled_from([0.0, 0.5, 0.9]),
    sigma=st.floats(0, 1),
)
def test_streaming_diloco_is_its_recursion_at_any_speeds(workers, steps, fragments, overlap, alpha, sigma):
    """A fragment is sent every H / P steps and merged `overlap` steps later, or when the next one is due, or at the end."""
    rule = StreamingDiLoCo(every=4, fragments=fragments, overlap=overlap, alpha=alpha)
    ours, serial, _ = both(rule, steps, workers, slowdown=sigma)
    outer, velocity = serial.x[0].copy(), np.zeros(5)
    sent, rounds, gap = None, 0, -(-4 // fragments)
    for step in range(1, steps + 1):
        serial.train(step - 1)
        due = step % gap == 0
        for now in (False, True):  # what travels is merged, then the next is sent; without overlap it is merged at once
            if now and due:
                sent, rounds = (rounds % fragments, serial.x.copy(), step), rounds + 1
            if sent and ((due and not now) or step - sent[2] >= overlap or step == steps):
                part, replica, _ = sent
                at, sent = slice(part, None, fragments), None
                outer[at], velocity[at] = nesterov(outer[at], velocity[at], outer[at] - replica[:, at].mean(0))
                serial.x[:, at] = alpha * serial.x[:, at] + (1 - alpha) * outer[at]
    same(ours, serial.x)


@PROPERTY
@given(workers=st.integers(1, 4), steps=st.integers(4, 11), seed=st.integers(0, 9))
def test_one_fragment_that_all_wait_for_is_diloco(workers, steps, seed):
    streaming = StreamingDiLoCo(every=4, fragments=1, overlap=0, alpha=0.0)
    ours, plain = (replicas(bowl(steps, workers), each, workers, seed)[0] for each in (streaming, DiLoCo(every=4)))
    assert ours.tobytes() == plain.tobytes()
    alone, serial, _ = both(StreamingDiLoCo(alpha=1.0), steps, workers, seed)
    serial.train(*range(steps))
    same(alone, serial.x)


def test_a_fragment_hides_behind_the_steps_for_which_it_travels():
    """Ten means take a step each, and asking for a group takes one: workers wait for all of them, or for the last alone."""
    workload = bowl(40, 2)
    step = workload.work().flops / SLOW.flops
    slow = lib.Node(flops=SLOW.flops, latency=0.5 * step)

    def seconds(overlap):
        rule = StreamingDiLoCo(every=8, fragments=2, overlap=overlap)
        cluster = VirtualCluster(workers=2, worker=slow, nodes={"master": lib.Node(latency=0.0)})
        return lib.train(workload, rule, cluster, save=False).summary["virtual_seconds"] / step

    waits, hides = seconds(0), seconds(4)
    assert waits == pytest.approx(52, abs=0.5) and hides == pytest.approx(44, abs=0.5)


@pytest.mark.parametrize(
    "values",
    [
        {"exchange": Centre(), "when": Loop(overlap=1)},
        {"exchange": Mean(ahead=False), "when": Loop(overlap=1)},
        {"exchange": Mean(), "when": Loop(overlap=1, place="before")},
    ],
)
def test_what_travels_is_a_mean_of_scheduled_groups(values):
    with pytest.raises(BadOption, match="toy: what travels for some steps is a mean of scheduled groups"):
        rule(**values)
    with pytest.raises(BadOption, match="overlap must be 0 or more, not -1"):
        Loop(overlap=-1)


# Eager updates


@PROPERTY
@given(workers=st.integers(1, 4), phases=st.integers(2, 5), every=st.integers(1, 3), sigma=st.floats(0, 1))
def test_eager_updates_take_the_own_share_at_once_and_the_others_a_phase_late(workers, phases, every, sigma):
    ours, serial, _ = both(EagerDiLoCo(every=every), phases * every, workers, slowdown=sigma)
    outer, velocity = serial.x.copy(), np.zeros((workers, 5))
    begun, last = serial.x.copy(), None  # where the phase began, and each worker's outer gradient of the phase before
    for phase in range(phases):
        serial.train(*range(phase * every, (phase + 1) * every))
        own = begun - serial.x
        if phase == 0:  # there is nothing of the others yet: all of the first phase comes with the first mean
            begun, last = serial.x.copy(), own
            continue
        counted = last if phase > 1 else np.zeros_like(last)
        outer, velocity = nesterov(outer, velocity, last.mean(0) + (own - counted) / workers)
        serial.x[:], begun, last = outer, outer.copy(), own
    # The last outer gradients, which travel at the end of the data, are merged before the workers leave.
    counted = last if phases > 1 else np.zeros_like(last)
    serial.x[:], _ = nesterov(outer, velocity, last.mean(0) + (0 - counted) / workers)
    same(ours, serial.x)


def test_eager_updates_of_one_worker_are_diloco_a_phase_late():
    ours, serial, _ = both(EagerDiLoCo(every=3), 12, 1)
    outer, velocity, steps = serial.x[0].copy(), np.zeros(5), iter(range(12))
    for phase in (6, 3, 3, 0):
        serial.train(*islice(steps, phase))
        outer, velocity = nesterov(outer, velocity, outer - serial.x[0])
        serial.x[0] = outer
    same(ours, serial.x)


@pytest.mark.parametrize("name", ["streaming-diloco", "eager-diloco"])
def test_a_pause_merges_what_travels_and_a_worker_s_death_holds_nobody(name):
    workload = bowl(20, 3)
    step = workload.work().flops / SLOW.flops
    dies = [Failure(node="worker1", kind="dies", at=each * step, lasts=3 * step) for each in (5.4, 13.2)]
    cluster = VirtualCluster(workers=3, worker=SLOW, failures=dies, patience=step)
    summary = lib.train(workload, name, cluster, checkpoint_every=4 * 3 * 7, save=False).summary
    assert summary["lost"] > 0 and summary["applied"] + summary["lost"] == summary["issued"] > 50
    threads = lib.train(workload, name, LocalCluster(workers=3), save=False)
    virtual = lib.train(workload, name, VirtualCluster(workers=3, worker=SLOW), save=False)
    assert threads.summary["loss"] == pytest.approx(virtual.summary["loss"], rel=1e-4)


# NoLoCo


@PROPERTY
@given(workers=st.integers(1, 6), rounds=st.integers(1, 4), seed=st.integers(0, 9), pull=st.floats(0, 1))
def test_noloco_is_its_outer_step_of_pairs(workers, rounds, seed, pull):
    rule = NoLoCo(every=2, pull=pull)
    ours, serial, _ = both(rule, 2 * rounds, workers, seed)
    outer, velocity = serial.x.copy(), np.zeros((workers, 5))
    for round in range(rounds):
        serial.train(2 * round, 2 * round + 1)
        for pair in map(list, rule.groups(round, workers)):
            gradient, mean = (outer[pair] - serial.x[pair]).mean(0), outer[pair].mean(0)
            velocity[pair] = 0.5 * velocity[pair] - 0.7 * gradient - pull * (outer[pair] - mean)
        outer = outer + velocity
        serial.x[:] = outer
    same(ours, serial.x)


def test_noloco_s_pairs_change_and_come_round():
    """Of 8 workers each pair meets in about a seventh of the rounds, and every round is a matching."""
    met = np.zeros((8, 8))
    for round in range(350):
        pairs = get("noloco").groups(round, 8)
        assert sorted(rank for pair in pairs for rank in pair) == [*range(8)] and {len(pair) for pair in pairs} == {2}
        for one, other in pairs:
            met[[one, other], [other, one]] += 1
    apart = met[~np.eye(8, dtype=bool)]
    assert apart.min() > 25 and apart.max() < 80 and apart.mean() == 50


def test_noloco_sends_two_vectors_a_round_and_no_more():
    run = lib.train(bowl(8, 4), NoLoCo(every=4), VirtualCluster(workers=4), save=False)
    assert run.summary["bytes_by_kind"] == {"mix dense": 2 * 4 * 2 * 5 * 4}


# DES-LOC


@PROPERTY
@given(workers=st.integers(1, 4), steps=st.integers(2, 9), first=st.integers(1, 3), second=st.integers(1, 3))
def test_des_loc_averages_each_moment_in_rounds_of_its_own(workers, steps, first, second):
    """Torch's Adam makes the local steps."""
    ours, serial, _ = both(DESLOC(every=2, first=first, second=second), steps, workers, optimizer=Adam(lr=0.05))
    rows = [torch.nn.Parameter(torch.tensor(row)) for row in serial.x]
    adams = [torch.optim.Adam([row], lr=0.05) for row in rows]
    for step in range(1, steps + 1):
        serial.x[:] = np.stack([row.detach().numpy() for row in rows])
        for row, adam, gradient in zip(rows, adams, serial.gradients(step - 1), strict=True):
            row.grad = torch.tensor(gradient)
            adam.step()
        if step % 2:
            continue
        states = [adam.state[row] for adam, row in zip(adams, rows, strict=True)]
        means = [torch.stack([row.detach() for row in rows]).mean(0)]
        for name, every in (("exp_avg", first), ("exp_avg_sq", second)):
            mean = torch.stack([state[name] for state in states]).mean(0)
            for state in states if step // 2 % every == 0 else ():
                state[name].copy_(mean)
        for row in rows:
            row.data.copy_(means[0])
    same(ours, np.stack([row.detach().numpy() for row in rows]))


def test_des_loc_sends_moments_only_in_their_rounds():
    """Twelve rounds of two workers with Adam: four of the first moment and two of the second."""
    workload = bowl(12, 2, Adam(lr=0.05))
    summary = lib.train(workload, DESLOC(every=1), VirtualCluster(workers=2), save=False).summary
    assert summary["bytes_by_kind"] == {"mix dense": 2 * (12 + 4 + 2) * 5 * 4}
    timed = lib.train(workload, DESLOC(every=1), VirtualCluster(workers=2), gradients=False, save=False)
    assert timed.summary["bytes_by_kind"] == summary["bytes_by_kind"]


def test_des_loc_without_moments_is_local_sgd_and_with_momentum_is_not():
    for optimizer, equal in ((SGD(lr=RATE), True), (Momentum(lr=RATE), False)):
        rules = DESLOC(every=2, first=1), LocalSGD(every=2)
        ours, plain = (replicas(bowl(8, 3, optimizer), each, 3)[0] for each in rules)
        assert (ours.tobytes() == plain.tobytes()) == equal


# Asynchronous local SGD


def delayed_nesterov(gradients, rate, momentum, every):
    """Liu et al.'s delayed Nesterov update with c = 0, line by line."""
    moved, buffer, m = 0.0, 0.0, 0.0
    for t, g in enumerate(gradients):
        buffer += g
        if (t + 1) % every == 0:
            m = momentum * m + buffer / every
            moved -= rate * (momentum * m + g / every)
            buffer = 0.0
        else:
            moved -= rate * g / every
    return moved


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_delayed_nesterov_is_the_paper_s_update_and_torch_s_at_every_step(every, momentum):
    drawn = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    optimizer = DelayedNesterov(lr=0.3, momentum=momentum, every=every)
    values = torch.zeros(4)
    state = optimizer.initial_dense_state(values)
    for gradient in drawn:
        optimizer.step(values, state, torch.from_numpy(gradient))
    np.testing.assert_allclose(values, delayed_nesterov(drawn, 0.3, momentum, every), rtol=1e-5, atol=1e-6)
    if every == 1:
        theirs = torch.nn.Parameter(torch.zeros(4))
        nesterov = torch.optim.SGD([theirs], lr=0.3, momentum=momentum, nesterov=momentum > 0, weight_decay=0.1)
        ours, decayed = torch.zeros(4), DelayedNesterov(lr=0.3, momentum=momentum, every=1, weight_decay=0.1)
        state = decayed.initial_dense_state(ours)
        for gradient in drawn:
            theirs.grad = torch.from_numpy(gradient.copy())
            nesterov.step()
            decayed.step(ours, state, torch.from_numpy(gradient))
        np.testing.assert_allclose(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(BadOption, match="for dense parameters, not for rows"):
        lib.train("ctr-synthetic", "sync", VirtualCluster(workers=1), samples=64, row_optimizer=optimizer, save=False)


@PROPERTY
@given(workers=st.integers(1, 4), rounds=st.integers(1, 5), delay=st.integers(1, 3), servers=st.integers(1, 2))
def test_async_local_sgd_among_equals(workers, rounds, delay, servers):
    """Workers come to the centre in the order of their ranks."""
    ours, serial, final = both(AsyncLocalSGD(every=2, delay=delay, sync_servers=servers), 2 * rounds, workers)
    fetched, centre, optimizer = serial.x.copy(), torch.tensor(serial.x[0]), DelayedNesterov(lr=0.7, every=delay)
    state = optimizer.initial_dense_state(centre)
    for step in range(1, 2 * rounds + 1):
        serial.train(step - 1)
        for rank, row in enumerate(serial.x) if step % 2 == 0 else ():
            optimizer.step(centre, state, torch.from_numpy(fetched[rank] - row))
            row[:] = fetched[rank] = centre.numpy()
    same(ours, serial.x)
    same(np.concatenate([final[f"sync{server}/centre"] for server in range(servers)]), centre)


def test_one_worker_of_async_local_sgd_without_delay_is_diloco():
    ours, plain = (replicas(bowl(12, 1), each, 1)[0] for each in (AsyncLocalSGD(every=3, delay=1), DiLoCo(every=3)))
    same(ours, plain)


def test_with_dynamic_local_updates_slow_workers_make_fewer_steps_between_exchanges():
    workload = bowl(30, 2)
    step = workload.work().flops / SLOW.flops
    cluster = VirtualCluster(workers=2, worker=SLOW, speeds=(1.0, 0.5))
    parts = records(workload, AsyncLocalSGD(period=5.5 * step), cluster)
    gaps = {part.node: {gap for _, gap in part.steps_between_mixes} for part in parts if part.node.startswith("worker")}
    assert gaps == {"worker0": {7}, "worker1": {4}}
    assert np.isfinite(finals(parts)["sync0/centre"]).all()


def test_delayed_momentum_moves_with_every_fourth_gradient_by_default():
    """Four gradients of one, each a quarter of a step; their mean is the momentum, of which nine tenths move the vector."""
    optimizer, vector, steps = DelayedNesterov(lr=1.0), torch.zeros(1), []
    state = optimizer.initial_dense_state(vector)
    for _ in range(4):
        optimizer.step(vector, state, torch.ones(1))
        steps.append(round(vector.item(), 6))
    assert steps == [-0.25, -0.5, -0.75, -1.9]
