"""The weather for pipelines: what it draws, what it lets pass, and which faults it finds in their histories."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lib
import tests.soak
from lib import workloads
from lib.drivers.pipeline_loop import AccessLog, HostStore, Pipeline
from lib.drivers.plan import Plan
from lib.drivers.record import Access, PartLog
from lib.protocols.oac import OAC
from lib.results.outcome import digest
from lib.store import kernels
from lib.store.device import Cache
from lib.store.optim import SGD
from lib.store.rows import Rows
from lib.store.table import Table
from notebooks.oac.anomalies import anomalies
from tests.soak import pipelines, soak
from tests.soak.cases import PIPELINE, WORKLOADS
from tests.soak.checks import check
from tests.soak.test_soak import drawn

BUSY = {"protocol": "oac", "in_flight": 12, "readers": 12, "writers": 12, "cluster": "virtual", "accesses": True}
BUSY |= {"workload": "kg-synthetic", **WORKLOADS["kg-synthetic"], "samples": 240, "worker.flops": 1e8, "detour": 0.02}


def kind_found(seeds=40):
    """What the history of the first run that shows anything shows."""
    for seed in range(seeds):
        if finding := check(BUSY | {"seed": seed}):
            return finding.kind
    return ""


FAULTS = {}
"""Name -> what the history calls it, and what is planted: owners, names of methods, and what makes each from the sound one."""


def fault(kind, owner, method, *others):
    def plant(make):
        FAULTS[make.__name__] = kind, [(owner, method, make), *others]
        return make

    return plant


@fault("lost update", Table, "write")
def writes_ignore_timestamps(write):
    return lambda self, rows, newer=True, order_out=None: write(self, rows, newer=False, order_out=order_out)


@fault("lost update", HostStore, "write", (Table, "write", writes_ignore_timestamps))
def timestamps_are_compared_without_a_lock(write):
    async def unlocked(self, batch, stamp, samples, rows):
        newer = {name: block.stamps > self._tables[name].stamps(block.ids) for name, block in rows.items()}
        await self._site.sleep(0.05)
        parts = {
            name: Rows(*(part[newer[name]] for part in (block.ids, block.values, block.state, block.stamps)))
            for name, block in rows.items()
        }
        return await write(self, batch, stamp, samples, parts)

    return unlocked


@fault("stamp without data", Cache, "reserve_view")
def the_counter_is_read_once_more_for_the_cache(room):
    return lambda self, ids, stamp: room(self, ids, stamp + 1)


@fault("lost update", Pipeline, "_assign_timestamp")
def two_batches_read_the_counter_at_once(stamp):
    def again(self, work):
        stamp(self, work)
        self._stamp -= work.batch.index % 2

    return again


@fault("stale read", OAC, "stale_reads")
def nothing_is_validated(stale):
    return lambda self, read, cached: np.zeros(len(read), bool)


@fault("stale read", OAC, "stale_reads")
def only_much_later_updates_are_validated(stale):
    return lambda self, read, cached: cached > read + 1


@fault("early eviction", OAC, "on_read")
def mft_is_one_too_high(on_read):
    def high(self, state, batch):
        _, admission = on_read(self, replace(state, finished=state.finished + 1), batch)
        return on_read(self, state, batch)[0], admission

    return high


@fault("early eviction", OAC, "on_read")
def ste_is_one_too_high(on_read):
    def high(self, state, batch):
        state, admission = on_read(self, state, batch)
        return state, replace(admission, safe=admission.safe + 1)

    return high


@fault("early eviction", OAC, "on_read")
def ste_is_the_batchs_own_mft(on_read):
    def own(self, state, batch):
        after, admission = on_read(self, state, batch)
        return after, replace(admission, safe=state.finished)

    return own


@fault("stale read", Cache, "reserve_view")
def an_older_cache_entry_overwrites_a_newer(room):
    def back(self, ids, stamp):
        there = self.places_and_stamps(ids)[1] >= 0
        entries = self._index.read(ids[there])
        rows = room(self, ids, stamp)
        self._index.write(entries, newer=False)
        return rows

    return back


@fault("garbage read", Cache, "take")
def the_cache_gives_the_rows_of_others(take):
    return lambda self, found: take(self, found).flip(0)


@fault("stamp without data", Pipeline, "_validate")
def the_cache_gives_first_rows_under_its_timestamps(validated):
    """Timestamps move without their data: who believes them sees nothing."""

    def stamps_alone(self, work):
        before = {name: block.block.copy() for name, block in work.rows.items()}
        seen, _ = validated(self, work)
        work.blocks = {name: torch.from_numpy(block) for name, block in before.items()}
        return seen, {name: block[:, : self._dims[name]].contiguous() for name, block in work.blocks.items()}

    return stamps_alone


@fault("data without stamp", Table, "write")
def the_store_replaces_rows_and_not_their_timestamps(write):
    def stale(self, rows, newer=True, order_out=None):
        stamps = self.stamps(rows.ids)
        write(self, rows, newer=newer, order_out=order_out)
        write(self, replace(self.read(rows.ids), stamps=stamps), newer=False)

    return stale


@fault("dirty read", Table, "read")
def the_store_gives_what_is_to_come(read):
    """Numbers of the order are drawn long after the row was read or written."""

    def early(self, ids, order_out=None):
        rows = read(self, ids, order_out=order_out)
        if order_out is not None:
            order_out -= 10**3
        return rows

    return early


@fault("stale read", Cache, "release_updates")
def the_cache_forgets_all(evict):
    return lambda self, safe: evict(self, 10**6)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_the_history_and_named(name, monkeypatch, reports):
    kind, planted = FAULTS[name]
    for owner, method, make in planted:
        monkeypatch.setattr(owner, method, make(getattr(owner, method)))
    assert kind in kind_found()


def test_the_serial_run_has_its_bits_whatever_torch_was_set_to():
    small = {"batch_size": 8, "entities": 25, "triples": 200, "relations": 3, "dim": 4, "evaluation_triples": 10}
    workload = workloads.get("kg-synthetic", samples=467, **small)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(digest(pipelines.serial(workload, 0, range(59))))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert found[0] == found[1]


def test_some_of_it():
    assert soak(seed=5, runs=12, of="pipelines").total() == 12


def test_everything_is_drawn():
    found = drawn(pipelines.cases("virtual"), 200)
    assert {case["protocol"] for case in found} == set(PIPELINE)
    assert {option for case in found for option in case} >= {"detour", "slowdown", "checkpoint_every", "failures"}


def test_detours_let_writings_overtake_each_other(reports):
    plain, stirred = (check_order({**BUSY, **more}) for more in ({"detour": 0.0}, {}))
    assert plain == sorted(plain) and stirred != sorted(stirred)


def check_order(case):
    """The stamps of the host store's writings, in their order."""
    seen = []
    written = Table.write
    with pytest.MonkeyPatch.context() as plant:
        plant.setattr(
            Table, "write", lambda self, rows, **how: (seen.append(int(rows.stamps[0])), written(self, rows, **how))
        )
        assert check(case) is None
    return seen[: len(seen) // 3]  # of two runs and the serial one


def test_what_the_history_hides_is_found_by_the_serial_run(monkeypatch, reports):
    """The device makes other rows than a serial run, and everybody has those."""
    rate = Plan.lr_factor_after
    monkeypatch.setattr(Plan, "lr_factor_after", lambda self, samples: 2 * rate(self, samples))
    assert check(BUSY).kind == "oac: no serial run"


def test_calls_on_threads_meet_and_show_nothing(reports):
    """Four and more of them at once, also those that wait for one that changes rows; a case with fewer is refused."""
    assert [check(case) for case in drawn(pipelines.busy("local"), 2)] == [None, None]


def test_a_write_that_is_interrupted_is_noted_as_one_that_may_have_happened(monkeypatch):
    """Its first row is there, and nobody comes to the second."""
    store = HostStore.__new__(HostStore)
    store._tables, store._rule = {"t": Table(1, SGD(lr=1.0), seed=0)}, OAC()
    store.record = PartLog("server0", None)
    store._log = AccessLog(store.record)
    store._read(0, {"t": np.array([1, 2])})
    replaced = kernels.replace_rows

    def interrupted(words, column, slots, *more):
        replaced(words, column, slots[:1], *more)
        raise KeyboardInterrupt

    block = np.ones((2, 1), np.float32)
    written = Rows(np.array([1, 2]), block, np.empty((2, 0), np.float32), np.zeros(2, np.int64))
    with monkeypatch.context() as cut:
        cut.setattr(kernels, "replace_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store._write_and_log(0, {"t": written})
    store._read(1, {"t": np.array([1, 2])})
    read, write, again = store.record.accesses
    assert (read.ended > read.began) and write.ended == -1 and again.ended > again.began > read.ended
    assert again.versions.tolist() == [0, -1] and again.values[0] == write.values[0] != again.values[1]
    computed = {"stamp": 0, "values": read.values, "made": write.values, "order": np.zeros(2, np.int64)}
    compute = Access("compute", 0, "t", read.ids, read.versions, **computed)
    assert anomalies([read, compute, write, again]) == []
    assert {each.kind for each in anomalies([read, compute, replace(write, ended=9), again])} == {"lost update"}


def test_the_first_update_after_a_cut_is_cached_too(reports):
    assert check({**BUSY, "seed": 0, "checkpoint_every": 16}) is None


def test_a_case_is_printed_as_a_call(reports):
    assert eval(pipelines.call(BUSY), {"lib": lib, "tests": tests}) is None
