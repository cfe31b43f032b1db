"""How fast a device computes a training step, from its ceilings up: plain torch, a step of ours alone, workers together,
and simulated time. Each figure has next to it what we expect on an H100; most expectations are arithmetic, not measurements."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import lib
from lib import Workload
from lib.store.dense import DenseStore
from lib.store.device import DeviceTable
from lib.store.table import Table
from lib.tasks.flat_model import CapturedModel, FlatModel, replay_of, to_native
from notebooks.calibration import fidelity

FIELDS, DIM, NUMBERS, HIDDEN, VOCABULARY = 26, 64, 13, (512, 256), 10_000
BATCHES = 8
"""Batches that take turns in a step that is measured alone."""
TOGETHER = ("sync", "gba", "s-easgd", "all-reduce")
Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """Where and how large."""

    device: str
    small: bool = False
    """As large as a test needs."""

    @property
    def cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def batches(self) -> tuple[int, int]:
        return (32, 64) if self.small else (2_048, 32_768)

    def task(self, batch: int, steps: int = 1) -> Workload:
        """The DLRM of all parts."""
        shape = {"dim": 8, "hidden": (16,)} if self.small else {"dim": DIM, "hidden": HIDDEN}
        size = {"batch_size": batch, "samples": batch * steps, "evaluation_samples": 64 if self.small else 2_048}
        return lib.workloads.get("criteo-dlrm", "laptop", **shape, **size)

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], budget: float = 1.0) -> tuple[float, float]:
        """Median seconds of a call with its end awaited, and mean seconds of calls in a row."""
        budget = 0.01 if self.small else budget
        for _ in range(3):
            call()
        self.wait()
        alone, began = [], time.perf_counter()
        while time.perf_counter() - began < budget / 2 or len(alone) < 3:
            start = time.perf_counter()
            call()
            self.wait()
            alone.append(time.perf_counter() - start)
        many = max(3, int(budget / 2 / np.median(alone)))
        start = time.perf_counter()
        for _ in range(many):
            call()
        self.wait()
        return float(np.median(alone)), (time.perf_counter() - start) / many


def figure(what: str, value: float, unit: str, expected: str, **more: Any) -> Row:
    return {"figure": what, "value": value, "unit": unit, "expected on an H100": expected, **more}


def ceilings(bench: Bench) -> Iterator[Row]:
    """What no program on this device can beat."""
    there, here = torch.zeros(1024).to(bench.device), torch.zeros(1024)
    alone, row = bench.seconds(lambda: there.add_(1), 0.3)
    yield figure("a kernel and its end", 1e6 * alone, "µs", "15 to 25")
    yield figure("a kernel among others", 1e6 * row, "µs", "3 to 5")
    yield figure("4 KB up, pageable", 1e6 * bench.seconds(lambda: here.to(bench.device), 0.2)[0], "µs", "15 to 30")
    yield figure("4 KB down, pageable", 1e6 * bench.seconds(there.cpu, 0.2)[0], "µs", "15 to 30")
    if bench.cuda:
        yield figure("pin_memory of 4 KB", 1e6 * bench.seconds(here.pin_memory, 0.2)[0], "µs", "1 to 10")
        many = torch.cuda.CUDAGraph()
        with torch.cuda.graph(many):
            for _ in range(100):
                there.add_(1)
        yield figure("a kernel in a graph", 1e4 * bench.seconds(many.replay, 0.2)[1], "µs", "1.5 to 2")
    for batch in bench.batches:
        left, right = torch.randn(batch, 415).to(bench.device), torch.randn(415, 512).to(bench.device)
        took = bench.seconds(lambda left=left, right=right: left @ right, 0.2)[1]
        yield figure(f"a product of {batch} x 415 x 512", 2e-12 * batch * 415 * 512 / took, "TFLOP/s", "20 to 45, fp32")


class PlainDLRM(torch.nn.Module):
    """The same model as a user of torch alone would write it: one table, whose touched rows are stepped."""

    def __init__(self, dim: int, hidden: tuple[int, ...]):
        super().__init__()
        self.bottom = torch.nn.Linear(NUMBERS, dim)
        left, right = torch.tril_indices(FIELDS + 1, FIELDS + 1, -1)
        self.register_buffer("pairs", left * (FIELDS + 1) + right)
        widths = (dim + len(left), *hidden)
        layers = [torch.nn.Linear(*sizes) for sizes in pairwise(widths)]
        relus = [torch.nn.ReLU() for _ in layers]
        hidden_layers = [each for pair in zip(layers, relus, strict=True) for each in pair]
        self.top = torch.nn.Sequential(*hidden_layers, torch.nn.Linear(widths[-1], 1))

    def forward(self, vectors, numbers, labels):
        first = self.bottom(numbers)
        vectors = torch.cat((first.unsqueeze(1), vectors), 1)
        products = (vectors @ vectors.mT).flatten(1).index_select(1, self.pairs)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat((first, products), 1)).squeeze(1), labels)


def plain_torch(bench: Bench) -> Iterator[Row]:
    """The peers: eager, as a captured graph, and compiled."""
    expected = {
        "eager": ("0.7 to 1.4", "5 to 6"),
        "graph": ("4", "8"),
        "compiled": ("6", "10"),
        "compiled tf32": ("8 to 12", "16 to 20"),
    }
    for way, size in ((way, size) for size in (0, 1) for way in expected):
        if way != "eager" and not bench.cuda:
            continue
        batch, own = bench.batches[size], expected[way][size]
        torch.backends.cuda.matmul.allow_tf32 = way.endswith("tf32")
        try:
            took = bench.seconds(_plain_step(bench, batch, way))[1]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        yield figure(f"plain torch, {way}", 1e-6 * batch / took, "M samples/s", own, batch=batch)


def _plain_step(bench: Bench, batch: int, way: str) -> Callable[[], Any]:
    dim, hidden = (8, (16,)) if bench.small else (DIM, HIDDEN)
    task = bench.task(batch)
    drawn = task.batch(0, 0)
    once, places, numbers, labels = (
        torch.as_tensor(each).to(bench.device)
        for each in (
            np.arange(len(drawn.ids["feature"])),
            drawn.where["feature"],
            drawn.features["dense"],
            drawn.labels,
        )
    )
    table = (0.01 * torch.randn(len(once), dim)).to(bench.device)
    sums = torch.zeros(len(once), 1).to(bench.device)
    model = PlainDLRM(dim, hidden).to(bench.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=bench.cuda, capturable=bench.cuda)
    forward = torch.compile(model, mode="max-autotune-no-cudagraphs") if way.startswith("compiled") else model

    def step() -> None:
        rows = table.index_select(0, once).requires_grad_()
        forward(F.embedding(places, rows), numbers, labels.float()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():  # row-wise Adagrad
            squares = sums.index_select(0, once).add_(rows.grad.square().mean(1, keepdim=True))
            sums.index_copy_(0, once, squares)
            table.index_copy_(0, once, rows.detach().addcdiv(rows.grad, squares.sqrt().add_(1e-8), value=-0.01))

    return step if way == "eager" else replay_of(step)


def our_step(bench: Bench) -> Iterator[Row]:
    """A worker's step without its surroundings, over batches that differ: rows from the host, then in a table of the device, then
    with a captured forward and backward pass."""
    expected = {"rows from the host": ("1 to 3", "10 to 18")}
    expected |= {"rows on the device": ("1 to 3", "6 to 8"), "rows on the device, captured": ("0.5 to 0.8", "4 to 5")}
    for size, (way, ours) in itertools.product((0, 1), expected.items()):
        batch = bench.batches[size]
        alone, _ = bench.seconds(_our_step(bench, batch, way))
        yield figure(f"our step, {way}", 1e3 * alone, "ms", ours[size], batch=batch)


def _our_step(bench: Bench, batch: int, way: str) -> Callable[[], Any]:
    task = bench.task(batch, BATCHES)
    [(name, spec)] = task.tables().items()
    model = (CapturedModel if way.endswith("captured") else FlatModel)(task.model(0), bench.device)
    dense = DenseStore(model.vector.cpu(), task.dense_optimizer, device=bench.device)
    kind = Table if way == "rows from the host" else partial(DeviceTable, device=model.device)
    table = kind(spec.dim, task.row_optimizer, seed=0, scale=spec.scale)
    batches = itertools.cycle([task.batch(0, index) for index in range(BATCHES)])

    def step() -> None:
        drawn = next(batches)
        ids = drawn.ids[name]
        model.load(to_native(dense.values))
        result = model.step(drawn, {name: table.pull(ids)})
        dense.apply(result.dense)
        table.push(ids, result.rows[name], 1, distinct=True)

    for _ in range(2 * BATCHES):  # which meets all rows, and all forms for the second time
        step()
    return step


def workers_together(bench: Bench) -> Iterator[Row]:
    """Four workers of one process, input and all."""
    for batch, expected, steps in zip(
        bench.batches, ("at least 2", "at least 4"), ((120, 40), (4, 4))[bench.small], strict=True
    ):
        for protocol in TOGETHER:
            task = bench.task(batch, steps)
            began = time.perf_counter(), time.process_time()
            run = lib.train(task, protocol, lib.LocalCluster(device=bench.device, workers=4), save=False)
            cores = (time.process_time() - began[1]) / (time.perf_counter() - began[0])
            pace = 1e-6 * fidelity.throughput(run, task)
            yield figure(f"four workers, {protocol}", pace, "M samples/s", expected, batch=batch, cores=cores)


def simulated_time(bench: Bench) -> Iterator[Row]:
    """Milliseconds a step of a simulated run whose gradients the device computes, and of one whose gradients a core computes."""
    for name, expected in (("criteo-deepfm", "40 to 60"), ("criteo-ffnn", "60 to 100")):
        small = {"batch_size": 32, "hidden": (16,), "evaluation_samples": 64}
        task = lib.workloads.get(
            name, "smoke" if bench.small else "full", **(small if bench.small else {"evaluation_samples": 2_048})
        )
        for device, more in ((bench.device, 24), ("cpu", 2)):
            took = []
            for steps in (2, 2, 2 + more):  # the first run warms up
                began, size = time.perf_counter(), replace(task, samples=task.batch_size * steps)
                cluster = lib.VirtualCluster(workers=8, slowdown=0.6, device=device)
                lib.train(size, "gba", cluster, save=False, trace=False)
                took.append(time.perf_counter() - began)
            each, where = 1e3 * (took[2] - took[1]) / more, "a core" if device == "cpu" else "the device"
            yield figure(
                f"simulated, {name}, on {where}", each, "ms a step", "1,400 to 16,000" if device == "cpu" else expected
            )


PARTS = (ceilings, our_step, plain_torch, workers_together, simulated_time)
