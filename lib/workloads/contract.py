"""A workload held to its contract where a run meets it, so that a mistake is named when it is made and not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch

from lib.data.batch import Batch
from lib.errors import BadOption
from lib.models.flat import FlatModel, tensor
from lib.models.pooling import pooled
from lib.options.checked import shown
from lib.workloads.base import Workload


def fresh(workload: Workload, seed: int) -> FlatModel:
    """The model of a seed, from which alone it follows: where it has drawn from a global stream, a second one has to be equal."""
    before = _global_streams()
    module = workload.model(seed)
    if not isinstance(module, torch.nn.Module):
        raise BadOption(f"{workload.owner()}: model must return a torch.nn.Module, not {shown(module)}")
    model = FlatModel(module)
    if _global_streams() != before and not torch.equal(model.vector, FlatModel(workload.model(seed)).vector):
        raise BadOption(
            f"{workload.owner()}: model(seed={seed}) gives another model each time; the layers of lib.models.layers take a "
            "generator of the seed, and torch.manual_seed(seed) first thing serves torch's own"
        )
    return model


def drawn(workload: Workload, seed: int, first: int, size: int, index: int) -> Batch:
    """`workload.draw`, with as many samples as were asked for, and ids of its own tables."""
    what = f"{workload.owner()}: draw(first={first}, size={size})"
    try:
        batch = workload.draw(seed, first, size, index)
    except (StopIteration, IndexError) as error:
        raise BadOption(
            f"{what} ran dry: {error!r}; a stream has no end: begin it again, or train on what there is, with samples={first}"
        ) from error
    if not isinstance(batch, Batch):
        raise BadOption(f"{what} must return a Batch, as Batch.of(...) makes one, not {shown(batch)}")
    given = {batch.size, len(batch.labels)} if batch.labels is not None else {batch.size}
    if given != {size}:
        labels = "no" if batch.labels is None else len(batch.labels)
        raise BadOption(f"{what} returned a batch of size {batch.size} with {labels} labels")
    if unknown := batch.ids.keys() - workload.tables().keys():
        known = ", ".join(workload.tables()) or "none"
        raise BadOption(f"{what} has ids of a table {min(unknown)!r}, which tables() does not name; there: {known}")
    return batch


def judged(
    workload: Workload, model: torch.nn.Module, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
) -> dict[str, Any]:
    """`workload.evaluate` with what a step gets, as metrics by their names.

    The rows are tensors on the model's device, and `model(batch, rows)` takes a batch as it was drawn: it goes to the device and
    is pooled on the way, as a step's does. No gradient is kept.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    bags = workload.bags()

    def as_in_a_step(_: torch.nn.Module, given: tuple[Batch, Mapping[str, torch.Tensor]]) -> tuple:
        batch, blocks = given
        return pooled(batch.to(device), blocks, bags)

    blocks = {table: tensor(block).to(device) for table, block in rows.items()}
    hook = model.register_forward_pre_hook(as_in_a_step)
    try:
        with torch.inference_mode():
            metrics = workload.evaluate(model, blocks, seed, day)
    finally:
        hook.remove()
    if not isinstance(metrics, Mapping) or not all(isinstance(value, Real) for value in metrics.values()):
        raise BadOption(
            f"{workload.owner()}: evaluate must return metrics by name, as {{'auc': 0.7}}, not {shown(metrics)}"
        )
    return dict(metrics)


def _global_streams() -> tuple[bytes, ...]:
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - a model's author may have drawn from it
    return torch.get_rng_state().numpy().tobytes(), numpys["key"].tobytes(), bytes(str(numpys["pos"]), "ascii")
