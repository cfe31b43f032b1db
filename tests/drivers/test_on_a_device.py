"""Every protocol on a device that is not there: `on_a_device.py`, in a process of its own.

Torch counts its devices at a process's first backward pass; one that is made known later is none to autograd.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="torch knows one device at a time, and here is one: see tests/gpu"
)
@pytest.mark.parametrize("which", ["not nightly", pytest.param("nightly", marks=pytest.mark.nightly)])
def test_in_a_process_that_has_not_trained_yet(which):
    tests = Path(__file__).with_name("on_a_device.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, str(tests)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests.parents[2])
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert " passed" in ran.stdout
