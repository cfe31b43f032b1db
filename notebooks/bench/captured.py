"""A step's forward and backward pass as one CUDA graph, over batches of one form and rows that are filled up to a bucket.

It stays with the bench until a card has shown what it gains: in lib it would be some forty lines more, with a rule of which
steps are captured. Where there is no CUDA device a replay is a call, so that the CPU and the tests' stand-in run the same code.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lib.errors import BadOption
from lib.tasks.flat_model import Batch, FlatModel, StepResult

STEPS = 8
"""Buckets between a number of rows and twice as many: at most an eighth of the rows of a step are filling."""


def room(rows: int) -> int:
    """The smallest bucket for so many rows."""
    step = max(1, 2 ** (rows - 1).bit_length() // (2 * STEPS)) if rows > 1 else 1
    return -(-rows // step) * step


class CapturedStep:
    """`FlatModel.launch` for batches of the form of the first one. Inputs and outputs lie where they always lie; the result is a
    copy. A model that cannot be captured is an error."""

    def __init__(self, model: FlatModel, batch: Batch, rows: Mapping[str, Tensor]):
        """`batch` and `rows` lie on the model's device."""
        where, features = (
            {name: each.clone() for name, each in part.items()} for part in (batch.where, batch.features)
        )
        labels = None if batch.labels is None else batch.labels.clone()
        self._batch = replace(batch, where=where, features=features, labels=labels)
        # A model that reads more than its batch's rows would give NaN.
        self._rows = {name: each.new_full((room(len(each)), each.shape[1]), math.nan) for name, each in rows.items()}
        self._fill(batch, rows)
        expected = model.launch(batch, rows)
        run = partial(model.launch, self._batch, self._rows)
        try:
            self._replay = replay_of(run) if model.device.type == "cuda" else run
        except RuntimeError as error:
            raise BadOption(f"{type(model.module).__name__} cannot be captured as a CUDA graph: {error}") from error
        found = self(batch, rows)
        pairs = ((expected.dense, found.dense), *((expected.rows[name], found.rows[name]) for name in rows))
        if not all(torch.allclose(*pair, rtol=1e-4, atol=1e-6) for pair in pairs):
            raise BadOption(
                f"{type(model.module).__name__} cannot be captured: its gradients depend on rows at no place of the batch"
            )

    @staticmethod
    def form(batch: Batch, rows: Mapping[str, Tensor]) -> tuple:
        """What batches have in common that one captured step is for."""
        arrays = (
            *batch.where.values(),
            *batch.features.values(),
            *filter(lambda each: each is not None, [batch.labels]),
        )
        return batch.size, *(tuple(each.shape) for each in arrays), *(room(len(each)) for each in rows.values())

    def __call__(self, batch: Batch, rows: Mapping[str, Tensor]) -> StepResult:
        self._fill(batch, rows)
        out = self._replay()
        of_rows = {name: out.rows[name][: len(each)].clone() for name, each in rows.items()}
        statistics = None if out.statistics is None else out.statistics.clone()
        parts = {"loss": out.loss.clone(), "dense": out.dense.clone(), "scores": out.scores.clone()}
        return replace(out, rows=of_rows, statistics=statistics, **parts)

    def _fill(self, batch: Batch, rows: Mapping[str, Tensor]) -> None:
        for mine, theirs in ((self._batch.where, batch.where), (self._batch.features, batch.features)):
            for name, each in theirs.items():
                mine[name].copy_(each)
        if batch.labels is not None:
            self._batch.labels.copy_(batch.labels)
        for name, each in rows.items():
            self._rows[name][: len(each)].copy_(each)


def replay_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """A graph of a function that waits for nothing and whose tensors stay where they are; a call gives what the function gave
    when it was captured, with new content."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate meanwhile
        out = run()

    def replay() -> Any:
        graph.replay()
        return out

    return replay
