"""What is asked of any pipeline's run: how many rows were put right, and whether a serial run leaves the same."""

from __future__ import annotations

from lib.results.run import Run
from lib.workloads import Workload
from tests.soak.pipelines import digest_of, serial


def replaced(run: Run) -> float:
    """The share of rows that validation replaced."""
    return run.summary.get("rows_validated_away", 0) / run.summary.get("rows_read", 1)


def equal(run: Run, task: Workload) -> bool:
    """Whether a pipeline left what one batch after another leaves, in the order in which the device computed them."""
    return run.digest == digest_of(serial(task, run.provenance["seed"], run.summary["order"]))
