"""The rows' specification: what it refuses, what a run makes of it, and that nothing is ignored."""

import gc

import numpy as np
import pytest

import lib
from lib.errors import BadOption, UnknownOption
from lib.results.key import describe
from lib.store.optim import SGD
from lib.store.rows import ByGroup, Uniform
from lib.store.shared_memory import SharedTable
from lib.store.spec import Int8, RowStore, ScaledFp16
from lib.training.train import Job
from tests.store.same_rows import same

SMALL = {"workers": 4, "samples": 3000, "evaluation_samples": 300, "save": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "store: max_rows must be at least 1, not 0"),
        ({"max_rows": 2.5}, "store: max_rows must be a whole number, not 2.5"),
        ({"locking": "all"}, "store: locking must be 'table' or 'none', not 'all'"),
        ({"shared_memory": 1}, "store: shared_memory must be true or false, not 1"),
        ({"shared_memory": True, "mapped": "rows"}, "store.shared_memory and store.mapped are two places for one"),
        ({"journal": False}, "store.journal would change nothing: it is of tables in shared memory, or mapped"),
        ({"placement": "hash"}, "store: placement must be 'uniform', 'hashed', 'by-group' or 'by-cost', not 'hash'"),
        ({"rows": "fp8"}, "store: rows.name: no codec is called 'fp8'; did you mean"),
        ({"ids": "packed"}, "store: ids must be 'distinct', 'entries' or 'samples', not 'packed'"),
    ],
)
def test_what_cannot_be_is_named_when_it_is_made(options, message):
    with pytest.raises(BadOption, match=message):
        RowStore(**options)


def test_a_codec_is_given_as_one_or_by_its_name():
    store = RowStore(rows="int8", gradients=ScaledFp16(kappa=1024.0, block=64))
    assert store.rows == Int8() and store == RowStore(rows=Int8(), gradients=ScaledFp16(kappa=1024.0, block=64))
    assert describe(store)["gradients"] == {"name": "scaled-fp16", "kappa": 1024.0, "block": 64}


def test_tables_are_as_it_says():
    options = {"seed": 3, "scale": 0.5}
    table = RowStore(max_rows=2).table("t", 4, SGD(lr=1.0), **options)
    table.pull([1, 2, 3])
    assert len(table) == table.max_rows == 2
    shared = RowStore(shared_memory=True, max_rows=40).table("t", 4, SGD(lr=1.0), **options)
    assert isinstance(shared, SharedTable) and shared.segment.folder.exists()
    assert np.array_equal(shared.pull([5]), RowStore().table("t", 4, SGD(lr=1.0), **options).pull([5]))
    assert shared.segment.kept
    assert not RowStore(shared_memory=True, journal=False).table("t", 4, SGD(lr=1.0), **options).segment.kept
    folder = shared.segment.folder
    del shared
    gc.collect()
    assert not folder.exists(), "a table that nobody has is gone from memory"


def test_placements():
    def never():
        raise AssertionError

    costs = {"t/0": 3.0, "t/1": 1.0}
    assert RowStore().place(4, shift=48, costs=never) == Uniform(shards=4)
    assert RowStore(placement="by-group").place(4, shift=48, costs=never) == ByGroup(shards=4, shift=48)
    by_cost = RowStore(placement="by-cost").place(4, shift=48, costs=lambda: costs)
    assert by_cost.owners == {"t/0": (0, 1, 2), "t/1": (3,)}


def test_a_limit_shows_in_a_run():
    plain = lib.train("ctr-synthetic", "async", "virtual", **SMALL)
    assert lib.train("ctr-synthetic", "async", "virtual", store=RowStore(), **SMALL).digest == plain.digest
    bounded = lib.train("ctr-synthetic", "async", "virtual", **SMALL, **{"store.max_rows": 40}, keep=True)
    assert bounded.digest != plain.digest
    assert len(bounded.model.rows["feature"]) == 40


def test_a_pipeline_over_rows_on_a_disk(tmp_path):
    small = {"samples": 800, "entities": 100, "triples": 900, "relations": 3, "batch_size": 32, "save": False}
    plain = lib.train("kg-synthetic", "oac", "virtual", **small)
    with pytest.MonkeyPatch.context() as patched:
        seen, made = [], SharedTable.__init__
        patched.setattr(
            SharedTable, "__init__", lambda self, *args, **more: seen.append(more["root"]) or made(self, *args, **more)
        )
        mapped = lib.train("kg-synthetic", "oac", "virtual", **small, **{"store.mapped": str(tmp_path / "rows")})
    assert seen == [tmp_path / "rows"] and mapped.digest == plain.digest
    gc.collect()
    assert list((tmp_path / "rows").iterdir()) == []


def sync(**store):
    return lib.train("ctr-synthetic", "sync", "virtual", servers=2, keep=True, store=RowStore(**store), **SMALL)


@pytest.fixture(scope="module")
def plain():
    return sync()


WAYS = [("placement", "by-group"), ("placement", "by-cost"), ("ids", "entries"), ("ids", "samples")]


@pytest.mark.parametrize("option, value", [*WAYS, ("locking", "none"), ("shared_memory", True)])
def test_where_rows_lie_and_how_they_are_asked_for_changes_no_number(plain, option, value):
    other = sync(**{option: value})
    assert same(plain.model.rows["feature"], other.model.rows["feature"])
    assert np.array_equal(plain.model.dense["values"], other.model.dense["values"])


def test_groups_lie_on_one_server_or_are_packed():
    """Ten features of one table, a group each: packing evens out what servers are asked for."""
    counts = {}
    for placement in ("uniform", "by-group", "by-cost"):
        plan = Job.of("ctr-synthetic", "sync", "virtual", servers=3, store=RowStore(placement=placement), **SMALL)
        plan = plan.staged_run.plan
        batches = [plan.batch(index).ids["feature"] for index in range(8)]
        owners = [plan.placement.shard_of("feature", ids) for ids in batches]
        ids, owner = np.concatenate(batches), np.concatenate(owners)
        assert max(len({*owner[ids >> 48 == group]}) for group in range(3)) == (3 if placement == "uniform" else 1)
        counts[placement] = np.bincount(owner, minlength=3)
    assert counts["by-group"].max() > counts["by-cost"].max()


@pytest.mark.parametrize(
    "codec, numbers, norms, most", [("fp16", 2, 0, 0.002), ("scaled-fp16", 2, 4, 0.002), ("int8", 1, 4, 0.2)]
)
def test_codecs_show_in_bytes_and_little_in_the_model(plain, codec, numbers, norms, most):
    coded = sync(rows=codec, gradients=codec)
    dim = plain.model.rows["feature"].values.shape[1]
    rows = plain.summary["bytes_by_kind"]["pull rows"] // (4 * dim)
    assert coded.summary["bytes_by_kind"]["pull rows"] == rows * (numbers * dim + norms)
    assert coded.summary["bytes_by_kind"]["push rows"] == rows * (8 + numbers * dim + norms)
    assert coded.summary["bytes_by_kind"]["push dense"] == plain.summary["bytes_by_kind"]["push dense"]
    assert coded.summary["virtual_seconds"] < plain.summary["virtual_seconds"]
    mine, theirs = (run.model.rows["feature"].values for run in (plain, coded))
    assert not np.array_equal(mine, theirs) and np.abs(mine - theirs).mean() < most * np.abs(mine).mean()


def test_ids_show_in_bytes(plain):
    kinds = {form: sync(ids=form).summary["bytes_by_kind"] for form in ("distinct", "entries", "samples")}
    asked = {form: moved.pop("pull ids") for form, moved in kinds.items()}
    assert kinds["distinct"] == kinds["entries"] == kinds["samples"], "nothing else changes"
    fields = 3000 * 26 * 8
    assert asked["distinct"] == plain.summary["bytes_by_kind"]["pull ids"] < asked["samples"]
    assert asked["entries"] % 8 == 0 and asked["samples"] < asked["entries"] <= fields


@pytest.mark.parametrize(
    ("workload", "protocol", "options", "message"),
    [
        ("ctr-synthetic", "ds-sync", {"store.rows": "fp16"}, "rows would change nothing: ds-sync keeps rows with each"),
        ("ctr-synthetic", "ds-sync", {"store.locking": "none"}, "locking would change nothing: ds-sync"),
        ("ctr-synthetic", "gba", {"store.pooling": "server"}, "pooling .* no field of 'ctr-synthetic' has several"),
        ("ctr-synthetic", "oac", {"store": RowStore(placement="by-group")}, "placement .* oac has one host store"),
        ("quadratic", "gba", {"store": RowStore(max_rows=3)}, "max_rows would .*: 'quadratic' has no tables"),
        ("ctr-synthetic", "gba", {"store": 3}, "store must be RowStore's fields, such as {max_rows: .*}, not 3"),
        ("ctr-synthetic", "gba", {"store.max_row": 40}, "store has no option 'max_row'; did you mean 'max_rows'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(workload, protocol, options, message):
    with pytest.raises((BadOption, UnknownOption), match=message):
        lib.train(workload, protocol, "virtual", samples=500, save=False, **options)
