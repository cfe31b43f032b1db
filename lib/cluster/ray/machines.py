"""Which machine of a Ray cluster a node is to be on, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lib.cluster.faults.failures import matches
from lib.errors import LockstepError


def asked(
    node: str,
    machines: Sequence[Mapping[str, Any]],
    *,
    processes: int,
    labels: Mapping[str, Mapping[str, str]],
    spread: bool,
) -> dict[str, Any]:
    """What Ray is asked for: a share of a machine's cores and, for a server or where labels are given, which machine. `machines`
    as `ray.nodes()` gives them; `processes`: workers and servers; `before`: where the node was, if it must be there again.

    Workers and servers have shares of cores, so small that all fit on what is left when the largest machine is lost, else Ray
    would wait for ever; whoever stands beside them has none.
    """
    role = node.rstrip("0123456789")
    alive = [each for each in machines if each["Alive"]]
    cores = sorted(int(each["Resources"].get("CPU", 0)) for each in alive)
    left = sum(cores[:-1] or cores)
    share = 0.0
    if role in ("worker", "server"):
        share = next((int(1e4 / k) / 1e4 for k in range(1, processes + 1) if k * left >= processes), 0.0)
    wanted = [each for name, each in labels.items() if matches(name, node)]
    pinned = bool(wanted)
    if not pinned and not (role == "server" and spread):
        return {"num_cpus": share}
    fit = sorted(each["NodeID"] for each in alive if all(want.items() <= each["Labels"].items() for want in wanted))
    if not fit:
        raise LockstepError(
            f"{node} is to be on a machine with the labels {wanted}, which none of {len(alive)} has: `ray start --labels` gives "
            "them to one; or change labels"
        )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    number = int(node[len(role) :] or 0)
    where = fit[number % len(fit)]
    affinity = NodeAffinitySchedulingStrategy(where, soft=not pinned, _spill_on_unavailable=not pinned)
    return {"num_cpus": 0 if pinned else share, "scheduling_strategy": affinity}
