"""Checkpoints: everything comes back, whole or not at all, chains and shards; and every wrong byte is found and named."""

import dataclasses
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lib import protocols
from lib.errors import BadOption, Damaged, LockstepError
from lib.protocols.pipeline_rule import HostState
from lib.protocols.server_rule import Push, ServerState
from lib.store import checkpoint
from lib.store.dense import DenseStore
from lib.store.dump import Dump, dump, restore
from lib.store.optim import SGD, Adagrad, Adam
from lib.store.placement import Uniform, place_rows
from lib.store.rows import Rows
from lib.store.table.table import Table
from lib.store.wire.kernels import XXH64
from lib.streams import stream

KINDS = [ServerState, HostState, Push]


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


def parts():
    """All that a training has to keep."""
    rule = protocols.get("gba", buffer=4)
    state = rule.init(3)
    for batch in range(3):
        state, token = rule.on_start(state, batch)
        state, _ = rule.on_push(state, Push(batch, token, batch))
    host = HostState(finished=3, early=frozenset({5, 7}), outstanding={9: 3, 8: 2})
    random = stream(0, "slowdown", "worker0")
    random.standard_normal(13)
    dense = DenseStore(np.arange(6, dtype=np.float32), Adam(lr=0.1))
    dense.apply(np.ones(6, np.float32))
    waiting = {
        push: (np.ones(6, np.float32), {"t": (np.arange(3), np.ones((3, 3), np.float32))}) for push in state.held
    }
    return {
        "server0": {"rule": state, "dense": dense.export(), "rows": {"t": table().export()}, "waiting": waiting},
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
    written = parts()
    size = checkpoint.save(tmp_path / "a", written)
    read = checkpoint.load(tmp_path / "a", KINDS)
    assert same(read, written)
    assert list(read["server0"]["waiting"]) == [Push(0, 0, 0), Push(1, 0, 1), Push(2, 0, 2)]
    assert size == sum(path.stat().st_size for path in (tmp_path / "a").iterdir()) - 128
    assert same(checkpoint.load(tmp_path / "a", KINDS, parts=["worker0"]), {"worker0": read["worker0"]})
    read["server0"]["dense"]["values"][:] = 0  # what was loaded may be written to
    assert read["worker0"]["slowdown"].standard_normal() == written["worker0"]["slowdown"].standard_normal()
    checkpoint.verify(tmp_path / "a")


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
    folder = tmp_path_factory.getbasetemp() / "tree"
    checkpoint.save(folder, {"part": thing}, durable=False)
    assert same(checkpoint.load(folder)["part"], thing)


def test_nothing_is_pickled_and_nothing_is_made_that_was_not_named(tmp_path):
    with pytest.raises(BadOption, match=r"a/x: a builtins.object cannot be saved"):
        checkpoint.save(tmp_path / "a", {"a": {"x": object()}})
    with pytest.raises(BadOption, match=r"a/0: an array of object cannot be saved"):
        checkpoint.save(tmp_path / "a", {"a": [np.array([object()])]})
    with pytest.raises(BadOption, match=r"'../a' is no name of a part"):
        checkpoint.save(tmp_path / "a", {"../a": 1})
    assert not list(tmp_path.iterdir()), "what fails leaves nothing"
    checkpoint.save(tmp_path / "a", {"a": [Push(1, 2, 3)]})
    with pytest.raises(BadOption, match=r"a/0 is a Push, which the reader did not name"):
        checkpoint.load(tmp_path / "a")
    with pytest.raises(BadOption, match=r"has no part 'b'; it has: a"):
        checkpoint.load(tmp_path / "a", parts=["b"])
    assert all(b"pickle" not in path.read_bytes() for path in (tmp_path / "a").iterdir())


def wrong_bytes(folder: Path, rng: np.random.Generator) -> str:
    """Flip bits in some bytes of one file, or cut it; which."""
    path = rng.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    if rng.random() < 0.3:
        del data[rng.integers(len(data)) :]
    else:
        for at in rng.integers(0, len(data), rng.choice([1, 1, 2, 20])):
            data[at] ^= rng.integers(1, 256)
    if bytes(data) == path.read_bytes():
        data[0] ^= 1
    path.write_bytes(data)
    return path.name


def test_every_wrong_byte_is_found_and_named(tmp_path):
    good, rng = tmp_path / "good", np.random.default_rng(0)
    checkpoint.save(good, parts())
    for _ in range(400):
        bad = tmp_path / "bad"
        shutil.copytree(good, bad)
        name = wrong_bytes(bad, rng)
        with pytest.raises(Damaged) as caught:
            checkpoint.load(bad, KINDS)
        expected = f"file {name} (part {name.removesuffix('.bin')!r})" if name.endswith(".bin") else name
        assert expected in str(caught.value)
        shutil.rmtree(bad)


def test_each_single_byte_of_a_small_checkpoint_matters(tmp_path):
    folder = tmp_path / "a"
    checkpoint.save(folder, {"p": {"x": np.arange(9)}})
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            with pytest.raises(Damaged):
                checkpoint.load(folder)
            if at % 7 == 0:
                path.write_bytes(data[:at])
                with pytest.raises(Damaged):
                    checkpoint.load(folder)
        path.write_bytes(data)
    checkpoint.verify(folder)


@pytest.mark.parametrize("name", ["manifest.json", "complete", "server0.bin"])
def test_a_missing_file_is_named(tmp_path, name):
    checkpoint.save(tmp_path / "a", parts())
    (tmp_path / "a" / name).unlink()
    with pytest.raises(Damaged, match=name):
        checkpoint.load(tmp_path / "a", KINDS)


class Broken:
    """Works once at most, then finds the disk full."""

    def __init__(self, function, works):
        self.function, self.works = function, works

    def __call__(self, *args):
        if not self.works:
            raise OSError(28, "No space left on device")
        self.works = False
        return self.function(*args)


def test_a_save_that_fails_in_the_midst_leaves_the_old_one(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    checkpoint.save(folder, {"x": {"n": 1}, "y": {}})
    for failing in ("_write", "_put", "_replace"):
        broken = Broken(getattr(checkpoint, failing), works=failing != "_replace")
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, failing, broken)
            with pytest.raises(LockstepError, match=r"cannot save the checkpoint .*: No space left on device"):
                checkpoint.save(folder, {"x": {"n": 2}, "y": {}})
        assert checkpoint.load(folder) == {"x": {"n": 1}, "y": {}}
        assert os.listdir(tmp_path) == ["a"]
    checkpoint.save(folder, {"x": {"n": 3}})
    assert checkpoint.load(folder) == {"x": {"n": 3}}
    assert os.listdir(tmp_path) == ["a"]


def test_the_latest_complete_one_is_found(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    for number in (1, 2, 10):
        checkpoint.save(tmp_path / f"cut-{number:06}", {})
    shutil.copytree(tmp_path / "cut-000010", tmp_path / ".cut-000011-new-x")
    shutil.copytree(tmp_path / "cut-000010", tmp_path / "cut-000012")
    (tmp_path / "cut-000012" / "complete").unlink()
    assert checkpoint.latest(tmp_path) == tmp_path / "cut-000010"


def test_an_incremental_one_holds_what_changed(tmp_path):
    """Stamps 0 to 4 are in the base; then 3 of some 60 ids change, one is new, one was only looked up."""
    server = table()
    checkpoint.save(tmp_path / "0", {"s": {"t": server.export()}})
    server.push([-40, 7, 9999], np.ones((3, 3), np.float32), 5)
    server.pull([5000])
    checkpoint.save(tmp_path / "1", {"s": {"t": server.export(), "n": 1}}, base=tmp_path / "0")
    manifest = json.loads((tmp_path / "1" / "manifest.json").read_text())
    assert manifest["base"]["folder"] == "0" and manifest["stamps"] == {"s/t": 5}
    assert (tmp_path / "1" / "s.bin").stat().st_size < 0.6 * (tmp_path / "0" / "s.bin").stat().st_size
    assert same(checkpoint.load(tmp_path / "1"), {"s": {"t": server.export(), "n": 1}})
    assert checkpoint.chain(tmp_path / "1") == [tmp_path / "1", tmp_path / "0"]
    shutil.copytree(tmp_path, moved := tmp_path.parent / f"{tmp_path.name}-moved")
    assert same(checkpoint.load(moved / "1")["s"]["t"], server.export()), "a chain may move as a whole"
    checkpoint.save(tmp_path / "0", {"s": {"t": table(seed=3).export()}})
    with pytest.raises(Damaged, match=r"builds on another .*0 than the one that is there"):
        checkpoint.load(tmp_path / "1")
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(Damaged, match=r"builds on .*0, which is not there"):
        checkpoint.load(tmp_path / "1")
    data = (moved / "0" / "s.bin").read_bytes()
    (moved / "0" / "s.bin").write_bytes(data[:-1])
    with pytest.raises(Damaged, match=r"0: file s.bin \(part 's'\) has"):
        checkpoint.load(moved / "1")
    with pytest.raises(Damaged, match=r"file s.bin"):
        checkpoint.verify(moved / "1")


class Chains(RuleBasedStateMachine):
    """Whole and incremental checkpoints in turn, of tables that also lose rows, against what was there."""

    def __init__(self):
        super().__init__()
        self.folder = Path(os.environ["LOCKSTEP_REPORTS"]) / "chains"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.table, self.now, self.saved = Table(2, Adagrad(lr=0.5), seed=0), 0, []

    @rule(ids=st.lists(st.integers(0, 30), max_size=8), value=st.integers(-3, 3))
    def push(self, ids, value):
        self.table.push(ids, np.full((len(ids), 2), value, np.float32), self.now)
        self.now += 1

    @rule(ids=st.lists(st.integers(0, 60), max_size=3))
    def pull(self, ids):
        self.table.pull(ids)

    @rule(ids=st.sets(st.integers(0, 60), max_size=5))
    def evict(self, ids):
        rows = self.table.export()
        stays = ~np.isin(rows.ids, list(ids))
        self.table.load(Rows(rows.ids[stays], rows.values[stays], rows.state[stays], rows.stamps[stays]))

    @rule(whole=st.booleans())
    def save(self, whole):
        folder = self.folder / f"{len(self.saved):03}"
        base = None if whole or not self.saved else self.saved[-1][0]
        checkpoint.save(folder, {"s": {"t": self.table.export()}}, base=base, durable=False)
        self.saved.append((folder, self.table.export()))

    @invariant()
    def every_checkpoint_is_what_was_saved(self):
        for folder, rows in self.saved[-2:]:
            assert same(checkpoint.load(folder)["s"]["t"], rows)


TestChains = Chains.TestCase
TestChains.settings = settings(derandomize=True, deadline=None, max_examples=25, stateful_step_count=20, database=None)


def test_the_checksum_is_xxh64():
    """Against the algorithm as it is written down, with Python's integers; and a published value."""
    p1, p2, p3, p4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
    mask = 2**64 - 1

    def turn(x, by):
        return (x << by | x >> 64 - by) & mask

    def plain(data):
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        for at, word in enumerate(np.frombuffer(data, "<u8").tolist()):
            lanes[at % 4] = turn((lanes[at % 4] + word * p2) & mask, 31) * p1 & mask
        whole = sum(turn(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            whole = ((whole ^ (turn(lane * p2 & mask, 31) * p1 & mask)) * p1 + p4) & mask
        whole = (whole + len(data)) & mask
        whole = (whole ^ whole >> 33) * p2 & mask
        whole = (whole ^ whole >> 29) * p3 & mask
        return f"{whole ^ whole >> 32:016x}"

    for size in (32, 64, 96, 4096):
        data, seal = np.random.default_rng(size).integers(0, 256, size, np.uint8), XXH64()
        seal.update(data[:32])
        seal.update(data[32:])
        assert seal.hexdigest() == plain(data.tobytes())


@pytest.mark.parametrize("limits", [{}, {"max_rows": 500}])
def test_a_dump_goes_on_bit_for_bit(tmp_path, limits):
    original, rng = Table(3, Adagrad(lr=0.1), seed=0, **limits), np.random.default_rng(0)
    again = Table(3, Adagrad(lr=0.1), seed=0, **limits)

    def use(*tables):
        ids, grads = rng.integers(0, 90, 80), rng.normal(0, 1, (80, 3)).astype(np.float32)
        for each in tables:
            each.pull(ids + 5)
            each.push(ids, grads, 7)

    use(original)
    original.evict(np.arange(10))
    checkpoint.save(tmp_path / "a", {"s": {"t": dump(original)}})
    restore(again, checkpoint.load(tmp_path / "a", [Dump])["s"]["t"])
    for _ in range(4):
        assert same(again.export(), original.export()) and same(again.memory(), original.memory())
        use(original, again)
    with pytest.raises(BadOption, match="do not fit a table"):
        restore(Table(4, Adagrad(lr=0.1), seed=0), dump(original))
    empty = Table(3, SGD(lr=1.0), seed=0)
    restore(empty, dump(Table(3, SGD(lr=1.0), seed=0)))
    assert len(empty) == 0


def test_an_index_that_leads_elsewhere_is_refused():
    table = Table(2, SGD(lr=1.0), seed=0)
    table.pull(np.arange(10))
    content, entries = dump(table), dump(table).index
    used = np.flatnonzero(entries)
    for place, entry in ((used[0], 11), (used[0], 0), (np.flatnonzero(entries == 0)[0], entries[used[0]])):
        wrong = entries.copy()
        wrong[place] = entry
        with pytest.raises(Damaged, match="does not lead to 10 records"):
            restore(Table(2, SGD(lr=1.0), seed=0), dataclasses.replace(content, index=wrong))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5)])
def test_restart_on_another_number_of_shards(tmp_path, before, after):
    whole = table(Adam(lr=0.1))
    shards = place_rows([whole.export()], "t", Uniform(shards=before))
    checkpoint.save(tmp_path / "a", {f"server{n}": {"t": rows} for n, rows in enumerate(shards)})
    read = [part["t"] for part in checkpoint.load(tmp_path / "a").values()]
    again = place_rows(read, "t", placement := Uniform(shards=after))
    servers = [Table(3, Adam(lr=0.1), seed=0) for _ in again]
    for server, rows in zip(servers, again, strict=True):
        server.load(rows)
    ids, grads = np.arange(-50, 50), np.ones((100, 3), np.float32)
    whole.push(ids, grads, 9)
    for server, mine in zip(servers, placement.split("t", ids), strict=True):
        server.push(ids[mine], grads[mine], 9)
    joined = place_rows([server.export() for server in servers], "t", Uniform(shards=1))[0]
    assert same(joined, whole.export())
