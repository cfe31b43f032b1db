"""A cut of so many servers is gone on with by another number: what was learnt is dealt anew, to the bit, and the books go on."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest

import lib
from lib import VirtualCluster, paths
from lib.drivers.run.cuts import Cuts
from lib.drivers.run.execution import KINDS
from lib.drivers.servers import dealing
from lib.drivers.servers.parameter_server import ParameterServer
from lib.errors import BadOption
from lib.results.run import Run
from lib.store.placement import Uniform, place_dense, place_rows
from lib.store.rows import Rows
from lib.store.table.table import Table
from lib.training.train import Job
from tests.training.stopping import assert_same, killed
from tests.training.test_cuts import CLICKS, PROTOCOLS, train

PROTOCOLS = {**PROTOCOLS, "dc-asgd that remembers": lib.protocols.get("dc-asgd", decay=0.9)}
FAMILIES = ["gba", "sync", "async", "hop-bs", "dc-asgd that remembers", "gba + sync", "gba + s-easgd", "hybrid", "oac"]
CUT = {"checkpoint_every": 16 * 11}  # at 22 batches two gradients wait for the third


def of(servers, **options):
    return VirtualCluster(workers=3, servers=servers, slowdown=0.7, **options)


def stopped(name, cluster, monkeypatch, after=27, **options):
    """What was in the cut that it left: the servers' states."""
    train(PROTOCOLS[name], cluster=cluster, dies_after=after, monkeypatch=monkeypatch, **{**CUT, **options})
    [folder] = (paths.reports() / "cuts").iterdir()
    rule = PROTOCOLS[name]
    cut = Cuts(every=1, folder=folder).find((*KINDS, *rule.sparse.states, *rule.dense.states))
    return [cut.state(part) for part in cut.layout if "server" in part]


def resumed(name, cluster, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train(PROTOCOLS[name], cluster=cluster, resume=True, **{**CUT, **options})


def begun(name, cluster, monkeypatch, **options):
    """The servers' states as the resumed run begins, before its first batch."""
    states, load = [], ParameterServer.load

    async def loads(server, state):
        await load(server, state)
        states.append(await server.save())

    with monkeypatch.context() as patched, killed(patched, 0):
        patched.setattr(ParameterServer, "load", loads)
        resumed(name, cluster, **options)
    return states


def rows_of(dump, dim, optimizer):
    if isinstance(dump, Rows):
        return dump
    table = Table(dim, optimizer, seed=0)
    table.restore(dump)
    return table.export()


def whole(states):
    """All that servers of one run hold of the model, as if one did: to the bit, with the optimisers' state and stamps."""
    model, still = {}, lib.store.optim.SGD(lr=1.0)
    if dense := [state["dense"] for state in states if state["dense"]]:
        model |= place_dense(dense, 1)[0]
    for name, spec in CLICKS.tables().items():
        kinds = {name: ([s["tables"] for s in states if s["tables"]], CLICKS.row_optimizer)}
        kinds[f"{name} memory"] = ([s["memory"]["rows"] for s in states if s["memory"]], still)
        for what, (parts, optimizer) in kinds.items():
            if parts:
                [rows] = place_rows(
                    [rows_of(part[name], spec.dim, optimizer) for part in parts], name, Uniform(shards=1)
                )
                model |= {f"{what} {field}": getattr(rows, field) for field in ("ids", "values", "state", "stamps")}
    if memory := [{"values": state["memory"]["dense"]} for state in states if state["memory"]]:
        model["memory"] = place_dense(memory, 1)[0]["values"]
    gradients = [gradient for state in states for gradient in state["waiting"]]
    for batch in {gradient.push.batch for gradient in gradients}:
        parts = [each for each in gradients if each.push.batch == batch]
        if dense := [part.dense for part in parts if part.dense is not None]:
            model[f"gradient {batch}"] = np.concatenate(dense)
        for name in CLICKS.tables():
            blocks = [part.rows[name] for part in parts if name in part.rows]
            ids, sent = (np.concatenate(each) for each in zip(*blocks, strict=True))
            model |= {f"ids {batch}": np.sort(ids), f"rows {batch}": sent[np.argsort(ids)]}
    return model


@pytest.mark.parametrize("place, name", [*enumerate(FAMILIES)])
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_what_was_learnt_is_there_to_the_bit_and_the_run_ends_as_well_as_any(before, place, name, reports, monkeypatch):
    """Over the families every pair of numbers up to four."""
    now = 1 + (before + place) % 4
    pipeline = name == "oac"
    there = [VirtualCluster(servers=number) if pipeline else of(number) for number in (before, now)]
    cut = whole(stopped(name, there[0], monkeypatch))
    if before == now:
        assert_same(resumed(name, there[1]), train(PROTOCOLS[name], cluster=there[1], **CUT))
        return
    if not pipeline:
        states = begun(name, there[1], monkeypatch)
        assert len(states) in (now, 2 * now)
        found = whole(states)
        assert found.keys() == cut.keys() and len(cut) >= 4
        for what, array in cut.items():
            np.testing.assert_array_equal(found[what], array, err_msg=what)
    run, fresh = resumed(name, there[1]), train(PROTOCOLS[name], cluster=there[1], **CUT)
    assert run.provenance["before"] == [{"cluster.servers": before}]
    for each in ("samples", "issued", "applied", "decayed", "dropped", "lost", "in_flight"):
        assert run.summary[each] == fresh.summary[each], each
    quality = "mrr" if pipeline else "auc"
    assert run.summary[quality] == pytest.approx(fresh.summary[quality], abs=0.02)
    assert len(run.history.dropna(subset=[quality])) == len(fresh.history.dropna(subset=[quality]))


def test_gradients_wait_in_the_cut_of_a_buffer(reports, monkeypatch):
    """Or the test above would say nothing of them."""
    assert [len(state["waiting"]) for state in stopped("gba", of(2), monkeypatch)] == [1, 1]


def test_what_cannot_be_dealt_is_told(reports, monkeypatch):
    """Of two servers one has another gradient in its buffer, has stepped once more, or knows of no worker."""
    rule = PROTOCOLS["gba"]
    plan = Job.of(CLICKS, rule, of(3)).course.plan

    def dealt(change):
        states = stopped("gba", of(2), monkeypatch)
        change(states[1])
        dealing.share(plan, rule, 0, "server0", states)

    def another_gradient(state):
        [one] = state["waiting"]
        state["waiting"] = [replace(one, push=replace(one.push, batch=7))]

    def another_step(state):
        state["dense"]["step"] = np.float32(99)

    def nobody(state):
        state["rule"] = replace(state["rule"], active=frozenset())

    dealt(lambda state: None)
    for change, what in [
        (another_gradient, r"hold gradients of unlike batches, such as \[\(21, .*\[\(7, "),
        (another_step, "have optimisers that made unlike numbers of steps"),
        (nobody, "know of unlike active"),
    ]:
        with pytest.raises(BadOption, match=f"gba: a cut of 2 servers cannot be dealt out to 3: they {what}"):
            dealt(change)


def test_limits_hold_for_what_is_dealt(reports, monkeypatch):
    """Each of four servers had room for its rows, and one has not."""
    store = {"store": lib.RowStore(max_rows=20)}
    stopped("gba", of(4), monkeypatch, **store)
    with pytest.raises(BadOption, match="rows do not fit in a table of at most 20"):
        resumed("gba", of(1), **store)
    assert resumed("gba", of(4), **store).summary["samples"] == CLICKS.samples, "and the cut is still there"


@pytest.mark.parametrize(
    "options", [{"store": lib.RowStore(gradients="scaled-fp16")}, {"gradients": False, "evaluations": 1}]
)
def test_so_are_gradients_as_they_travelled_and_those_of_a_timing_run(options, reports, monkeypatch):
    stopped("gba", of(3), monkeypatch, **options)
    assert resumed("gba", of(2), **options).summary["samples"] == CLICKS.samples


def test_readers_and_embedding_workers_may_be_others_too(reports, monkeypatch):
    for before, now in [(1, 3), (3, 1)]:
        shutil.rmtree(reports / "cuts", ignore_errors=True)
        stopped("hybrid", of(2), monkeypatch, embedding_workers=before, reader_nodes=before)
        run = resumed("hybrid", of(1), embedding_workers=now, reader_nodes=now)
        unlike = {"cluster.servers": 2, "embedding_workers": before, "reader_nodes": before}
        assert run.provenance["before"] == [unlike]
        assert run.summary["applied"] == CLICKS.batches() and run.summary["abandoned"] == 0
        computed = run.trace[run.trace["kind"] == "compute"]
        assert sorted(computed["batch"]) == [*range(CLICKS.batches())]


def test_it_may_change_again(reports, monkeypatch):
    """It goes on from the newest of the cuts from which it could."""
    stopped("gba", of(2), monkeypatch)
    train(
        PROTOCOLS["gba"], cluster=of(3), dies_after=14, monkeypatch=monkeypatch, resume=True, **CUT
    )  # after its own cut
    assert resumed("gba", of(1)).provenance["before"] == [{"cluster.servers": 2}, {"cluster.servers": 3}]


def test_it_may_go_back_to_the_other_number_s_cut(reports, monkeypatch):
    """A server dies before the run is cut anew."""
    end = train(PROTOCOLS["gba"], cluster=of(2), checkpoint_every=None).summary["virtual_seconds"]
    dying = (lib.Failure(node="server0", kind="dies", at=0.8 * end, lasts=0.1 * end),)
    stopped("gba", of(2, failures=dying), monkeypatch, after=25)
    back = resumed("gba", of(3, failures=dying))
    assert back.summary["returns_to_a_cut"] == 1 and back.summary["lost"] > 0
    assert back.summary["issued"] == back.summary["applied"] + back.summary["lost"]
    assert back.summary["samples"] == CLICKS.samples


def test_such_a_run_is_not_taken_for_one_that_had_these_numbers_from_its_start(reports, monkeypatch):
    options = {"save": True}
    stopped("gba", of(2), monkeypatch)
    run = resumed("gba", of(3), **options)
    fresh = train(PROTOCOLS["gba"], cluster=of(3), **CUT, **options)
    assert "before" not in fresh.provenance and fresh.digest != run.digest
    assert {Run.load(folder).digest for folder in (reports / "runs").iterdir()} == {run.digest, fresh.digest}


@pytest.mark.parametrize(
    "options, told",
    [
        ({"seed": 3}, "seed 0 there and 3 here$"),
        ({"seed": 3, "cluster": of(3)}, "cluster.servers 2 there and 3 here, seed 0 there and 3 here$"),
        ({"seed": 3, "feed": "split"}, "feed 'rule' there and 'split' here, seed 0 there and 3 here$"),
        ({"cluster": VirtualCluster(workers=4, servers=2, slowdown=0.7)}, "cluster.workers 3 there and 4 here$"),
        (
            {"embedding_workers": 1, "cluster": of(3)},
            "servers 2 there and 3 here, embedding_workers None there and 1 here$",
        ),
    ],
)
def test_a_run_without_a_cut_hears_which_is_nearest_and_in_what_it_differs(options, told, reports, monkeypatch):
    lacking = "finds no cut of this run in .*cuts, and it begins at its start; "
    with pytest.warns(UserWarning, match=lacking + "nor is there one of another run$"):
        train(PROTOCOLS["gba"], resume=True, **CUT)
    stopped("gba", of(2), monkeypatch)
    with pytest.warns(UserWarning, match=lacking + r"the nearest, \w{24}, has " + f".*{told}"):
        run = train(PROTOCOLS["gba"], **{"cluster": of(2), "resume": True, **CUT, **options})
    assert "before" not in run.provenance and run.summary["samples"] == CLICKS.samples


def test_a_cut_of_other_code_is_not_gone_on_with(reports, monkeypatch):
    stopped("gba", of(2), monkeypatch)
    [folder] = (reports / "cuts").iterdir()
    folder.rename(folder.with_name("as-another-code-would-call-it"))
    for servers in (2, 3):
        with pytest.warns(UserWarning, match="the code, or a package, 'another' there and 'this' here$"):
            train(PROTOCOLS["gba"], cluster=of(servers), resume=True, **CUT)
