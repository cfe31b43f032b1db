"""Reference traces are what the protocols do, and agree with a replay by hand; the check of foreign code finds what is wrong."""

import re

import numpy as np
import pytest
import torch

import lib
from lib import paths, protocols
from lib.command_line import main
from lib.protocols import ALL
from lib.store.dense import DenseStore
from lib.store.optim import SGD
from notebooks.conformance import traces
from notebooks.conformance.sync_check import NotSync, check_equals_sync


def events(name, *kinds):
    return [each for each in traces.read(name)["events"] if each["event"] in kinds]


@pytest.mark.parametrize("name", ALL)
def test_a_trace_is_what_the_protocol_does(name):
    assert traces.differences(traces.read(name), traces.record(name)) == []


def test_every_protocol_has_a_trace_and_nothing_else_has():
    assert {path.stem for path in traces.folder().iterdir()} == {*ALL}


def test_another_protocol_is_another_trace():
    found = traces.differences(traces.read("gba"), traces.read("ringmaster"))
    assert len(found) > 1 and found[0].startswith("protocol: {'name': 'gba'")
    one, other = traces.read("sync"), traces.read("sync")
    other["events"][-1]["values"][1] += 1e-3
    assert re.match(r"events\[\d+\]\.values\[1\]: .* stored, .* now", *traces.differences(one, other))


@pytest.mark.parametrize(
    "name", [name for name in ALL if ALL[name].family == "server" and name not in ("frozen", "ssp")]
)
def test_a_server_s_values_follow_from_what_its_gradients_read(name):
    """The updates again, in numpy: each sums gradients at the parameters that their workers read."""
    trace = traces.read(name)
    problem = {key: np.array(value) for key, value in trace["problem"].items()}
    read, versions = {}, [problem["start"]]
    rule = protocols.get(name)
    for event in trace["events"]:
        if event["event"] == "gradient":
            read[event["batch"]] = event["read"]
        elif event["event"] == "update":
            total, now = np.zeros(2), versions[-1]
            for batch, weight in zip(event["batches"], event["weights"], strict=True):
                at = versions[read[batch]]
                gradient = problem["matrix"] @ (at - problem["optimum"]) + problem["noise"][batch]
                if rule.compensate:
                    gradient, _ = rule.compensate(gradient, now, at, np.zeros(2))
                total += weight * gradient
            versions.append(now - problem["rate"] * event["rate"] * total / event["divisor"])
    stepped = [each["values"] for each in events(name, "step")]
    np.testing.assert_allclose(versions[1:], stepped, rtol=1e-4, atol=1e-5)
    assert len(stepped) > 8


def test_where_sync_s_workers_wait_semi_sync_reads_one_update_early():
    ages = {}
    for name in ("sync", "semi-sync"):
        places = {batch: number for number, each in enumerate(events(name, "update")) for batch in each["batches"]}
        ages[name] = [places[each["batch"]] - each["read"] for each in events(name, "gradient")]
    assert set(ages["sync"]) == {0} and sorted(ages["semi-sync"]) == [0] * 3 + [1] * 57


def test_the_command_says_what_differs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(traces, "folder", lambda: tmp_path)
    assert main(["traces", "sync"]) == 2 and "there is no reference trace of 'sync'" in capsys.readouterr().err
    assert main(["traces", "--write", "sync"]) == 0 == main(["traces", "sync"])
    path = tmp_path / "sync.json"
    path.write_text(path.read_text().replace('"token": 3', '"token": 4'))
    capsys.readouterr()
    assert main(["traces", "sync"]) == 1 and "token: 4 stored, 3 now" in capsys.readouterr().out


def test_the_readme_s_code_runs(monkeypatch):
    monkeypatch.chdir(paths.root())
    text = (traces.folder().parent / "README.md").read_text()
    codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(codes) == 2
    for code in codes:
        exec(code, {})
    with pytest.raises(AssertionError):
        exec(codes[1].replace("outer - merge", "merge['theirs'] - outer #"), {})


class Engine:
    """A step of the kit's own store."""

    def __init__(self):
        self.store = None

    def __call__(self, values, gradients, rate):
        self.store = self.store or DenseStore(values, SGD(lr=rate))
        self.store.apply(np.mean(gradients, axis=0))
        return self.store.pull()


def fused(values, gradients, rate):
    """torch's step, in another order of additions."""
    mean = sum(torch.from_numpy(each) for each in gradients[::-1]) / len(gradients)
    return torch.from_numpy(values).add_(mean, alpha=-rate).numpy()


@pytest.mark.parametrize("step", [Engine(), fused, lambda v, g, rate: v - np.float32(rate) / 4 * sum(g)])
def test_synchronous_steps_pass_in_anybody_s_arithmetic(step):
    check_equals_sync(step)


class OneLate:
    def __init__(self):
        self.before = None

    def __call__(self, values, gradients, rate):
        used, self.before = self.before if self.before is not None else gradients, gradients
        return values - np.float32(rate) * np.mean(used, axis=0)


@pytest.mark.parametrize(
    "step, words",
    [
        (lambda v, g, rate: v + np.float32(rate) * np.mean(g, axis=0), "step 0: .*: the step has the wrong sign"),
        (lambda v, g, rate: v - np.float32(rate) * np.sum(g, axis=0), "summed, not averaged"),
        (lambda v, g, rate: v - np.float32(rate) * g[2], "only worker 2's gradient is used"),
        (lambda v, g, rate: v, "no step is made"),
        (OneLate(), "step 1: .*: the gradients are those of the step before"),
        (lambda v, g, rate: v - np.float32(0.9 * rate) * np.mean(g, axis=0), r"parameter 0 is \S+, and Sync's is \S+$"),
        (lambda v, g, rate: v - rate * np.mean(np.float64(g), axis=0), r"float64 of shape \(6,\); expected float32"),
    ],
)
def test_what_is_not_sync_is_told_apart(step, words):
    with pytest.raises(NotSync, match=words):
        lib.check_equals_sync(step)
