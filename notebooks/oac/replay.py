"""What is asked of any pipeline's run: how many rows were put right, and whether a serial run leaves the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lib.results.run import Run
from lib.workloads import Workload
from tests.soak.pipelines import digest_of, serial


def replaced(run: Run) -> float:
    """The share of rows that validation replaced."""
    return run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1)


def equal(run: Run, task: Workload, device: str = "cpu") -> bool:
    """Whether a pipeline left what one batch after another leaves there, in the order in which the device computed them."""
    with repeatable(device):
        return run.digest == digest_of(serial(task, run.provenance["seed"], run.summary["order"], device))


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Has a device add in the same order each time, in all modes alike: only then can a serial run there leave the same bytes."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device != "cpu", warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
