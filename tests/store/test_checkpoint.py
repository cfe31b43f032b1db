"""Checkpoints: everything comes back, old or new whenever it is interrupted, and every wrong byte is found and named."""

import dataclasses
import os
import pickle
import sys
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import paths, protocols
from lib.errors import BadOption, Damaged, LockstepError
from lib.protocols.oac import OptimisticState
from lib.protocols.server_rule import Push
from lib.store import checkpoint
from lib.store.dense import DenseStore
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.rows import Rows
from lib.store.table import Table
from lib.streams import stream


def same(a, b):
    """Equal in value, type and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, np.random.Generator):
        return same(a.bit_generator.state, b.bit_generator.state)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.keys(), b.keys())) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


def table(optimizer=None, pushes=5, seed=0):
    made, rng = Table(3, optimizer or Adagrad(lr=0.1), seed=seed), np.random.default_rng(seed)
    for stamp in range(pushes):
        made.push(rng.integers(-40, 40, 30), rng.normal(0, 1, (30, 3)).astype(np.float32), stamp)
    made.pull([1000, 1001])
    return made


def states():
    """All that a training has to keep."""
    rule = protocols.get("gba", size=4)
    state = rule.init(3)
    for batch in range(3):
        state, token = rule.on_start(state, batch)
        state, _ = rule.on_push(state, Push(batch, token, batch))
    host = OptimisticState(finished=3, early=frozenset({5, 7}), outstanding={9: 3, 8: 2})
    random = stream(0, "slowdown", "worker0")
    random.standard_normal(13)
    dense = DenseStore(np.arange(6, dtype=np.float32), Adam(lr=0.1))
    dense.apply(np.ones(6, np.float32))
    waiting = {
        push: (np.ones(6, np.float32), {"t": (np.arange(3), np.ones((3, 3), np.float32))}) for push in state.pending
    }
    return {
        "server0": {"rule": state, "dense": dense.export(), "tables": {"t": table().dump()}, "waiting": waiting},
        "host": {"rule": host, "rows": {"t": table(SGD(lr=1.0), seed=1).export()}},
        "worker0": {
            "slowdown": random,
            "tokens": {3: 1, 4: 1},
            "cursor": 17,
            "samples": 1.5,
            "left": False,
            "no": None,
        },
        "empty": {},
    }


def test_everything_comes_back_as_it_was(tmp_path):
    written = states()
    size = checkpoint.save(tmp_path / "a", written)
    read = checkpoint.load(tmp_path / "a")
    assert same(read, written)
    assert list(read["server0"]["waiting"]) == [Push(0, 0, 0), Push(1, 0, 1), Push(2, 0, 2)]
    assert size == (tmp_path / "a").stat().st_size
    read["server0"]["dense"]["values"][:] = 0  # what was loaded may be written to
    assert read["worker0"]["slowdown"].standard_normal() == written["worker0"]["slowdown"].standard_normal()


TREES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.frozensets(st.integers(), max_size=3),
        st.sampled_from(
            [np.float32(1.5), np.int64(3), np.array(2.5), np.empty((0, 3)), np.arange(6, dtype=np.uint8)[::2]]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(st.tuples(st.integers(), st.text(max_size=2), st.floats()), min_size=8, max_size=10),
        st.dictionaries(st.one_of(st.text(max_size=3), st.just("$")), inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(), st.tuples(st.integers(), st.booleans())), inner, max_size=4),
        st.dictionaries(st.integers(), st.integers(), max_size=4).map(Counter),
    ),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(thing=TREES)
def test_any_tree_comes_back_as_it_was(thing, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "tree"
    checkpoint.save(path, thing, durable=False)
    assert same(checkpoint.load(path), thing)


def test_nothing_is_made_that_was_not_named(tmp_path):
    for unfit in (object(), tmp_path, len, lambda: 1):  # Ray replaces print
        with pytest.raises((BadOption, AttributeError, pickle.PicklingError)):
            checkpoint.save(tmp_path / "a", {"a": {"x": unfit}})
    for unfit in (np.array([object()]), np.zeros(1, ">f4"), np.zeros(1, np.longdouble)):
        with pytest.raises(BadOption, match=r"an array of \S+ cannot be saved"):
            checkpoint.save(tmp_path / "a", {"a": [unfit]})
    assert not list(tmp_path.iterdir()), "what fails leaves nothing"
    checkpoint.save(tmp_path / "a", {"a": [Theirs(3)]})
    with pytest.raises(BadOption, match=r"holds a .*\.Theirs, which the reader did not name; it named: "):
        checkpoint.load(tmp_path / "a", [Rows])
    assert checkpoint.load(tmp_path / "a", [Theirs]) == {"a": [Theirs(3)]}


@dataclasses.dataclass(frozen=True)
class Theirs:
    """A dataclass of another package."""

    number: int


class Stranger:
    """What a stranger's pickle would do."""

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_strangers_code_is_not_run(tmp_path):
    evil, path = Stranger(), tmp_path / "a"
    evil.folder = tmp_path / "made"
    torch.save(evil, path)
    with open(path, "ab") as file:
        file.write(checkpoint._checksum(path, 0).encode())
    with pytest.raises(BadOption, match="which the reader did not name"):
        checkpoint.load(path)
    assert not evil.folder.exists()


def test_every_wrong_byte_is_found_and_the_file_is_named(tmp_path):
    """Bytes that are flipped, and a file that is cut anywhere."""
    checkpoint.save(tmp_path / "good", states())
    data, rng, path = (tmp_path / "good").read_bytes(), np.random.default_rng(0), tmp_path / "bad"
    for _ in range(400):
        wrong = bytearray(data)
        if rng.random() < 0.3:
            del wrong[rng.integers(len(data)) :]
        else:
            for at in rng.integers(0, len(data), rng.choice([1, 1, 2, 20])):
                wrong[at] ^= 1 << rng.integers(8)
        if wrong != data:
            path.write_bytes(wrong)
            with pytest.raises(Damaged, match=str(path)):
                checkpoint.load(path)


def test_each_single_bit_of_a_small_checkpoint_matters(tmp_path):
    path = tmp_path / "a"
    checkpoint.save(path, {"x": np.ones(2, np.float32), "z": np.array([True])})
    data = path.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            with pytest.raises(Damaged):
                checkpoint.load(path)
        path.write_bytes(data[:at])
        with pytest.raises(Damaged):
            checkpoint.load(path)


def test_what_is_no_checkpoint_is_named(tmp_path):
    torch.save({"x": 3}, tmp_path / "strange")
    (tmp_path / "folder").mkdir()
    for name in ("missing", "strange", "folder"):
        with pytest.raises(Damaged, match=f"{name} is no checkpoint"):
            checkpoint.load(tmp_path / name)


STEPS = (checkpoint.__file__, paths.__file__)
"""The code in which a save does its steps."""


def at_step(number, act, work, within=STEPS):
    """Do the work, and `act` before its step of that number, a line of code in these files; whether there was one."""
    left, before = number, sys.gettrace()

    def step(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in within:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                act()
        return step

    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.parametrize("durable", [False, True])
def test_killed_between_any_two_steps_the_old_or_the_new_one_is_there(tmp_path, durable):
    path, seen, number = tmp_path / "a", [], 0
    while True:
        number += 1
        checkpoint.save(path, {"n": np.zeros(4)})
        child = os.fork()
        if child == 0:
            try:
                save = lambda: checkpoint.save(path, {"n": np.ones(4)}, durable=durable)  # noqa: E731
                os._exit(0 if not at_step(number, lambda: os._exit(9), save) else 1)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen.append(checkpoint.load(path)["n"].sum())
        if status == 0:  # it has no such step
            break
        assert status == 9
    assert set(seen) == {0, 4} and seen == sorted(seen) and len(seen) > 20


def test_interrupted_between_any_two_steps_the_old_or_the_new_one_is_there(tmp_path):
    path, seen, number, left = tmp_path / "a", [], 0, True

    def interrupt():
        raise KeyboardInterrupt

    while left:
        number += 1
        checkpoint.save(path, {"n": 1})
        with suppress(KeyboardInterrupt):
            left = at_step(number, interrupt, lambda: checkpoint.save(path, {"n": 2}))
        seen.append(checkpoint.load(path)["n"])
    assert seen == sorted(seen) and set(seen) == {1, 2}
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["a"]


@pytest.mark.parametrize("failing", [(torch, "save"), (paths, "_sync"), (paths.os, "replace")])
def test_a_save_that_fails_in_the_midst_leaves_the_old_one(tmp_path, monkeypatch, failing):
    path = tmp_path / "a"
    checkpoint.save(path, {"n": 1})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(*failing, full)
        with pytest.raises(LockstepError, match=r"cannot write .*a: No space left on device; nothing there was"):
            checkpoint.save(path, {"n": 2})
    assert checkpoint.load(path) == {"n": 1}
    checkpoint.save(path, {"n": 3})
    assert checkpoint.load(path) == {"n": 3}
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("limits", [{}, {"max_rows": 50}])
def test_a_dump_goes_on_bit_for_bit(tmp_path, limits):
    original, rng = Table(3, Adagrad(lr=0.1), seed=0, **limits), np.random.default_rng(0)
    again = Table(3, Adagrad(lr=0.1), seed=0, **limits)

    def use(*tables):
        ids, grads = rng.integers(0, 90, 80), rng.normal(0, 1, (80, 3)).astype(np.float32)
        for each in tables:
            each.pull(ids + 5)
            each.push(ids, grads, 7)

    use(original)
    checkpoint.save(tmp_path / "a", {"t": original.dump()})
    again.restore(checkpoint.load(tmp_path / "a")["t"])
    for _ in range(4):
        assert same(again.export(), original.export())
        assert (again.lost, again.evicted) == (original.lost, original.evicted)
        use(original, again)
    with pytest.raises(BadOption, match="do not fit a table"):
        Table(4, Adagrad(lr=0.1), seed=0).restore(original.dump())
    empty = Table(3, SGD(lr=1.0), seed=0)
    empty.restore(Table(3, SGD(lr=1.0), seed=0).dump())
    assert len(empty) == 0


def test_a_dump_in_memory_that_may_only_be_read_is_copied():
    """As Ray hands it to a server."""
    original, again = table(), Table(3, Adagrad(lr=0.1), seed=0)
    content = original.dump()
    content.words.flags.writeable = False
    again.restore(content)
    assert not np.shares_memory(again.dump().words, content.words)
    again.push([1, 77], np.ones((2, 3), np.float32), 9)
    assert len(again) == len(original) + 1
