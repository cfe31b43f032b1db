"""A training that is killed goes on; what a kill might leave behind is seen."""

import os
import random
import subprocess
import sys

import pytest

import lib
from tests.soak import kills

_, SHARED, MAPPED, *_ = kills.VICTIMS


@pytest.mark.nightly
@pytest.mark.parametrize("victim", [SHARED, MAPPED], ids=lambda victim: victim.name)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(victim):
    assert list(kills.kill(seed=3, kills=1, victims=(victim,))) == []


@pytest.mark.nightly
@pytest.mark.parametrize("victim", kills.RETURNED, ids=lambda victim: victim.name)
def test_a_run_that_had_returned_to_a_checkpoint_is_killed_and_goes_on(victim):
    assert list(kills.kill(seed=4, kills=2, victims=(victim,))) == []


@pytest.mark.nightly
@pytest.mark.ray
def test_servers_that_are_killed_attach_again():
    pytest.importorskip("ray")
    killed, wrong = kills.kill_servers(random.Random(3), 2)
    assert killed and wrong == []


def test_what_is_wrong_after_a_kill_is_seen(reports):
    lib.train("ctr-synthetic", "async", "virtual", workers=2, samples=640)
    assert not list(kills._wrong(reports, grace=0.2)) and not list(kills._left(reports))
    [saved] = (reports / "runs").iterdir()
    (saved / "history.parquet").write_bytes(b"half")
    (reports / ".stage-of-somebody").mkdir()
    (reports / "checkpoints" / "a-run").mkdir(parents=True)
    (reports / "checkpoints" / "a-run" / "stage-0000.pt").touch()
    environment = os.environ | {"LOCKSTEP_REPORTS": str(reports)}
    endless = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    other = subprocess.Popen(endless, env=environment, stdout=subprocess.PIPE)
    other.stdout.readline()  # until it runs, Linux shows no environment of it
    try:
        process, damaged = kills._wrong(reports, grace=0.2)
    finally:
        other.kill()
        other.communicate()
    assert str(other.pid) in process and "history.parquet is not what was written" in damaged
    assert len(list(kills._left(reports))) == 2
