"""Specifications: in and out of YAML, and the errors that a typo gets."""

import pytest

import lib
from lib import Device, Failure, Link, Lognormal, Mishaps, Node, VirtualCluster
from lib.errors import BadOption, LockstepError
from notebooks import clusters

EVERYTHING = VirtualCluster(
    workers=3,
    servers=2,
    worker=Node(flops=1e9, memory=4e9, device=Device(flops=1e12, memory=1e11)),
    nodes={"worker1": Node(cores=2), "sync0": Node(bandwidth=1e8)},
    links=(Link(ends=("server0", "worker0"), bandwidth=12e9, latency=1e-5),),
    slowdown=Lognormal(sigma=0.4),
    speeds=(1.0, 0.5, 2.0),
    collective="tree",
    failures=(Failure(node="worker*", kind="dies", every=100, lasts=5), Failure(node="server0", kind="slows", at=1)),
    mishaps=Mishaps(late=0.1),
    patience=2,
)


PAPERS = (clusters.gba, clusters.shadowsync, clusters.persia, clusters.oac)


def load(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return VirtualCluster.load(path)


@pytest.mark.parametrize("cluster", [VirtualCluster(), EVERYTHING, *(make() for make in PAPERS)])
def test_out_and_in_again(cluster, tmp_path):
    assert load(tmp_path, cluster.dump()) == cluster


def test_what_is_as_by_default_is_left_out(tmp_path):
    assert VirtualCluster(workers=8).dump() == "workers: 8\n"
    assert load(tmp_path, "") == VirtualCluster()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("workers: 0", "workers must be at least 1, not 0"),
        ("servers: 0", "servers must be at least 1, not 0"),
        *((f"worker: {{{option}: -1}}", f"worker.{option} must be") for option in ("flops", "memory", "cores")),
        ("workers: four", "cluster.yaml: workers must be a whole number, not 'four'"),
        ("workrs: 4", "cluster.yaml: workrs: VirtualCluster has no such field; did you mean 'workers'"),
        ("worker: {bandwith: 1e9}", "cluster.yaml: worker.bandwith: Node has no such field; did you mean 'bandwidth'"),
        ("worker: {bandwidth: 0}", "cluster.yaml: worker.bandwidth must be positive, not 0"),
        ("worker: {latency: -1}", "cluster.yaml: worker.latency must be 0 or more, not -1"),
        ("worker: {device: {flops: 1e12}}", "worker.device.memory: missing; Device needs it"),
        ("nodes: {worker9: {}}", "nodes: no node 'worker9'; the last worker is worker3"),
        ("nodes: {sever0: {}}", "nodes: no node 'sever0'; nodes are worker0"),
        ("links: [{ends: [server0, worker7], bandwidth: 1e9}]", "links.ends: no node 'worker7'"),
        ("uplinks: [{nodes: [worker7], bandwidth: 1e9}]", "uplinks.nodes: no node 'worker7'"),
        ("uplinks: [{nodes: [worker0, worker0], bandwidth: 1e9}]", "worker0 is behind one uplink, and not behind two"),
        ("links: [{ends: [server0], bandwidth: 1e9}]", "cluster.yaml: links[0].ends must be a longer list"),
        ("links: [{ends: [server0, worker0], bandwidth: 0}]", "links[0].bandwidth must be positive"),
        ("collective: rong", "unknown collective 'rong'; did you mean 'ring'"),
        ("speeds: [1, 0, 1, 1]", "cluster.yaml: speeds[1] must be positive, not 0"),
        ("[1, 2]", "cluster.yaml: virtual cluster must be VirtualCluster's fields, such as"),
        ("a: [", "cluster.yaml:2:1: not YAML"),
        ("workers: 1\nworkers: 2", "cluster.yaml:2:1: not YAML: 'workers' stands here twice"),
        (
            "worker:\n  device:\n    flops: fast\n    memory: 1e9",
            "cluster.yaml: worker.device.flops must be a number of operations a second, such as 20 GFLOP/s, not 'fast'",
        ),
    ],
)
def test_errors_name_the_fields_path(text, sentence, tmp_path):
    with pytest.raises(LockstepError) as error:
        load(tmp_path, text)
    assert sentence in str(error.value)


def test_there_are_as_many_workers_as_speeds():
    run = lib.train("quadratic", "gba", "virtual", speeds=[1.0] * 15 + [0.5], samples=32 * 64, save=False)
    assert run.trace.loc[run.trace["kind"] == "compute", "node"].nunique() == 16
    with pytest.raises(BadOption, match="virtual cluster: 3 speeds for 2 workers"):
        VirtualCluster(speeds=(1, 1, 1), workers=2)


@pytest.mark.parametrize("make", PAPERS)
def test_the_papers_clusters_train(make):
    workload, protocol = ("kg-synthetic", "oac") if make is clusters.oac else ("ctr-synthetic", "gba")
    small = {"samples": 2_560, "save": False}
    assert lib.train(workload, protocol, make(), **small).summary["virtual_seconds"] > 0


def test_ten_thousand_nodes_can_be_specified(tmp_path):
    nodes = {f"worker{rank}": Node(flops=1e9 + rank) for rank in range(0, 9_980, 10)}
    cluster = VirtualCluster(workers=9_980, servers=20, nodes=nodes)
    assert load(tmp_path, cluster.dump()) == cluster


def test_a_private_link_does_not_pass_the_interfaces():
    slow, link = Node(bandwidth=1e6), Link(ends=("server0", "worker0"), bandwidth=1e12, latency=0)
    clusters = [VirtualCluster(worker=slow, server=slow, links=links) for links in ((), (link,))]
    slowly, fast = (lib.train("kg-synthetic", "oac", each, samples=2_560, save=False) for each in clusters)
    assert fast.summary["virtual_seconds"] < slowly.summary["virtual_seconds"] / 3
    assert fast.digest == slowly.digest
    sent = fast.usage.set_index("name")["bytes_sent"]
    assert sent["server0 - worker0"] > 1e6 and sent["server0"] < 1e3


def test_usage_says_where_the_time_went():
    cluster = VirtualCluster(workers=16, server=Node(bandwidth=1e8))
    run = lib.train("ctr-synthetic", "async", cluster, samples=20_000, save=False)
    usage = run.usage.set_index("name")
    assert usage.loc["server0", "sent"] > 0.85  # its interface is the bottleneck
    assert usage.loc["server0", "send_wait"] > usage.loc["worker0", "send_wait"]
    workers = usage[usage.index.str.startswith("worker")]
    compute = run.trace[run.trace["kind"] == "compute"]
    busy = (compute["end"] - compute["start"]).sum() / (16 * run.summary["virtual_seconds"])
    assert workers["computed"].mean() == pytest.approx(busy, rel=1e-6)
