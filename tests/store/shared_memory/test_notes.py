"""What a part has noted is there for the next process, whole, wherever a kill met this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from lib.store.shared_memory.notes import Notes

from lib.drivers.run.record import EvalPoint, Snapshot
from lib.store.shared_memory import segment

CHILD = """
import sys
from pathlib import Path
from lib.store.shared_memory.notes import Notes
kept, met = Notes("a-part", Path(sys.argv[1])), []
while True:
    met.append((len(met), len(met) / 3))
    kept.write({"step": len(met)}, {"met": met})
    if len(met) == 20:
        print("at work", flush=True)
"""
pytestmark = pytest.mark.usefixtures("own_memory")


def gone(kept):
    """As a kill leaves them: nothing is removed."""
    kept._segment.close(remove=False)


def test_the_next_one_has_the_last_state_and_as_much_of_each_list():
    kept, met, none = Notes("a-part"), [(1, 0.1)], []
    shot = Snapshot(EvalPoint(8.0, None), 0.5, 8, {0: np.arange(3, dtype=np.float32)}, {})
    kept.write({"step": 1}, {"met": met, "none": none, "shots": [shot]})
    met.append((2, 1 / 3))
    kept.write({"step": 2}, {"met": met, "none": none, "shots": [shot]})
    kept.put("dense", {"values": np.arange(5)})
    met.append((3, 0.3))  # after the last note
    gone(kept)
    again = Notes("a-part")
    state, lists = again.read((EvalPoint, Snapshot))
    assert state == {"step": 2} and lists["met"] == [(1, 0.1), (2, 1 / 3)] and lists["none"] == []
    assert lists["shots"][0].dense[0].tolist() == [0, 1, 2] and again.get("dense")["values"].tolist() == [*range(5)]
    again.write({"step": 3}, {"met": [*lists["met"], (9, 0.9)]})
    gone(again)
    assert Notes("a-part").read((EvalPoint, Snapshot))[1]["met"] == [(1, 0.1), (2, 1 / 3), (9, 0.9)]


def test_what_a_kill_has_left_behind_the_last_state_counts_for_nothing():
    kept = Notes("a-part")
    kept.write({"step": 1}, {"met": [1]})
    with open(kept.folder / "log", "ab") as log:
        log.write(b'[{"met": [2, ')
    (kept.folder / "state.new").write_bytes(b"half")
    gone(kept)
    again = Notes("a-part")
    assert again.read(()) == ({"step": 1}, {"met": [1]})
    again.write({"step": 2}, {"met": [1, 5]})
    gone(again)
    assert Notes("a-part").read(()) == ({"step": 2}, {"met": [1, 5]})


def test_in_one_process_the_notes_themselves_outlive_a_part():
    kept, met = Notes(None), [1]
    assert kept.read(()) is None and kept.get("dense") is None
    kept.write("state", {"met": met})
    met.append(2)
    assert kept.read(()) == ("state", {"met": [1]})
    first = kept.thing("table", lambda within: [within])
    assert kept.thing("table", lambda within: ["another"]) is first == [None]


def test_nobody_sweeps_what_is_to_be_taken_over_until_nobody_comes():
    for name, awaited in (("awaited", 60.0), ("left", 0.0)):
        lost = segment.Segment(name, 1, {}, awaited=awaited)
        lost._header["owner"] = _ended()
        lost.close(remove=False)
    assert segment.sweep() == ["left"]
    os.utime(segment.folder_of("awaited"), (0, time.time() - 61))
    assert segment.sweep() == ["awaited"]


def _ended():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_a_process_that_is_killed_anywhere_leaves_notes_that_agree(tmp_path):
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "at work\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        state, lists = Notes("a-part", tmp_path).read(())
        assert lists["met"] == [(step, step / 3) for step in range(state["step"])] and state["step"] >= 20
