"""Which machine a node of a Ray cluster is to be on, and how much of it: by hand, without Ray's own processes."""

from __future__ import annotations

import pytest

from lib.cluster.ray.cluster import RayCluster
from lib.cluster.ray.machines import asked
from lib.errors import BadOption, LockstepError

MACHINES = [
    {"NodeID": name, "Alive": alive, "Resources": {"CPU": cores}, "Labels": labels}
    for name, alive, cores, labels in (
        ("a", True, 1.0, {}),
        ("b", True, 2.0, {"rows": "yes"}),
        ("c", True, 4.0, {"rows": "yes", "disk": "fast"}),
        ("d", False, 8.0, {"rows": "yes"}),
    )
]


def placed(node, before=None, machines=MACHINES, **options):
    """The share of a core; the machine, and whether another will do."""
    cluster = RayCluster(**{"workers": 3, "servers": 3} | options)
    spread = cluster.placement == "spread"
    found = asked(node, machines, processes=6, labels=cluster.labels, spread=spread, before=before)
    where = found.get("scheduling_strategy")
    return found["num_cpus"], where and (where.node_id, where.soft)


@pytest.fixture
def _any_name(monkeypatch):
    """Ray's own names of machines are longer."""
    strategies = pytest.importorskip("ray.util.scheduling_strategies")
    monkeypatch.setattr(strategies.NodeAffinitySchedulingStrategy, "_validate_attributes", lambda self: None)


@pytest.mark.usefixtures("_any_name")
def test_servers_are_spread_over_the_machines_that_are_there():
    assert [placed(f"server{number}")[1] for number in range(4)] == [("a", True), ("b", True), ("c", True), ("a", True)]
    assert placed("server1", placement="packed")[1] is placed("worker1")[1] is None


@pytest.mark.usefixtures("_any_name")
def test_labels_pin_a_node_and_who_was_somewhere_is_there_again():
    labels = {"server*": {"rows": "yes"}, "server2": {"disk": "fast"}}
    where = [placed(f"server{number}", labels=labels) for number in range(3)]
    assert where == [(0, ("b", False)), (0, ("c", False)), (0, ("c", False))]
    assert placed("server0", before="c") == (0, ("c", False)) and placed("worker0", labels=labels)[1] is None
    with pytest.raises(LockstepError, match=r"server0 is to be on a machine with the labels .*slow.*, which none of 3"):
        placed("server0", labels={"server0": {"disk": "slow"}})
    with pytest.raises(BadOption, match="labels: no node 'server3'"):
        RayCluster(servers=3, labels={"server3": {"disk": "slow"}})


@pytest.mark.parametrize(
    "cores, share", [((2,), 0.3333), ((1, 1, 1), 0.3333), ((4, 4), 0.5), ((16, 16, 16), 1), ((8, 1), 0.1666), ((0,), 0)]
)
def test_all_find_room_where_the_largest_machine_is_lost(cores, share):
    """Three workers and three servers."""
    machines = [
        {"NodeID": str(number), "Alive": True, "Resources": {"CPU": float(many)} if many else {}, "Labels": {}}
        for number, many in enumerate(cores)
    ]
    assert placed("worker0", machines=machines) == (share, None)
    left = sorted(cores)[:-1] or cores
    assert share == 0 or sum(int(many / share) for many in left) >= 6


def test_who_stands_beside_workers_and_servers_has_no_share():
    """Their shares fill the machines: one more that asked for cores would be waited for, for ever."""
    assert [placed(f"{role}0")[0] for role in ("worker", "embedding", "reader", "sync")] == [0.5, 0, 0, 0]
    assert placed("master") == (0, None)
