"""The field's replica rules: each is short, and equals its paper's recursion."""

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lib
from lib import Failure, LocalCluster, RayCluster, VirtualCluster, workloads
from lib.errors import BadOption
from lib.protocols.baselines import Async
from lib.protocols.decentralised import ADPSGD, DPSGD
from lib.protocols.easgd import EASGD, Downpour
from lib.protocols.local_sgd import DiLoCo, DynamicAveraging, LocalSGD, PostLocalSGD, SlowMo
from lib.protocols.mixing import Background, Mean
from lib.protocols.sparta import SPARTA
from lib.store.optim import Adagrad, Adam, Momentum
from tests.drivers.composing import rule as composed
from tests.protocols.by_hand import RATE, SLOW, Serial, both, bowl, replicas, same
from tests.toys import FIELD, Climb, Letters, finals, records

PROPERTY = settings(max_examples=8, deadline=None, derandomize=True)
EVERY = pytest.mark.parametrize("kind", FIELD)


@EVERY
def test_is_at_most_thirty_five_lines(kind):
    assert len(inspect.getsource(kind).splitlines()) <= 35


def test_needs_nothing_but_the_contract():
    """Their modules import rules and values alone, and no driver knows them."""
    allowed = {"baselines", "easgd", "local_sgd", "mixing", "replica_rule"}
    for kind in FIELD:
        tree = ast.parse(Path(inspect.getsourcefile(kind)).read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        rules = {name for name in imported if name.startswith("lib.protocols")}
        assert rules <= {f"lib.protocols.{name}" for name in allowed}
    names = re.compile("|".join(rf"\b{word}\b" for kind in FIELD for word in (re.escape(kind.name), kind.__name__)))
    for path in (Path(lib.__file__).parent / "drivers").rglob("*.py"):
        assert not names.search(path.read_text()), path


# Equal to their papers' recursions


@pytest.mark.parametrize("kind", [LocalSGD, PostLocalSGD])
@PROPERTY
@given(workers=st.integers(1, 5), steps=st.integers(4, 11), every=st.integers(1, 4), until=st.integers(0, 4))
def test_local_sgd_from_the_start_or_later(kind, workers, steps, every, until):
    options = {"until": until} if kind is PostLocalSGD else {}
    ours, serial, _ = both(kind(every=every, **options), steps, workers, seed=steps)
    for step in range(1, steps + 1):
        serial.train(step - 1)
        begun = step - options.get("until", 0)
        if begun <= 0 or begun % every == 0:
            serial.x[:] = serial.x.mean(0)
    same(ours, serial.x)


@PROPERTY
@example(workers=3, steps=11, every=1, distance=0.3)  # four mixes, and nine if it were the distance from the start
@given(workers=st.integers(1, 4), steps=st.integers(4, 11), every=st.integers(1, 3), distance=st.floats(0, 1))
def test_dynamic_averaging(workers, steps, every, distance):
    rule = DynamicAveraging(every=every, distance=distance)
    parts = records(workload := bowl(steps, workers), rule, VirtualCluster(workers=workers, worker=SLOW))
    serial, mixes = Serial(workload, workers), 0
    last = serial.x[0].copy()
    for step in range(1, steps + 1):
        serial.train(step - 1)
        if step % every == 0 and np.linalg.norm(serial.x - last, axis=1).max() > distance:
            serial.x[:] = last = serial.x.mean(0)
            mixes += 1
    same(np.stack([finals(parts)[f"worker{rank}/replica"]["values"] for rank in range(workers)]), serial.x)
    assert [len(part.steps_between_mixes) for part in parts if part.node.startswith("worker")] == [mixes] * workers
    sent = sum(part.bytes["mix dense"] for part in parts)
    assert sent == mixes * workers * 4 * serial.x.shape[1], "who only looks sends no parameters"


@pytest.mark.parametrize("kind", [EASGD, ADPSGD])
def test_a_worker_that_has_not_moved_meets_nobody(kind):
    asked = []

    def should_mix(self, moved):
        asked.append(moved)
        return len(asked) % 4 == 0

    rule = type("Mine", (kind,), {"should_mix": should_mix})()
    summary = lib.train(bowl(8, 2), rule, VirtualCluster(workers=2), save=False).summary
    # Of AD-PSGD's two workers one asks, and the other is asked.
    assert summary["bytes_by_kind"]["mix dense"] == 4 * 5 * (len(asked) // 4) and all(map(len, asked))
    assert all(norm > 0 for moved in asked[1:] for norm in moved.values())


def test_apart_is_asked_where_it_can_be_answered():
    def mine(kind, answer):
        return type("Mine", (kind,), {"should_mix": lambda self, moved: answer})()

    with pytest.raises(BadOption, match=r"local-sgd: should_mix\(moved\) is asked once a worker is ready: with Mean\("):
        mine(LocalSGD, True)
    with pytest.raises(BadOption, match=r"easgd: should_mix\(moved=.*\) must say whether to mix, True or .* gave None"):
        lib.train(bowl(4, 2), mine(EASGD, None), VirtualCluster(workers=2), save=False)


@PROPERTY
@given(workers=st.integers(1, 4), rounds=st.integers(1, 4), beta=st.floats(0, 0.9), alpha=st.floats(0.5, 1.5))
def test_slowmo(workers, rounds, beta, alpha):
    ours, serial, _ = both(SlowMo(every=3, beta=beta, alpha=alpha, rate=RATE), 3 * rounds, workers)
    outer, momentum = serial.x[0].copy(), np.zeros_like(serial.x[0])
    for round in range(rounds):
        serial.train(*range(3 * round, 3 * round + 3))
        momentum = beta * momentum + (outer - serial.x.mean(0)) / RATE
        outer = outer - alpha * RATE * momentum
        serial.x[:] = outer
    same(ours, serial.x)


def test_slowmo_without_momentum_is_local_sgd_and_its_model_is_the_outer_copy():
    workload = bowl(11, 3)
    slow, _ = replicas(workload, SlowMo(every=4, beta=0, alpha=1, rate=RATE), 3)
    same(slow, replicas(workload, LocalSGD(every=4), 3)[0])
    # The three steps after the last mix are in the replicas and not in the model.
    until_the_mix = lib.train(bowl(8, 3), LocalSGD(every=4), VirtualCluster(workers=3), save=False)
    outer = lib.train(workload, SlowMo(every=4, beta=0, rate=RATE), VirtualCluster(workers=3), save=False)
    assert outer.summary["loss"] == pytest.approx(until_the_mix.summary["loss"], rel=1e-4)
    assert outer.history["loss"].iloc[-1] == outer.summary["loss"]


@PROPERTY
@given(workers=st.integers(1, 6), seed=st.integers(0, 9), steps=st.integers(1, 8), sigma=st.floats(0, 1))
def test_d_psgd_is_its_matrix_recursion_at_any_speeds(workers, seed, steps, sigma):
    ours, serial, _ = both(DPSGD(), steps, workers, seed, slowdown=sigma)
    matrix = np.zeros((workers, workers))
    for rank in range(workers):
        for other in (rank - 1, rank, rank + 1):
            matrix[rank, other % workers] += 1 / 3
    for step in range(steps):
        serial.x = (matrix @ serial.x - RATE * serial.gradients(step)).astype(np.float32)
    same(ours, serial.x)


def test_a_neighbour_that_has_left_leaves_its_weight():
    """Five batches on a ring of four: in the second step worker 0 is alone."""
    ours, _ = replicas(workload := workloads.get("quadratic", dim=5, batch_size=4, samples=4 * 5), DPSGD(), 4)
    serial = Serial(workload, 4)
    ring = (np.eye(4) + np.roll(np.eye(4), 1, 0) + np.roll(np.eye(4), -1, 0)) / 3
    serial.x = (ring @ serial.x - RATE * serial.gradients(0)).astype(np.float32)
    serial.x[0] -= RATE * serial.gradients(1)[0]
    same(ours, serial.x)


def test_d_psgd_sends_two_vectors_a_step_and_waits_for_neighbours_alone():
    """While worker 0 hangs in its third step, whoever is further away comes further."""
    workload = bowl(10, 5)
    step = workload.work().flops / SLOW.flops
    hang = Failure(node="worker0", kind="hangs", at=2.5 * step, lasts=8 * step)
    cluster = VirtualCluster(workers=5, worker=SLOW, failures=[hang], patience=100 * step)
    run = lib.train(workload, DPSGD(), cluster, save=False)
    assert run.summary["bytes_by_kind"] == {"mix dense": 10 * 5 * 2 * 5 * 4}
    begun = run.trace[(run.trace["kind"] == "compute") & (run.trace["start"] < 10 * step)].groupby("node").size()
    assert begun.tolist() == [3, 4, 5, 5, 4]


@PROPERTY
@given(pairs=st.integers(1, 3), steps=st.integers(1, 8), seed=st.integers(0, 9))
def test_ad_psgd_among_equals(pairs, steps, seed):
    """Every step is a matching: both sides take their mean, and add the gradients of what they were before."""
    workers = 2 * pairs
    ours, serial, _ = both(ADPSGD(), steps, workers, seed)
    for step in range(steps):
        gradients, mixed = serial.gradients(step), serial.x.copy()
        for active in range(0, workers, 2):
            pair = [active, 2 * ((active // 2 + step) % pairs) + 1]
            mixed[pair] = serial.x[pair].mean(0)
        serial.x = mixed - RATE * gradients
    same(ours, serial.x)


@pytest.mark.parametrize("cluster", [VirtualCluster(workers=4, slowdown=1.0), LocalCluster(workers=4)])
def test_ad_psgd_loses_nothing_at_any_speeds(cluster):
    """Every step adds 1 somewhere and an exchange moves what it takes, so the sum of all replicas counts the steps."""
    final = finals(records(Letters(samples=50), ADPSGD(), cluster))
    assert sum(final[f"worker{rank}/replica"]["values"][0] for rank in range(4)) == pytest.approx(50, abs=1e-4)


@PROPERTY
@given(workers=st.integers(1, 4), steps=st.integers(2, 9), every=st.integers(1, 2), servers=st.integers(1, 3))
def test_easgd_in_the_loop(workers, steps, every, servers):
    ours, serial, final = both(EASGD(every=every, alpha=0.25, sync_servers=servers), steps, workers)
    centre = serial.x[0].copy()
    for step in range(1, steps + 1):
        serial.train(step - 1)
        for row in serial.x if step % every == 0 else ():
            force = 0.25 * (row - centre)
            centre, row[:] = centre + force, row - force
    same(ours, serial.x)
    same(np.concatenate([final[f"sync{server}/centre"] for server in range(servers)]), centre)


@PROPERTY
@given(workers=st.integers(1, 4), rounds=st.integers(1, 4), momentum=st.floats(0, 0.9), rate=st.floats(0.3, 1.0))
def test_diloco_is_torch_s_nesterov_step_on_the_outer_gradient(workers, rounds, momentum, rate):
    ours, serial, _ = both(DiLoCo(every=3, momentum=momentum, rate=rate), 3 * rounds, workers)
    outer = torch.nn.Parameter(torch.tensor(serial.x[0]))
    nesterov = torch.optim.SGD([outer], lr=rate, momentum=momentum, nesterov=momentum > 0)
    for round in range(rounds):
        serial.train(*range(3 * round, 3 * round + 3))
        outer.grad = outer.detach() - torch.tensor(serial.x.mean(0))
        nesterov.step()
        serial.x[:] = outer.detach().numpy()
    same(ours, serial.x)


@PROPERTY
@given(workers=st.integers(1, 4), steps=st.integers(1, 8), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_sparta_averages_what_its_round_chooses(workers, steps, share):
    rule = SPARTA(share=share)
    ours, serial, _ = both(rule, steps, workers)
    for step in range(steps):
        serial.train(step)
        chosen = rule._chosen(5, step)
        serial.x[:, chosen] = serial.x[:, chosen].mean(0)
    same(ours, serial.x)
    assert share < 1 or np.allclose(ours, ours[0])


def test_sparta_chooses_its_share_and_others_each_round():
    """1,000 parameters, a tenth of them in each of 100 rounds: each is chosen about ten times, and none is left out for ever."""
    times = np.bincount(np.concatenate([SPARTA()._chosen(1000, round) for round in range(100)]), minlength=1000)
    assert times.sum() == pytest.approx(10_000, rel=0.03) and times.max() < 26 and (times == 0).sum() <= 1


NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize(
    "optimizer, kind, options",
    [
        (None, torch.optim.SGD, {"lr": 1.0}),
        (Momentum(**NESTEROV), torch.optim.SGD, NESTEROV),
        (Adagrad(lr=0.05), torch.optim.Adagrad, {"lr": 0.05}),
        (Adam(lr=0.05), torch.optim.Adam, {"lr": 0.05}),
    ],
)
@PROPERTY
@given(workers=st.integers(1, 4), steps=st.integers(2, 9), every=st.integers(1, 2), servers=st.integers(1, 3))
def test_downpour_steps_its_centre_by_what_each_worker_has_moved(
    optimizer, kind, options, workers, steps, every, servers
):
    """As torch's class does, one worker after another; without an optimiser what they moved is added."""
    ours, serial, final = both(Downpour(every=every, sync_servers=servers, optimizer=optimizer), steps, workers)
    fetched, centre = serial.x.copy(), torch.nn.Parameter(torch.from_numpy(serial.x[0].copy()))
    outer = kind([centre], **options)
    for step in range(1, steps + 1):
        serial.train(step - 1)
        for rank, row in enumerate(serial.x) if step % every == 0 else ():
            centre.grad = torch.from_numpy(fetched[rank] - row)
            outer.step()
            row[:] = fetched[rank] = centre.detach().numpy()
    same(ours, serial.x)
    same(np.concatenate([final[f"sync{server}/centre"] for server in range(servers)]), centre.detach().numpy())


def test_a_worker_that_joins_downpour_again_pushes_nothing_of_the_replica_that_it_was_given():
    """Its donor had moved by 2 since it fetched, and pushes that itself."""
    rule, fetched, mine = Downpour(), np.zeros(3, np.float32), np.full(3, 2, np.float32)
    memory = rule.memory_on_rejoin(fetched, mine)
    assert not rule.send(memory, mine, 0).any()
    assert (rule.send(memory, mine + 1, 0) == -1).all()


def test_a_centre_s_optimiser_is_one():
    def trained(optimizer):
        return lib.train(bowl(4, 2), Downpour(optimizer=optimizer), VirtualCluster(workers=2), save=False)

    with pytest.raises(BadOption, match="downpour: optimizer must be"):
        trained(0.1)
    with pytest.raises(BadOption, match=r"downpour: optimizer\.name: no optimiser"):
        trained({"name": "lion"})
    assert trained({"name": "adagrad", "lr": 0.1}).digest == trained(Adagrad(lr=0.1)).digest


# A shadow that averages one part of the parameters after another, as a user would compose it


def part_of(size, round, parts):
    return slice(size * (round % parts) // parts, size * (round % parts + 1) // parts)


def in_parts(parts):
    def send(self, memory, mine, round):
        return mine[part_of(mine.size, round, parts)]

    def merge(self, memory, mine, mix):
        moved = mine.copy()
        moved[part_of(mine.size, mix.round, parts)] += 0.5 * (mix.theirs - mix.sent)
        return memory, moved

    return composed(exchange=Mean(ahead=False), when=Background(), data="queue", rows=Async(), send=send, merge=merge)


def test_a_shadow_of_parts_is_its_recursion(workers=3, steps=9):
    """Steps that last longer than messages: a mix falls into the next step, whose gradient is that of before."""
    ours, serial, _ = both(in_parts(2), steps, workers)
    for round in range(-1, steps):
        gradients = serial.gradients(round + 1)
        if round >= 0:
            part = serial.x[:, part_of(serial.x.shape[1], round, 2)]
            part += 0.5 * (part.mean(0) - part)
        if round + 1 < steps:
            serial.x -= RATE * gradients
    same(ours, serial.x)


class Seven(Climb):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(7))

    def forward(self, batch, rows):
        return rows["letter"].sum() + self.w.sum()


@dataclass(frozen=True, kw_only=True)
class SevenLetters(Letters):
    name: ClassVar = "seven-letters"

    def model(self, seed):
        return Seven()


@pytest.mark.parametrize("cluster", [VirtualCluster(workers=3, slowdown=1.0), LocalCluster(workers=3)])
def test_a_shadow_of_parts_loses_no_step_at_any_speeds(cluster):
    """Every step adds 1 to each of seven numbers, and a mix moves what it takes: the sums of all replicas count the steps."""
    parts = records(SevenLetters(samples=60), in_parts(3), cluster)
    final = finals(parts)
    assert sum(final[f"worker{rank}/replica"]["values"] for rank in range(3)) == pytest.approx(np.full(7, 60), abs=1e-3)
    mixed = sum(part.bytes["mix dense"] for part in parts)
    mixes = sum(len(part.steps_between_mixes) for part in parts)
    assert mixes > 0 and 2 * 4 * mixes <= mixed <= 3 * 4 * mixes  # two or three of the seven numbers each time


@pytest.mark.nightly
@pytest.mark.ray
def test_on_ray_workers_really_call_each_other(joined_ray):
    workload, ring = bowl(6, 3), DPSGD()
    modelled, real = (finals(records(workload, ring, kind(workers=3))) for kind in (VirtualCluster, RayCluster))
    for rank in range(3):
        same(real[f"worker{rank}/replica"]["values"], modelled[f"worker{rank}/replica"]["values"])
    pairs = finals(records(Letters(samples=20), ADPSGD(), RayCluster(workers=2)))
    assert sum(pairs[f"worker{rank}/replica"]["values"][0] for rank in range(2)) == pytest.approx(20, abs=1e-4)
