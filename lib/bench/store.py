"""The table against torch, against fbgemm, against arrays that are indexed directly, and against the memory itself.

A step is a look-up and an update of the same ids: 26 features of 4096 samples, Zipf(1.05) within each feature. "raw" ids are as
they come, "unique" ones without duplicates; a rate counts the ids of the step. Peers and ours take turns, round by round, on
the same batches, since a machine's speed drifts; a ratio is the median of the rounds'. Peers index arrays; ours hashes 64-bit
ids. Two-thread figures need two free cores: "load" is the machine's when a row was measured.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numba import njit

from lib.data.zipf import probabilities
from lib.store import kernels, moves
from lib.store.kernels import _OPTIONS
from lib.store.lanes import add, copy, prefetch_range
from lib.store.optim import Adagrad, Optimizer
from lib.store.table import Table
from lib.store.team import together
from lib.streams import stream

FEATURES, SAMPLES, EXPONENT = 26, 4096, 1.05
ELEMENTS, ROWWISE = Adagrad(lr=0.1), Adagrad(lr=0.1, rowwise=True)
ODD = 0x9E3779B97F4A7C15 - 2**64
"""Row r has the id r x ODD: any 64 bits, all distinct."""

Step = Callable[[int], Any]


def measure(
    rows: Sequence[int] = (1_000_000, 10_000_000),
    dims: Sequence[int] = (16, 64),
    batches: int = 8,
    rounds: int = 7,
    samples: int = SAMPLES,
) -> Iterator[dict[str, Any]]:
    """All ratios; a target that the ratio is to reach stands beside it."""
    for size in rows:
        drawn = list(_drawn(size, batches, samples))
        for dim in dims:
            yield from _against_torch(size, dim, drawn, rounds)
            yield from _against_fbgemm(size, dim, drawn, rounds)
            yield from _against_the_machine(size, dim, drawn, rounds)
    yield _memory(min(rows))


def quick() -> list[dict[str, Any]]:
    """Every figure once, at a size that says nothing."""
    return list(measure(rows=(20_800,), dims=(16,), batches=2, rounds=1, samples=1024))


def _against_torch(size: int, dim: int, drawn: list[np.ndarray], rounds: int) -> Iterator[dict[str, Any]]:
    for limit in (None, size):
        kinds = _kinds(drawn)
        table = _table(size, dim, ELEMENTS, limit)
        bag = torch.nn.EmbeddingBag(size, dim, mode="sum", sparse=True)
        stepper = torch.optim.Adagrad(bag.parameters(), lr=0.1)
        for kind, threads in _cases(kinds):
            batches, grads = kinds[kind], _grads(kinds[kind], dim)
            theirs = _torch_steps(bag, stepper, batches, grads)
            target = 3.0 if limit else (3.5 if threads == 1 else 4.0)
            peer = "torch.nn.EmbeddingBag(sparse=True) + torch.optim.Adagrad"
            what = "look-up + update, LRU on" if limit else "look-up + update"
            yield _row(what, peer, kind, size, dim, threads, "element-wise Adagrad", target) | _paired(
                theirs, _table_steps(table, batches, grads), table, threads, batches, rounds
            )
        del bag, stepper, table, theirs
        gc.collect()


def _against_fbgemm(size: int, dim: int, drawn: list[np.ndarray], rounds: int) -> Iterator[dict[str, Any]]:
    try:
        make = _fbgemm()
    except Exception as error:  # absent, or built for another torch: then its libraries do not load
        yield {"what": "look-up + update", "peer": f"fbgemm, skipped: {type(error).__name__}; pip install .[peers]"}
        return
    for name, optimizer in (("element-wise Adagrad", ELEMENTS), ("row-wise Adagrad", ROWWISE)):
        kinds = _kinds(drawn)
        table, bags = _table(size, dim, optimizer), make(size, dim, optimizer)
        for kind, threads in _cases(kinds):
            batches, grads = kinds[kind], _grads(kinds[kind], dim)
            theirs = _fbgemm_steps(bags, batches, grads)
            target = 1.5
            if optimizer.rowwise:
                target = 0.6 if threads == 1 else (1.0 if (dim, size) == (64, 10_000_000) else 0.8)
            yield _row("look-up + update", "fbgemm", kind, size, dim, threads, name, target) | _paired(
                theirs, _table_steps(table, batches, grads), table, threads, batches, rounds
            )
        del bags, table, theirs
        gc.collect()


def _against_the_machine(size: int, dim: int, drawn: list[np.ndarray], rounds: int) -> Iterator[dict[str, Any]]:
    """The ceiling moves each unique row once out and once through an addition, all of its numbers, knowing where it is."""
    kinds, optimizer, name = _kinds(drawn), ROWWISE, "row-wise Adagrad"
    table, batches, grads = _table(size, dim, optimizer), kinds["unique"], _grads(kinds["unique"], dim)
    array = np.zeros((size, dim + 1), np.float32)
    mine = _table_steps(table, batches, grads)
    for threads in (1, 2):
        peer = "ceiling: random-row gather, then read-modify-write"
        ceiling = _ceiling_steps(array, batches, threads)
        yield _row("look-up + update", peer, "unique", size, dim, threads, name, 0.5) | _paired(
            ceiling, mine, table, threads, batches, rounds
        )
    for kind in kinds:
        batches, grads = kinds[kind], _grads(kinds[kind], dim)
        steps = _table_steps(table, batches, grads)
        yield _row("two threads against one", "ours on one thread", kind, size, dim, 2, name, 1.4) | _ratios(
            [(_timed(steps, table, 1), _timed(steps, table, 2)) for _ in range(rounds)], batches
        )
    del table
    gc.collect()
    table = _table(size, dim, optimizer, limit=size)
    for kind in kinds:
        batches, grads = kinds[kind], _grads(kinds[kind], dim)
        direct = _direct_steps(array, batches, grads, optimizer)
        row = _row("hashing + LRU", "the same kernels on an array", kind, size, dim, 1, name, round(1 / 1.4, 3))
        yield row | _paired(direct, _table_steps(table, batches, grads), table, 1, batches, rounds)


def _memory(size: int) -> dict[str, Any]:
    """Full tables, with and without a limit; and what 50 million rows would take."""
    beside, whole = [], []
    for limit in (None, size):
        table = _table(size, 16, ROWWISE, limit)
        beside.append((table.nbytes - 4 * size * 17) / size)
        whole.append(50e6 * table.bytes_per_row / 2**30)
    return {
        "what": "memory of a full table, unlimited and with LRU",
        "rows": size,
        "dim": 16,
        "bytes/row beside vector and state": " · ".join(f"{each:.1f}" for each in beside),
        "GiB for 50e6 rows": " · ".join(f"{each:.2f}" for each in whole),
        "target": "at most 24 bytes, 8 GB",
    }


def _drawn(size: int, batches: int, samples: int) -> Iterator[np.ndarray]:
    """Rows of a batch: a feature's ranks are scattered over its share of the rows."""
    share = size // FEATURES
    chances = np.cumsum(probabilities(share, EXPONENT))
    order = stream(0, "bench", "store", "order").permutation(share)
    random = stream(0, "bench", "store", "ids")
    for _ in range(batches):
        ranks = np.minimum(np.searchsorted(chances, random.random((samples, FEATURES))), share - 1)
        yield (order[ranks] + share * np.arange(FEATURES)).ravel()


def _kinds(drawn: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
    return {"raw": drawn, "unique": [kernels.unique(batch)[0] for batch in drawn]}


def _cases(kinds: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return ((kind, threads) for kind in kinds for threads in (1, 2))


def _grads(batches: list[np.ndarray], dim: int) -> np.ndarray:
    shape = max(map(len, batches)), dim
    return stream(0, "bench", "store", "grads").standard_normal(shape, np.float32) / 100


def _table(size: int, dim: int, optimizer: Optimizer, limit: int | None = None) -> Table:
    table = Table(dim, optimizer, seed=0, capacity=size, max_rows=limit)
    for part in np.array_split(np.arange(size), max(1, size // 250_000)):
        table.pull(part * ODD)
    return table


def _table_steps(table: Table, batches: list[np.ndarray], grads: np.ndarray) -> list[Step]:
    def step(ids: np.ndarray, stamp: int) -> None:
        table.pull(ids)
        table.push(ids, grads[: ids.size], stamp)

    return [lambda _, ids=batch * ODD, stamp=stamp: step(ids, stamp) for stamp, batch in enumerate(batches)]


def _torch_steps(bag: torch.nn.Module, stepper: Any, batches: list[np.ndarray], grads: np.ndarray) -> list[Step]:
    def step(ids: torch.Tensor, offsets: torch.Tensor, grad: torch.Tensor) -> None:
        stepper.zero_grad()
        bag(ids, offsets).backward(grad)
        stepper.step()

    return [_peer_step(step, batch, grads, 0) for batch in batches]


def _fbgemm_steps(bags: torch.nn.Module, batches: list[np.ndarray], grads: np.ndarray) -> list[Step]:
    def step(ids: torch.Tensor, offsets: torch.Tensor, grad: torch.Tensor) -> None:
        bags(ids, offsets).backward(grad)

    return [_peer_step(step, batch, grads, 1) for batch in batches]


def _peer_step(step: Callable[..., None], batch: np.ndarray, grads: np.ndarray, ends: int) -> Step:
    ids, offsets, grad = torch.from_numpy(batch), torch.arange(batch.size + ends), torch.from_numpy(grads[: batch.size])
    return lambda threads: step(ids, offsets, grad)


def _fbgemm() -> Callable[[int, int, Adagrad], torch.nn.Module]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    def make(size: int, dim: int, optimizer: Adagrad) -> torch.nn.Module:
        kind = EmbOptimType.EXACT_ROWWISE_ADAGRAD if optimizer.rowwise else EmbOptimType.EXACT_ADAGRAD
        specification = [(size, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)]
        bags = SplitTableBatchedEmbeddingBagsCodegen(
            specification, optimizer=kind, learning_rate=optimizer.lr, eps=1e-10
        )
        bags.init_embedding_weights_uniform(-0.01, 0.01)
        return bags

    return make


def _ceiling_steps(array: np.ndarray, batches: list[np.ndarray], threads: int) -> list[Step]:
    out = np.empty((max(map(len, batches)), array.shape[1]), np.float32)
    added = np.full_like(out, 1e-6)

    def step(ids: np.ndarray) -> None:
        for kernel, block in ((_gather, out), (_modify, added)):
            ends = np.linspace(0, ids.size, threads + 1).astype(int)
            together(lambda k: kernel(array, ids[ends[k] : ends[k + 1]], block[ends[k] : ends[k + 1]]), threads)  # noqa: B023

    return [lambda _, ids=batch: step(ids) for batch in batches]


def _direct_steps(array: np.ndarray, batches: list[np.ndarray], grads: np.ndarray, optimizer: Optimizer) -> list[Step]:
    """What a table costs whose ids are its slots: duplicates summed once, rows gathered, one step."""
    out, room = np.empty_like(grads), np.empty_like(grads)

    def step(ids: np.ndarray) -> None:
        distinct, positions = kernels.unique(ids)
        _gather(array, ids, out[: ids.size])
        sums = grads[: ids.size]
        if distinct.size < ids.size:
            lists = np.stack([np.arange(ids.size), positions, positions]).astype(np.int32)
            moves.total(lists, ids.size, distinct.size, sums, room)
            sums = room[: distinct.size]
        optimizer.update_slots(array, distinct, sums)

    return [lambda _, ids=batch: step(ids) for batch in batches]


@njit(**_OPTIONS)
def _gather(array, slots, out):
    dim, many = out.shape[1], slots.size
    start, to = np.uint64(array.ctypes.data), np.uint64(out.ctypes.data)
    stride, step = np.uint64(4 * array.shape[1]), np.uint64(4 * dim)
    for i in range(many):
        if i + 16 < many:
            prefetch_range(start + np.uint64(slots[i + 16]) * stride, step)
        copy(dim, (to + np.uint64(i) * step, start + np.uint64(slots[i]) * stride), ())


@njit(**_OPTIONS)
def _modify(array, slots, block):
    width, many = array.shape[1], slots.size
    start, stride = np.uint64(array.ctypes.data), np.uint64(4 * array.shape[1])
    source = np.uint64(block.ctypes.data)
    for i in range(many):
        if i + 16 < many:
            prefetch_range(start + np.uint64(slots[i + 16]) * stride, stride)
        add(width, (start + np.uint64(slots[i]) * stride, source + np.uint64(i) * stride), ())


def _paired(
    theirs: list[Step], mine: list[Step], table: Table, threads: int, batches: list[np.ndarray], rounds: int
) -> dict[str, Any]:
    _timed(theirs[:1], table, threads)
    _timed(mine[:1], table, threads)
    return _ratios([(_timed(theirs, table, threads), _timed(mine, table, threads)) for _ in range(rounds)], batches)


def _timed(steps: list[Step], table: Table, threads: int) -> float:
    table.threads = threads
    torch.set_num_threads(threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's sparse tensors speak of checks
        start = time.perf_counter()
        for step in steps:
            step(threads)
        return time.perf_counter() - start


def _ratios(pairs: list[tuple[float, float]], batches: list[np.ndarray]) -> dict[str, Any]:
    ids, ratios = sum(map(len, batches)) / 1e6, sorted(theirs / mine for theirs, mine in pairs)
    return {
        "peer M rows/s": round(ids / statistics.median(theirs for theirs, _ in pairs), 2),
        "ours M rows/s": round(ids / statistics.median(mine for _, mine in pairs), 2),
        "ratio": round(statistics.median(ratios), 2),
        "least": round(ratios[0], 2),
        "greatest": round(ratios[-1], 2),
        "load": round(os.getloadavg()[0], 1),
    }


def _row(
    what: str, peer: str, ids: str, size: int, dim: int, threads: int, optimizer: str, target: float
) -> dict[str, Any]:
    where = {"what": what, "peer": peer, "optimizer": optimizer, "ids": ids, "rows": size, "dim": dim}
    return {**where, "threads": threads, "target": target}
