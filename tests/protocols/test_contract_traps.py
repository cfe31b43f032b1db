"""What a stranger to the contracts might write: each slip is told by rule, method and what is right, or does no harm."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest

import lib
from lib import Failure, Node, VirtualCluster, workloads
from lib.errors import BadOption
from lib.protocols import Pair
from lib.protocols.baselines import Async
from lib.protocols.easgd import EASGD, Downpour
from lib.protocols.hop import HopBS
from lib.protocols.local_sgd import LocalSGD
from lib.protocols.mixing import Loop
from lib.protocols.server_rule import Apply, Push
from lib.store.optim import SGD
from tests.toys import Letters, finals, records

BOWL = workloads.get("quadratic", dim=5, batch_size=4, samples=4 * 12 * 3, dense_optimizer=SGD(lr=0.1))
SLOW = VirtualCluster(workers=3, worker=Node(flops=1e4))


def variant(kind, **values):
    """A subclass as a user would write it."""
    options = {name: value for name, value in values.items() if name in {each.name for each in fields(kind)}}
    methods = {name: value for name, value in values.items() if name not in options}
    return dataclass(frozen=True, kw_only=True)(type("Mine", (kind,), {"name": "mine", **methods}))(**options)


def trained(rule, workload=BOWL, cluster=SLOW):
    return lib.train(workload, rule, cluster, save=False)


# Replica rules: what they are given is lent


class TestLent:
    def test_a_rule_that_keeps_what_it_was_given_keeps_what_it_was(self):
        """One remembers its replica before each mix, the other a copy of it; both start the next mix from there."""

        def merge(copied):
            def merged(self, memory, mine, mix):
                before = mine.copy() if copied else mine
                return before, mix.theirs + (0.1 * (memory - mix.theirs) if memory is not None else 0)

            return merged

        kept, copied = (variant(LocalSGD, every=2, merge=merge(each)) for each in (False, True))
        assert trained(kept).digest == trained(copied).digest

    @pytest.mark.parametrize("kind, method", [(LocalSGD, "merge"), (LocalSGD, "send"), (EASGD, "update_centre")])
    @pytest.mark.parametrize("which", [0, 1])
    def test_a_rule_that_writes_into_what_it_was_given_is_told(self, kind, method, which):
        def writes(self, first, second, third=None):
            given = {"merge": (second, getattr(third, "theirs", None)), "update_centre": (first, second)}
            given.get(method, (second, second))[which][:] = 0
            return first, second

        with pytest.raises(BadOption, match=rf"mine: {method} writes into an array that it is given; work on a copy"):
            trained(variant(kind, **{method: writes}))

    @pytest.mark.parametrize("answer", [np.zeros(2, np.float32), None, (1, 2, 3)])
    def test_update_centre_and_merge_return_two_things(self, answer):
        with pytest.raises(BadOption, match="mine: update_centre must return two things, centre and answer"):
            trained(variant(EASGD, update_centre=lambda self, centre, message: answer))
        with pytest.raises(BadOption, match="mine: merge must return two things, memory and replica"):
            trained(variant(LocalSGD, merge=lambda self, memory, mine, mix: answer))

    def test_what_is_a_worker_s_own_begins_anew_when_it_is_back(self):
        """Downpour: every step adds 1 and is pushed once. Worker 1 dies when all it did has been pushed, and comes back with the
        replica of worker 0, which has pushed all but 4 steps: these are worker 0's to push."""
        step = Letters().work().flops / 1e3
        dies = Failure(node="worker1", kind="dies", at=10.5 * step, lasts=4 * step)
        cluster = VirtualCluster(workers=2, worker=Node(flops=1e3), failures=[dies], patience=0.1 * step)
        parts = records(Letters(samples=80), Downpour(every=5), cluster)
        ledgers = [record.ledger for record in parts if record.node.startswith("worker")]
        assert len(ledgers) == 3, "it has died"
        assert sum(ledger["applied"] for ledger in ledgers) == sum(ledger["issued"] for ledger in ledgers) == 79
        assert finals(parts)["sync0/centre"].tolist() == [76], "79, less what the two have not pushed at the end"


# Server rules: what they decide is checked


def push_only(on_push, kind=Async, **values):
    return variant(kind, on_push=on_push, **values)


def update(push):
    return (Apply((push,), (1.0,), 1),)


@pytest.mark.parametrize(
    "on_push, words",
    [
        (lambda self, s, p: (s.receive(p), ()), "on_push never decided what becomes of a gradient, and 36 are held"),
        (lambda self, s, p: (s, update(p)), r"on_push does not count .* begin with state.receive\(push\)"),
        (lambda self, s, p: (s.receive(p), update(p)), r"by state.release\(\)"),
        (
            lambda self, s, p: (replace(s.receive(p), pending=()), update(p)),
            "1 updates take the state from step 0 to 0",
        ),
        (lambda self, s, p: (s.receive(p).release(), update(p)[0]), "decisions are a tuple of Apply and Drop"),
        (lambda self, s, p: s.receive(p).release(), "on_push must return the new state and a tuple of decisions"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((p, p), (1.0, 1.0), 2),)), "decides twice of a push"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((Push(7, 0, 99),), (1.0,), 1),)), "that is not there"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((p,), (), 1),)), "a finite weight for each of its pushes"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((p,), (1.0,), 0),)), "divisor must be a positive number"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((p,), (1.0,), 1, -0.5),)), "rate is a factor .* not -0.5"),
        (lambda self, s, p: (s.receive(p).release(), (Apply((p,), (1.0,), 1, np.nan),)), "rate is a factor .* not nan"),
    ],
)
def test_a_slip_of_on_push_is_told(on_push, words):
    with pytest.raises(BadOption, match=rf"mine: .*{words}"):
        trained(push_only(on_push))


def test_a_rule_says_what_it_declares():
    @dataclass(frozen=True, kw_only=True)
    class Silent(lib.protocols.server_rule.ServerRule):
        name: ClassVar = "silent"
        drops: ClassVar = False

        def on_push(self, state, push):
            return state, ()

    with pytest.raises(BadOption, match="Silent: blocks must be declared, as in `blocks: ClassVar = True`"):
        Silent()


def test_an_option_is_set_with_its_type():
    """Without, a dataclass would go on with the default of the class above."""
    with pytest.raises(BadOption, match=r"Mine: every = 3 would not be the option's default, .* `every: ... = 3`"):
        type("Mine", (LocalSGD,), {"every": 3})
    typed = type("Mine", (LocalSGD,), {"every": 3, "__annotations__": {"every": "int"}})
    assert dataclass(frozen=True, kw_only=True)(typed)().every == 3


def test_a_rule_hears_what_was_read_and_not_only_when_its_worker_started():
    """Reading takes as long as several updates: more updates are in what is read than the token tells."""
    seen = []

    def on_push(self, state, push):
        seen.append((push.token, push.read, state.step))
        return Async.on_push(self, state, push)

    server = Node(cores=4, flops=1e9, memory=2e4)
    workload = workloads.get("ctr-synthetic", samples=16 * 60, batch_size=16, vocabulary=50, evaluation_samples=50)
    lib.train(workload, push_only(on_push), VirtualCluster(workers=4, server=server, slowdown=0.6), save=False)
    assert all(token <= read <= step for token, read, step in seen)
    assert sum(read > token for token, read, _ in seen) > len(seen) / 4


# What can be seen before the first step


def test_due_follows_from_its_arguments_alone():
    asked = []
    counting = variant(LocalSGD, is_due=lambda self, step, seconds: asked.append(step) or len(asked) % 2 == 0)
    with pytest.raises(BadOption, match=r"mine: is_due\(step=1, seconds=inf\) gave two answers"):
        trained(counting)


def test_a_gate_for_rows_needs_rows():
    pair = Pair(sparse=HopBS(bound=3), dense=variant(LocalSGD, blocks=False, when=Loop(every=2)))
    with pytest.raises(BadOption, match=r"workers would wait .* 'hop-bs' keeps the rows, and 'quadratic' has none"):
        trained(pair)
