"""What this machine does in how many seconds, measured here and now, and a specification of a modelled cluster made of it.

Measured is what a specification is made of. Every figure is the median of several repetitions, on one thread of torch. A machine
that is busy with other things is measured as it is: calibrate and compare in the same run.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
import yaml
from joblib import cpu_count

from lib import BadOption, Device, Node, paths
from lib.options.checked import to_plain
from lib.results.provenance import machine
from notebooks.calibration import transfers
from notebooks.calibration.measurement import Measurement
from notebooks.calibration.training_steps import steps


def calibrate(path: str | Path, quick: bool = False) -> dict:
    """Measure, and write a specification: `worker` and `server` as fields of `Node`, `measured`, `provenance`.

    Returned is what the file holds; next to each figure it says what was measured.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise BadOption(
            f"calibrate: {path} is no place for a file: {'a folder' if path.is_dir() else 'no such folder'}"
        )
    paths.check_writable(
        path.parent, "give a file in another folder with --out"
    )  # before it measures for half a minute
    found = list(figures(quick))
    measured = {figure.name: figure.value for figure in found}
    nodes = {role: to_plain(node) for role, node in nodes_of(measured).items()}
    provenance = machine() | {"quick": quick, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    text = "# A modelled cluster of machines like this one, written by `lockstep calibrate`.\n"
    text += yaml.safe_dump(nodes, sort_keys=False) + "measured:\n"
    text += "".join(f"  {figure.name}: {_text(figure.value)}  # {figure.what}\n" for figure in found)
    text += yaml.safe_dump({"provenance": provenance}, sort_keys=False)
    paths.write_text_atomic(path, text)
    return nodes | {"measured": measured, "provenance": provenance}


def nodes_of(measured: dict[str, float]) -> dict[str, Node]:
    """A worker on one core, and a server with all of them, whose network is this machine's loopback."""
    cores = int(measured["cores"])
    shared = {
        "flops": measured["core_flops_per_s"],
        "core_memory": measured["memory_1_threads_bytes_per_s"],
        "bandwidth": measured["loopback_bytes_per_s"],
        "latency": measured["loopback_latency_s"],
    }
    device = None
    if "cuda_flops_per_s" in measured:
        device = Device(
            flops=measured["cuda_flops_per_s"],
            memory=measured["cuda_memory_bytes_per_s"],
            pcie=min(measured["cuda_to_device_bytes_per_s"], measured["cuda_to_host_bytes_per_s"]),
            launch=measured["cuda_step_fixed_s"],
            capacity=measured["cuda_capacity_bytes"],
        )
    total = max(value for name, value in measured.items() if name.startswith("memory_"))
    worker = Node(**shared, launch=measured["core_step_fixed_s"], device=device)
    return {"worker": worker, "server": Node(**shared, cores=cores, memory=total)}


def figures(quick: bool = False) -> Iterator[Measurement]:
    """The figures one by one, as they are measured."""
    cores = cpu_count()
    yield Measurement("cores", float(cores), "cores that this process may use")
    yield from steps("cpu", quick)
    yield from transfers.memory(cores, quick)
    yield from transfers.loopback(quick)
    if torch.cuda.is_available():
        yield from steps("cuda", quick)
        yield from transfers.pcie(quick)


def _text(value: float) -> str:
    """A number that YAML 1.1 takes for one: it needs a point and a sign in 1.0e+9."""
    return yaml.safe_dump(value).split("\n")[0]
