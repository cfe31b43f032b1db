"""What the death of a trainer, a sync server or an embedding server costs a run, and whether its ledger accounts for it."""

from lib import Run, Workload
from lib.drivers.run.ledger import OUTCOMES

NODES = {"a trainer": "worker1", "a sync server": "sync0", "an embedding server": "server0"}


def account(run: Run, task: Workload, hands: int) -> dict:
    """`lost`: gradients whose work is no more, undone or held by a dead trainer alone. `left out`: batches that nobody computed:
    a dead trainer had them in its hands, `hands` at most. `unaccounted`: what neither these nor the other outcomes account for.
    `standstill`: the longest time in which nobody computed anything that lasted."""
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
