"""What the death of a trainer, a sync server or an embedding server costs a run, and whether its ledger accounts for it."""

from lib import Run, Workload
from lib.drivers.record import OUTCOMES

NODES = {"a trainer": "worker1", "a sync server": "sync0", "an embedding server": "server0"}


def account(run: Run, task: Workload, hands: int) -> dict:
    """The ledger of a run with a death. `lost`: gradients that were undone, or that only a dead trainer held. `left out`:
    batches that no worker computed, at most the `hands` that a dead trainer held. `unaccounted`: gradients that no outcome
    accounts for. `standstill`: the longest time without a computation that lasted."""
    computed = run.trace[run.trace["kind"] == "compute"].sort_values("start")
    left_out = task.batches() - computed["batch"].nunique()
    missing = run.summary["issued"] - sum(run.summary[outcome] for outcome in OUTCOMES)
    twice = len(computed) - computed["batch"].nunique()
    pauses = computed["start"] - computed["end"].cummax().shift()
    return {
        "issued": run.summary["issued"],
        "applied": run.summary["applied"],
        "lost": run.summary["lost"],
        "left out": left_out,
        "returns": run.summary["returns_to_a_cut"],
        "unaccounted": abs(missing) + twice + max(0, left_out - hands),
        "standstill": float(max(0.0, pauses.max())),
        "seconds": run.summary["virtual_seconds"] or run.summary["wall_seconds"],
    }
