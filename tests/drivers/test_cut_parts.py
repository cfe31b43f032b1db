"""A cut in parts: each written by whoever holds it, and one cut, old or new, whatever interrupts the writing and when."""

import asyncio
import os
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest

import lib
from lib.drivers import checkpoints as module
from lib.drivers.checkpoints import CheckpointFolder
from lib.drivers.record import PartLog
from lib.errors import Damaged, LockstepError
from lib.store import checkpoint
from lib.store.checkpoint import Part
from lib.training.train import Job
from tests.store.test_checkpoint import STEPS, at_step

NAMES = ("worker0", "worker1", "dense-server0")


class Recorded(Part):
    def __init__(self, number):
        self.record = PartLog("node", None, ledger=Counter(issued=number))
        self.number, self.state = number, None

    async def save(self):
        return {"values": np.full(40, self.number), "record": self.record}

    async def load(self, state):
        self.state = state


def write(cuts, mark, names=NAMES):
    for name in names:
        assert asyncio.run(Recorded(mark).write_checkpoint(cuts.part_path(mark, name))) == {"issued": mark}
    cuts.commit({"batch": mark}, names)


def read(cuts):
    """The mark of the newest cut, all of whose parts are of that mark."""
    cut = cuts.find()
    for name in NAMES:
        asyncio.run(cut.restore(name, part := Recorded(0)))
        assert {*part.state["values"], part.state["record"].ledger["issued"]} == {cut.run["batch"]}
    return cut.run["batch"]


def test_a_cut_knows_its_parts(tmp_path):
    cuts = CheckpointFolder(every=1, folder=tmp_path)
    assert cuts.find() is None
    for mark in (10, 20):
        write(cuts, mark)
        assert read(cuts) == mark
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage-0000-00000020", "stage-0000.pt"]
    cut = cuts.find()
    assert [*cut.parts] == [*NAMES] and cut.state("reader0") == {}
    cuts.delete_stage_checkpoint()
    assert not list(tmp_path.iterdir())


def test_another_leg_s_cut_stays(tmp_path):
    """A run whose world was not written goes through its stages again and comes to it."""
    write(CheckpointFolder(every=1, folder=tmp_path, stage=1), 20)
    write(CheckpointFolder(every=1, folder=tmp_path), 10)
    assert read(CheckpointFolder(every=1, folder=tmp_path, stage=1)) == 20


def test_killed_between_any_two_steps_the_old_or_the_new_cut_is_there_and_whole(tmp_path):
    within, number, seen = (*STEPS, module.__file__, shutil.__file__), 0, []
    while True:
        number += 11
        folder = tmp_path / str(number)
        cuts = CheckpointFolder(every=1, folder=folder)
        write(cuts, 10)
        child = os.fork()
        if child == 0:
            try:
                os._exit(9 * at_step(number, lambda: os._exit(9), partial(write, cuts, 20), within))
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen.append(read(cuts))
        if status == 0:  # it has no such step
            break
        assert status == 9
        for mark in (20, 30):  # and it goes on
            write(cuts, mark)
            assert read(cuts) == mark
        assert len(list(folder.glob("stage-*"))) == 2, "what an interrupted writing left is gone"
        shutil.rmtree(folder)
    assert set(seen) == {10, 20} and seen == sorted(seen) and len(seen) > 20


def test_a_part_that_is_damaged_lost_or_another_cut_s_is_named(tmp_path):
    cuts = CheckpointFolder(every=1, folder=tmp_path)
    write(cuts, 10)
    file, cut = cuts.part_path(10, "worker1"), cuts.find()
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(Damaged, match=f"{file} is no checkpoint"):
        cut.state("worker1")
    asyncio.run(Recorded(11).write_checkpoint(file))
    with pytest.raises(Damaged, match=f"{file} is another checkpoint than is meant: its digest is"):
        cut.state("worker1")
    file.unlink()
    with pytest.raises(Damaged, match=f"{file} is no checkpoint"):
        cut.state("worker1")


def test_a_folder_that_machines_do_not_share_is_told_before_the_cut_counts(tmp_path):
    cuts = CheckpointFolder(every=1, folder=tmp_path)
    write(cuts, 10)
    words = r"worker7 has written .* and the driver does not find it: .* that all machines of a run share"
    with pytest.raises(LockstepError, match=words):
        cuts.commit({"batch": 20}, ["worker7"])
    assert read(cuts) == 10


class Stopped(Exception):
    pass


@pytest.mark.nightly
@pytest.mark.ray
def test_on_ray_each_process_writes_its_own_part(reports, monkeypatch):
    save, here, seen = checkpoint.save, [], 0

    def saves(path, *args, **options):
        here.append(path.stem)
        return save(path, *args, **options)

    def progress(samples):
        nonlocal seen
        seen += samples
        if list((reports / "checkpoints").glob("*/stage-0000.pt")):
            raise Stopped

    task = {"workers": 2, "samples": 6400, "batch_size": 32, "checkpoint_every": 640, "save": False}
    monkeypatch.setattr(checkpoint, "save", saves)
    with pytest.raises(Stopped):
        Job.of("ctr-synthetic", "gba", "ray", servers=2, **task).run(progress)
    assert set(here) == {"stage-0000"}, "the driver writes what the parts are, and none of them"
    [folder] = (reports / "checkpoints").glob("*/stage-0000-*/")
    written = {"worker0", "worker1", "dense+rows-server0", "dense+rows-server1", "queue"}
    assert {path.stem for path in folder.iterdir()} >= written
    run = lib.train("ctr-synthetic", "gba", "ray", servers=2, resume=True, **task)
    assert run.summary["issued"] == 200 == run.summary["applied"] + run.summary["decayed"]
