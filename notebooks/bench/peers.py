"""Peers of the table: torch, fbgemm, arrays that are indexed directly, and the memory itself.

Each is built for a number of rows and a dimension, and `step(rows, grads)` gives a look-up and an update of these rows, ready to
run. Peers index arrays: no id is hashed, and nothing is evicted.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numba import njit

from lib import Adagrad
from lib.store import kernels
from lib.store.kernels import OPTIONS, prefetch_range
from notebooks.bench.pairs import at_once

FEATURES = 26
Step = Callable[[], Any]


class Torch:
    """torch.nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad."""

    name, claim = "torch", "torch"

    def __init__(self, size: int, dim: int, optimizer: Adagrad):
        self.weight = torch.zeros(size, dim)
        self.bag = torch.nn.EmbeddingBag.from_pretrained(self.weight, freeze=False, mode="sum", sparse=True)
        self.weight.fill_(0.0)  # memory that was never written to would be one page
        self.stepper = torch.optim.Adagrad(self.bag.parameters(), lr=optimizer.lr, eps=optimizer.eps)

    def step(self, rows: np.ndarray, grads: np.ndarray) -> Step:
        ids, offsets, grad = torch.from_numpy(rows), torch.arange(rows.size), torch.from_numpy(grads)

        def run() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's sparse tensors speak of checks
                self.stepper.zero_grad()
                self.bag(ids, offsets).backward(grad)
                self.stepper.step()

        return run


class Fbgemm:
    """fbgemm's table-batched embedding for the CPU, as 26 features of one table: the form in which it is fastest.

    With all rows as one feature, row-wise Adagrad takes five times as long. Raises ImportError or OSError where it is not
    installed, or is built for another torch.
    """

    name, claim = "fbgemm", "fbgemm"

    def __init__(self, size: int, dim: int, optimizer: Adagrad):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.bags = SplitTableBatchedEmbeddingBagsCodegen(
            [(size, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            feature_table_map=[0] * FEATURES,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD if optimizer.rowwise else EmbOptimType.EXACT_ADAGRAD,
            learning_rate=optimizer.lr,
            eps=optimizer.eps,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        self.weight = self.bags.split_embedding_weights()[0]
        self.weight.zero_()

    def step(self, rows: np.ndarray, grads: np.ndarray) -> Step:
        """Row k is the bag of sample k // 26 in feature k % 26; bags at the end may be empty."""
        batch = -(-rows.size // FEATURES)
        order = np.arange(batch * FEATURES).reshape(batch, FEATURES).T.ravel()
        inside = order < rows.size
        ids = torch.from_numpy(rows[order[inside]])
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(inside)]))
        padded = np.zeros((batch * FEATURES, grads.shape[1]), np.float32)
        padded[: rows.size] = grads
        grad = torch.from_numpy(padded.reshape(batch, -1))
        return lambda: self.bags(ids, offsets).backward(grad)


class Direct:
    """What a table costs whose ids are its slots: duplicates summed once, rows gathered, one step of the same kernels."""

    name, claim = "arrays", "hashing"

    def __init__(self, size: int, dim: int, optimizer: Adagrad):
        self.optimizer = optimizer
        self.array = np.zeros((size, dim + optimizer.columns(dim)), np.float32)

    def step(self, rows: np.ndarray, grads: np.ndarray) -> Step:
        out, ones = np.empty_like(grads), np.ones(rows.size, np.float32)

        def run() -> None:
            gather(self.array, rows, out)
            distinct, positions = kernels.unique(rows)
            sums = grads
            if distinct.size < rows.size:
                sums, _ = kernels.sum_count(positions, grads, ones, distinct.size)
            self.optimizer.update_slots(self.array, distinct, sums)

        return run


class Ceiling:
    """Every row read once and changed once, all of its numbers, knowing where it is and nothing else."""

    name, claim = "ceiling", "ceiling"

    def __init__(self, size: int, dim: int, optimizer: Adagrad):
        self.array = np.zeros((size, dim + optimizer.columns(dim)), np.float32)

    def step(self, rows: np.ndarray, threads: int) -> Step:
        out = np.empty((rows.size, self.array.shape[1]), np.float32)
        added = np.full_like(out, 1e-6)
        parts = [slice(rows.size * part // threads, rows.size * (part + 1) // threads) for part in range(threads)]

        def work(part: slice) -> None:
            gather(self.array, rows[part], out[part])
            modify(self.array, rows[part], added[part])

        return at_once([partial(work, part) for part in parts])


@njit(**OPTIONS)
def gather(array, slots, out):
    dim, many = np.uint64(out.shape[1]), slots.size
    start, stride = np.uint64(array.ctypes.data), np.uint64(4 * array.shape[1])
    for i in range(many):
        prefetch_range(start + np.uint64(slots[min(i + 16, many - 1)]) * stride, np.uint64(4) * dim)
        row, there = np.uint64(slots[i]), np.uint64(i)
        for d in range(dim):
            out[there, d] = array[row, d]


@njit(**OPTIONS)
def modify(array, slots, block):
    width, many = np.uint64(array.shape[1]), slots.size
    start, stride = np.uint64(array.ctypes.data), np.uint64(4 * array.shape[1])
    for i in range(many):
        prefetch_range(start + np.uint64(slots[min(i + 16, many - 1)]) * stride, stride)
        row, there = np.uint64(slots[i]), np.uint64(i)
        for d in range(width):
            array[row, d] += block[there, d]
