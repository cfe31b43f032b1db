"""Calibration: what it measures is plausible, and what it writes can be read back."""

import math

import pytest
import torch
import yaml

from lib.cluster.spec import Node, Work
from lib.errors import BadOption
from notebooks.calibration.calibrate import calibrate, nodes_of
from notebooks.calibration.measurement import fit_line

UNITS = ("_s", "_per_s", "_share", "_bytes", "cores")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One quick calibration: (what was returned, the file's text)."""
    path = tmp_path_factory.mktemp("calibrate") / "here.yaml"
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield calibrate(path, quick=True), path.read_text(), torch.get_num_threads()
    torch.set_num_threads(before)


def test_the_file_holds_what_is_returned(written):
    returned, text, threads = written
    assert yaml.safe_load(text) == returned
    assert list(returned) == ["worker", "server", "measured", "provenance"]
    assert returned["provenance"]["hardware"]["cores"] and returned["provenance"]["quick"] is True
    assert threads == 2  # as before


def test_every_figure_is_finite_named_with_its_unit_and_explained(written):
    returned, text, _ = written
    for name, value in returned["measured"].items():
        assert math.isfinite(value) and value >= 0 and name.endswith(UNITS), name
        assert f"  {name}: {value}  # " in text


def test_the_figures_are_of_this_world(written):
    measured = written[0]["measured"]
    assert measured["cores"] >= 1
    assert 1e7 < measured["core_flops_per_s"] < 1e13
    assert 1e8 < measured["memory_1_threads_bytes_per_s"] < 1e13
    assert 1e7 < measured["loopback_bytes_per_s"] < 1e12 and 1e-7 < measured["loopback_latency_s"] < 0.1
    for model in ("deepfm", "dlrm"):
        assert 0 < measured[f"core_{model}_batch_32_s"] < measured[f"core_{model}_batch_512_s"] < 10


def test_the_nodes_can_be_read_and_are_as_measured(written):
    returned, measured = written[0], written[0]["measured"]
    worker, server = (Node.read(returned[role]) for role in ("worker", "server"))
    assert nodes_of(measured) == {"worker": worker, "server": server}
    assert worker.cores == 1 and server.cores == measured["cores"]
    assert worker.bandwidth == measured["loopback_bytes_per_s"]
    a_second = Work(flops=measured["core_flops_per_s"])
    assert worker.seconds(a_second) == pytest.approx(1 + measured["core_step_fixed_s"])


def test_a_device_becomes_the_workers(written):
    on_gpu = {"flops_per_s": 5e12, "memory_bytes_per_s": 1e12, "step_fixed_s": 1e-3, "capacity_bytes": 8e10}
    on_gpu |= {"to_device_bytes_per_s": 2e10, "to_host_bytes_per_s": 1e10}
    nodes = nodes_of(written[0]["measured"] | {f"cuda_{name}": value for name, value in on_gpu.items()})
    assert nodes["worker"].device.pcie == 1e10 and nodes["worker"].device.launch == 1e-3
    assert nodes["server"].device is None


def test_a_line_is_found_and_never_begins_below_zero():
    a, b, residual = fit_line([1.0, 10.0, 100.0], [5.0 + 2.0 * work for work in (1.0, 10.0, 100.0)])
    assert (a, b, residual) == pytest.approx((5, 2, 0))
    a, b, residual = fit_line([10.0, 20.0, 40.0], [9.0, 20.0, 44.0])
    assert a == 0 and b == pytest.approx(1, rel=0.1) and 0.05 < residual < 0.2


def test_a_place_that_is_none_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("notebooks.calibration.calibrate.figures", lambda *_: pytest.fail("measured first"))
    with pytest.raises(BadOption, match="a folder"):
        calibrate(tmp_path)
    with pytest.raises(BadOption, match="no such folder"):
        calibrate(tmp_path / "not" / "there.yaml")
