"""A batch, what a worker trains on in one step, and a model whose parameters are one flat vector, which a worker pulls, and whose
gradient it pushes."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.base import nbytes
from lib.device_array import DeviceArray, to_native, upload_array
from lib.errors import BadOption
from lib.store.device import Transfers
from lib.store.kernels import unique
from lib.store.optim import SGD
from lib.store.rows import phantom


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples whose ids are unique: a row is pulled and pushed once, however often it occurs in the batch.

    The arrays are numpy's as a stream makes them, and torch's after `to(device)`.
    """

    index: int
    """Position in the stream."""
    day: int = 0
    """Day of the stream, for continual training."""
    size: int
    """Number of samples."""
    ids: Mapping[str, Any]
    """Table -> its unique int64 ids, in order of first appearance."""
    where: Mapping[str, Any]
    """Table -> for each place in the batch, the position of its id in `ids`."""
    features: Mapping[str, Any]
    """Inputs that are not looked up in a table: numbers, relations, weights."""
    labels: Any = None
    ballast: Any = None
    """In a batch without content: an array that weighs as much as the features and labels."""

    @classmethod
    def of(cls, *, index: int, raw: Mapping[str, np.ndarray], **fields) -> Batch:
        """Make a batch from raw ids of any shape, one array a table."""
        ids, where = {}, {}
        for table, values in raw.items():
            ids[table], positions = unique(np.ascontiguousarray(values, dtype=np.int64).ravel())
            where[table] = positions.reshape(values.shape)
        return cls(index=index, ids=ids, where=where, **fields)

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to a device as tensors; the ids stay on the host, where the store is."""
        return self.map(partial(upload_array, device=torch.device(device)))

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield the samples in batches of at most `size`, to bound the memory; each sample must have its own places."""
        for start in range(0, self.size, size):
            part = itemgetter(slice(start, start + size))
            yield replace(self.map(part), size=min(size, self.size - start))

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """The batch with what a function makes of each array but the ids."""
        return replace(
            self,
            where={name: function(array) for name, array in self.where.items()},
            features={name: function(array) for name, array in self.features.items()},
            labels=None if self.labels is None else function(self.labels),
        )

    @property
    def non_id_arrays(self) -> list[Any]:
        """All arrays but the ids."""
        return [*self.where.values(), *self.features.values(), *([] if self.labels is None else [self.labels])]


def share_ids(batches: Sequence[Batch]) -> tuple[dict[str, np.ndarray], list[Batch]]:
    """Number the ids of several batches together: table -> unique ids, and the batches with places that point into these."""
    ids, places = {}, [{} for _ in batches]
    for table in batches[0].ids:
        ids[table], positions = unique(np.concatenate([batch.ids[table] for batch in batches]))
        ends = np.cumsum([len(batch.ids[table]) for batch in batches])[:-1]
        for batch, there, part in zip(batches, places, np.split(positions, ends), strict=True):
            there[table] = part[batch.where[table]]
    return ids, [replace(batch, ids=ids, where=there) for batch, there in zip(batches, places, strict=True)]


Pooling = Mapping[str, Sequence[int]]
"""Table -> number of columns of its places that are summed into each vector."""


def pool(batch: Batch, rows: Mapping[str, Tensor], pooling: Pooling) -> tuple[Batch, Mapping[str, Tensor]]:
    """Sum the rows of several columns into one vector, in the order of the columns; the batch gets one column for each sum."""
    if not pooling:
        return batch, rows
    where, blocks = dict(batch.where), dict(rows)
    for table, sizes in pooling.items():
        places = where[table]
        starts = _starts(tuple(sizes), places.device)
        firsts = torch.arange(len(places), device=places.device).unsqueeze(1) * places.shape[1] + starts
        blocks[table] = F.embedding_bag(places.flatten(), rows[table], firsts.flatten(), mode="sum")
        where[table] = torch.arange(firsts.numel(), device=places.device).view_as(firsts)
    return replace(batch, where=where), blocks


_starts = functools.cache(lambda sizes, device: upload_array(np.array([0, *accumulate(sizes)][:-1]), device))
"""Uploaded once: a step that is captured as a CUDA graph may not upload."""


MAX_CACHED = 1 << 27
"""Ids and places that are cached for one stream: a gigabyte."""


class IdOnlyBatches:
    """The ids of a workload's batches, drawn once for all timing runs, and the size of their content."""

    def __init__(self, workload: Any, seed: int, keep_where: bool):
        """`keep_where`: cache `Batch.where` too, which some wire formats send."""
        self._workload, self._seed, self._keep_where = workload, seed, keep_where
        self._drawn: dict[tuple[int, int], Batch] = {}
        self._cached = 0

    def batch(self, first: int, size: int, index: int) -> Batch:
        """The batch of `Workload.draw`, with an array of the same size instead of features and labels."""
        drawn = self._drawn.get((first, size))
        if drawn is None:
            drawn = self._workload.draw(self._seed, first, size, index)
            where, whole = drawn.where if self._keep_where else {}, nbytes(drawn)
            drawn = replace(drawn, where=where, features={}, labels=None)
            drawn = replace(drawn, ballast=phantom(whole - nbytes(drawn), kind=np.uint8))
            many = sum(array.size for arrays in (drawn.ids, where) for array in arrays.values())
            if self._cached + many <= MAX_CACHED:
                self._cached += many
                self._drawn[first, size] = drawn
        return drawn if drawn.index == index else replace(drawn, index=index)


_phantom_batches = functools.lru_cache(maxsize=4)(IdOnlyBatches)


def phantom_batches(workload: Any, seed: int, keep_where: bool = False) -> IdOnlyBatches:
    """The sized batches of a stream, shared by all runs on it, whatever their optimisers."""
    plain = SGD(lr=1.0)
    workload = replace(workload, dense_optimizer=plain, row_optimizer=plain, lr_milestones=())
    return _phantom_batches(workload, seed, keep_where)


OnBucket = Callable[[int, Any], None]
"""Takes the number of a bucket and its gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The outcome of one forward and backward pass.

    A `step` leaves rows' gradients where the rows were, and all else but `dense` and `statistics` on the host, as a number and
    arrays; of a batch without labels a device's scores stay there and are None. A `launch` leaves all as tensors on the
    model's device, where it may not be computed yet.
    """

    loss: Any
    """Mean over the batch, before any update."""
    dense: Tensor
    """The dense parameters' flat gradient, a copy, on the model's device."""
    rows: dict[str, Any]
    """Table -> the gradient of each pulled row."""
    scores: Any
    """What the model's `forward` returned."""
    statistics: Tensor | None = None
    """By how much the forward pass moved the running statistics; None: the model has none."""
    sound: bool | None = None
    """Whether loss and gradients are finite; None of a `launch`, of which `finite` says it."""
    captured: bool = False
    """Whether it was replayed from a CUDA graph, or in its place where there is no CUDA device."""

    def finite(self) -> Tensor:
        """Whether the loss and all gradients of a `launch` are finite; a sum is finite only if all its terms are."""
        total = sum((gradient.sum() for gradient in (self.dense, *self.rows.values())), self.loss)
        return 0 * total == 0  # fewer kernels than `isfinite`


class FlatModel:
    """A module whose parameters are views of `vector` and whose gradients are views of `gradient`.

    After the parameters, `vector` has the running statistics of batch normalisation: all means, then all variances. A forward
    pass changes them; they have no gradient.

    On `one_thread` of a CPU the same vector, batch and rows give the same bits. The vector is all the state between steps.
    """

    def __init__(self, module: nn.Module, device: str | torch.device = "cpu", pooling: Pooling | None = None):
        """`pooling`: the columns of a batch that are summed before the module sees them."""
        self.device, self._pooling = torch.device(device), pooling or {}
        self._transfers, self._upload = Transfers(self.device), partial(upload_array, device=self.device)
        self.module = module.to(self.device, torch.float32)
        parameters = list(self.module.parameters())
        running = running_statistics(self.module)
        whole = [*(p.detach() for p in parameters), *(getattr(norm, which) for which, norm in running.values())]
        self.vector = torch.cat([torch.empty(0, device=self.device), *(values.flatten() for values in whole)])
        sizes = [p.numel() for p in parameters]
        self.size = sum(sizes)
        """Number of dense parameters."""
        self.running = tuple(running)
        """The names of the running statistics."""
        self.gradient = torch.zeros(self.size, device=self.device)
        views = zip(parameters, self.vector[: self.size].split(sizes), self.gradient.split(sizes), strict=True)
        for parameter, values, gradient in views:
            parameter.data = values.view(parameter.shape)
            parameter.grad = gradient.view(parameter.shape)
        widths = [values.numel() for values in whole[len(parameters) :]]
        for (which, norm), values in zip(running.values(), self.vector[self.size :].split(widths), strict=True):
            setattr(norm, which, values)
        self._parameters = parameters
        by_hand = self.device.type == "cpu" and not self._pooling
        self._own_gradients = getattr(module, "gradients", None) if by_hand else None
        """The module's own function for gradients, of arrays and without autograd, as `lib.tasks.click_models.LightFM` has."""
        self._buffers: dict[str, tuple[Tensor, int]] | None = self._versions()
        """The buffers before the first step; None after the check that steps leave them as they are."""

    def load(self, vector: Any) -> None:
        """Copy in the values of all parameters and running statistics."""
        self.vector.copy_(self._upload(tensor(vector)))

    def buckets(self, count: int | Literal["tensor"]) -> list[slice]:
        """Cut the gradient into about `count` parts of similar size, or into one for each parameter.

        A part holds whole parameters. Parts are in the order in which the backward pass completes them.
        """
        least, ends = 1 if count == "tensor" else self.size / count, [self.size]
        start = self.size
        for parameter in reversed(self._parameters):
            start -= parameter.numel()
            if ends[-1] - start >= least or start == 0:
                ends.append(start)
        return [slice(start, end) for end, start in pairwise(ends)]

    def step(
        self,
        batch: Batch,
        rows: Mapping[str, np.ndarray],
        buckets: Sequence[slice] = (),
        on_bucket: OnBucket | None = None,
    ) -> StepResult:
        """Compute loss and gradients at the loaded parameters, for a batch on the host.

        `on_bucket(k, part)` is called with each bucket of the gradient as soon as the backward pass completes it.
        """
        if self._own_gradients:
            return self._step_by_hand(batch, rows, buckets, on_bucket)
        blocks = {table: self._upload(tensor(block)) for table, block in rows.items()}
        there = self.launch(batch.to(self.device), blocks, buckets, on_bucket)
        down = (table for table, block in rows.items() if not isinstance(block, DeviceArray))
        sent = {f"/{table}": there.rows[table] for table in down} | {"loss": there.loss, "finite": there.finite()}
        if batch.labels is not None or self.device.type == "cpu":
            sent["scores"] = there.scores
        came = self._transfers.download(sent).on_host()
        scores = came["scores"].numpy() if "scores" in came else None
        of_rows = {table: to_native(came.get(f"/{table}", gradient)) for table, gradient in there.rows.items()}
        return replace(there, loss=came["loss"].item(), rows=of_rows, scores=scores, sound=bool(came["finite"]))

    def launch(
        self, batch: Batch, rows: Mapping[str, Tensor], buckets: Sequence[slice] = (), on_bucket: OnBucket | None = None
    ) -> StepResult:
        """Compute the same for a batch and rows on the device; the result stays there."""
        if self._own_gradients:
            host = self._step_by_hand(batch, rows, buckets, on_bucket)
            of_rows = {table: torch.from_numpy(each) for table, each in host.rows.items()}
            return replace(host, loss=torch.tensor(host.loss), rows=of_rows, scores=torch.from_numpy(host.scores))
        blocks = {table: block.detach().requires_grad_() for table, block in rows.items()}
        self.gradient.zero_()
        seen, vectors = pool(batch, blocks, self._pooling)
        before = self.vector[self.size :].clone() if self.running else None
        scores = self.module(seen, vectors)
        loss = self.module.loss(seen, scores)
        with _bucket_hooks(self._parameters, self.gradient, buckets, on_bucket) if on_bucket else nullcontext():
            loss.backward()
        if self._buffers is not None:
            self._check_buffers(self._buffers)
        return StepResult(
            loss=loss.detach(),
            dense=self.gradient.clone(),
            rows={name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in blocks.items()},
            scores=scores.detach(),
            statistics=None if before is None else self.vector[self.size :] - before,
        )

    def _step_by_hand(
        self, batch: Batch, rows: Mapping[str, Any], buckets: Sequence[slice], on_bucket: OnBucket | None
    ) -> StepResult:
        loss, gradient, of_rows, scores = self._own_gradients(self.vector.numpy(), batch, rows)
        for number, bucket in enumerate(buckets if on_bucket else ()):
            on_bucket(number, gradient[bucket].copy())
        sound = all(map(math.isfinite, (loss, gradient.sum(), *(each.sum() for each in of_rows.values()))))
        return StepResult(loss=loss, dense=torch.from_numpy(gradient), rows=of_rows, scores=scores, sound=sound)

    def _check_buffers(self, before: dict[str, tuple[Tensor, int]]) -> None:
        """Refuse a model whose other buffers change in a step: they do not travel between nodes."""
        for name, (buffer, version) in self._versions().items():
            if name not in before or before[name][0] is not buffer or before[name][1] != version:
                raise BadOption(
                    f"the model's buffer {name!r} changes in a step: it would differ from worker to worker, and no evaluation "
                    "would see it; lib.tasks.layers.BatchNorm normalises batches without running statistics, and those that are "
                    "called running_mean and running_var are part of what a replica holds"
                )
        self._buffers = None

    def _versions(self) -> dict[str, tuple[Tensor, int]]:
        """The other buffers, and how often each was changed in place; a norm's count of batches does not matter."""
        counted = {name.rpartition(".")[0] + ".num_batches_tracked" for name in self.running}
        known = {*self.running, *(name.removeprefix(".") for name in counted)}
        named = {name: buffer for name, buffer in self.module.named_buffers() if name not in known}
        return {name: (buffer, buffer._version) for name, buffer in named.items()}


MOST = 16
"""Forms of batches after which no further one is captured: each keeps the memory of a step."""
CAPTURING = threading.Lock()
"""Held during a capture, which begins with a wait for the whole device: that is an error while another one is under way."""


def padded_size(rows: int) -> int:
    """The smallest bucket that is larger than so many rows, by an eighth of them or by one; there are eight between a number and
    its double. So each step has padding, and the first replay shows whether the model reads it."""
    step = max(1, 2 ** rows.bit_length() // 16)
    return (rows // step + 1) * step


class CapturedModel(FlatModel):
    """Replays a step's forward and backward pass as one CUDA graph, for batches of one form and rows padded to a bucket.

    It captures a form when it meets it for the second time; other steps are eager. A replay launches the same kernels, and
    reports all buckets of its gradient at its end. Where there is no CUDA device a replay is a call, so that the CPU and the
    tests' stand-in for a device run the same code.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._steps: dict[tuple, Callable[..., StepResult] | None] = {}

    def launch(self, batch: Batch, rows: Mapping[str, Tensor], *buckets: Any) -> StepResult:
        form = batch.size, *(x.shape for x in batch.non_id_arrays), *(padded_size(len(x)) for x in rows.values())
        if step := self._steps.get(form):
            return step(batch, rows, *buckets)
        start, again = self.vector.clone(), form in self._steps
        result = super().launch(batch, rows, *buckets)
        self._steps[form] = self._capture(start, batch, rows, result) if again and len(self._steps) <= MOST else None
        return result

    def _capture(self, start: Tensor, batch: Batch, rows: Mapping[str, Tensor], expected: StepResult) -> Callable:
        """`launch` for batches of this one's form, with inputs and outputs where they always lie; its results are copies.

        `expected` is what this batch gives where `start` has been loaded.
        """
        held = replace(batch.map(torch.clone), index=-1, day=-1, ids={})
        # A model that reads more than its batch's rows gives NaN.
        padded = {
            name: each.new_full((padded_size(len(each)), each.shape[1]), torch.nan) for name, each in rows.items()
        }
        run = partial(super().launch, held, padded)

        def step(batch: Batch, rows: Mapping[str, Tensor], buckets: Any = (), on_bucket: Any = None) -> StepResult:
            for mine, theirs in zip(held.non_id_arrays, batch.non_id_arrays, strict=True):
                mine.copy_(theirs)
            for name, each in rows.items():
                padded[name][: len(each)].copy_(each)
            out = run()
            parts = {name: getattr(out, name) for name in ("loss", "dense", "scores", "statistics")}
            of_rows = {name: out.rows[name][: len(each)].clone() for name, each in rows.items()}
            copies = {name: part if part is None else part.clone() for name, part in parts.items()}
            for number, bucket in enumerate(buckets if on_bucket else ()):
                on_bucket(number, to_native(copies["dense"][bucket]).copy())
            return replace(out, rows=of_rows, captured=True, **copies)

        try:
            step(batch, rows)  # so that the graph is recorded over rows that are numbers
            if self.device.type == "cuda":
                with CAPTURING, torch.cuda.device(self.device):
                    run = replay_of(run)
            self.vector.copy_(start)  # running statistics have moved
            pairs = ((each.loss, each.dense, each.rows) for each in (step(batch, rows), expected))
            torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-6, equal_nan=True)
        except (RuntimeError, LookupError, AssertionError) as error:
            raise BadOption(
                f"{type(self.module).__name__} cannot be captured as a CUDA graph: a captured step must not wait for the device, "
                f"and must read only its batch's rows, places, features and labels ({error!r}); leave captured out"
            ) from error
        return step


def replay_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """A graph of a function that waits for nothing and whose tensors stay where they are; a call gives what the function gave
    when it was captured, with new content."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate meanwhile
        out = run()
    return lambda: graph.replay() or out


def running_statistics(module: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """Name -> (attribute, norm): all running means, then all running variances in the same order."""
    norms = {name: norm for name, norm in module.named_modules() if getattr(norm, "running_mean", None) is not None}
    for name, norm in norms.items():
        if getattr(norm, "momentum", 0.0) is None:
            raise BadOption(
                f"the model's norm {name!r} has momentum=None, which weighs a batch by how many a worker has met; "
                "give it a number"
            )
    return {
        f"{name}.{which}".removeprefix("."): (which, norm)
        for which in ("running_mean", "running_var")
        for name, norm in norms.items()
    }


@contextmanager
def _bucket_hooks(
    parameters: list[nn.Parameter], gradient: Tensor, buckets: Sequence[slice], on_bucket: OnBucket
) -> Iterator[None]:
    """Call `on_bucket` for each bucket while the backward pass runs, and at its end for the buckets without a gradient; in the
    same order on every worker, whatever its batch touches."""
    missing, reported, start, hooks = [0] * len(buckets), 0, 0, []

    def report_until(end: int) -> None:
        nonlocal reported
        for k in range(reported, end):
            on_bucket(k, to_native(gradient[buckets[k]]).copy())
        reported = max(reported, end)

    def count(owner: int, _: nn.Parameter) -> None:
        missing[owner] -= 1
        report_until(next((k for k in range(reported, len(missing)) if missing[k]), len(missing)))

    for parameter in parameters:
        owner = next(k for k, bucket in enumerate(buckets) if bucket.start <= start < bucket.stop)
        missing[owner] += 1
        start += parameter.numel()
        hooks.append(parameter.register_post_accumulate_grad_hook(partial(count, owner)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    report_until(len(buckets))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: with several, even small sums may have other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor(array: Any) -> Tensor:
    """A tensor on the array's own memory; unlike `from_numpy`, DLPack accepts a read-only array without a warning."""
    if isinstance(array, DeviceArray):
        return array.tensor
    return array.detach() if isinstance(array, Tensor) else torch.from_dlpack(array)
