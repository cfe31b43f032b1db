"""The contract of a workload, and checks that name a mistake where a run first meets it, before anything is trained on it."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import torch
from torch import nn

from lib.cluster.spec import Work
from lib.errors import BadField, BadOption
from lib.options.checked import Checked, Count, Positive, Share, show_value
from lib.options.registry import is_user_file, load_from_user_file
from lib.store.optim import Optimizer
from lib.tasks.flat_model import Batch, FlatModel, pool, tensor

Stream = TypeVar("Stream")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What the rows of a table look like."""

    dim: int
    """Width of a row."""
    scale: float
    """A new row is uniform in (-scale, scale)."""
    pooling: tuple[int, ...] = ()
    """Columns of a batch's places whose rows are summed into each vector that the model sees; (): none are summed."""


@dataclass(frozen=True, kw_only=True)
class Workload(Checked, ABC):
    """A model, its data stream, its optimisers and its evaluation.

    A workload is frozen. Its fields are its configuration; all that it returns is a pure function of them and the arguments.
    """

    name: ClassVar[str]
    """The registered name; a field where `named.yaml` has several names for one class."""
    synthetic_only: ClassVar[frozenset[str]] = frozenset()
    """Options of the synthetic data, which change nothing where `data` names a folder."""
    days: ClassVar[int] = 0
    """Days in one pass; an option of the workloads that have days."""

    samples: Count
    """Samples in one pass; the last batch may be smaller."""
    batch_size: Count
    """Samples of a worker's step."""
    dense_optimizer: Optimizer
    """Updates the dense parameters."""
    row_optimizer: Optimizer
    """Updates the tables' rows."""
    lr_milestones: tuple[Share, ...] = ()
    """Shares of the pass after each of which both learning rates are multiplied by `lr_gamma`: epoch 60 of 200 is 0.3."""
    lr_gamma: Positive = 0.1
    """What a learning rate is multiplied by at a milestone."""

    @classmethod
    def error_label(cls) -> str:
        return f"workload {cls.name!r}"

    @property
    def name_in_errors(self) -> str:
        """What errors call it: a registered name may stand for a class with other options."""
        return f"workload {self.name!r}"

    def build_stream(self, kind: type[Stream], **more: Any) -> Stream:
        """A synthetic stream of that class; each of its fields is the option of the same name, or one of `more`."""
        own = {field.name: getattr(self, field.name) for field in fields(kind) if field.name not in more}
        return kind(**own, **more)

    def tables(self) -> dict[str, TableSpec]:
        """Table -> its rows; empty for a workload without sparse features."""
        return {}

    def lr_factor_at(self, sample: float) -> float:
        """The factor of both learning rates at a place of the pass."""
        return self.lr_gamma ** sum(sample >= share * self.samples for share in self.lr_milestones)

    def bags(self) -> dict[str, tuple[int, ...]]:
        """Table -> `TableSpec.pooling`, for the tables whose rows are pooled."""
        return {name: spec.pooling for name, spec in self.tables().items() if max(spec.pooling, default=1) > 1}

    @abstractmethod
    def model(self, seed: int) -> torch.nn.Module:
        """A fresh model, initialised from the seed alone: `forward(batch, rows) -> scores`, `loss(batch, scores)`."""

    @abstractmethod
    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        """Samples `first`, `first` + 1, ... of the endless stream that belongs to the seed, as batch `index`.

        A stream with days holds the same samples for every batch size, so protocols with different batches train on the same
        data. What the samples of a batch share, such as negatives, depends on `first`.
        """

    def batch(self, seed: int, index: int, size: int | None = None) -> Batch:
        """The index-th batch of a pass in batches of one size; `size` overrides `size_of(index)`.

        The stream continues after the pass, with whole batches.
        """
        return self.draw(seed, index * self.batch_size, self.size_of(index) if size is None else size, index)

    @abstractmethod
    def work(self) -> Work:
        """The modelled cost of one training step, forward and backward, on one batch."""

    def evaluation_ids(self, seed: int, day: int | None = None) -> dict[str, np.ndarray]:
        """Table -> the unique ids whose rows the evaluation needs."""
        return {}

    @abstractmethod
    def evaluate(
        self, model: torch.nn.Module, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """Compute metrics by name; the rows are aligned with `evaluation_ids`.

        The samples are never trained on: they are of a stream's `day`, by default the day after the pass. Rows are tensors on
        the model's device. `model(batch, rows)` takes a batch as `Batch.of` makes it, moves it to the device and pools it.
        """

    def day(self, place: int) -> int:
        """The day of a sample; days continue after the pass."""
        return place * (self.days or self._refuse_days()) // self.samples

    def day_begins(self, day: int) -> int:
        """The first sample of a day."""
        return -(-day * self.samples // (self.days or self._refuse_days()))

    def split_by_day(self, first: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield (day, first sample, samples) for each day of a synthetic stream that these samples belong to."""
        while size:
            day = Workload.day(self, first)
            many = min(size, Workload.day_begins(self, day + 1) - first)
            yield day, first, many
            first, size = first + many, size - many

    def _refuse_days(self) -> NoReturn:
        raise BadOption(f"workload {self.name!r} has no days; click streams and next-item have")

    def log_loss_and_label_sums(self, labels: np.ndarray, scores: np.ndarray) -> tuple[float, float] | None:
        """Sum of the log loss and sum of the labels, for a batch with binary labels; None for other workloads."""
        return None

    def batches(self, samples: int | None = None) -> int:
        """Batches in so many samples, by default in one pass."""
        return -(-(self.samples if samples is None else samples) // self.batch_size)

    def size_of(self, index: int) -> int:
        """Samples of the index-th batch: short only where the pass ends."""
        left = self.samples - index * self.batch_size
        return left if 0 < left < self.batch_size else self.batch_size


@functools.lru_cache(maxsize=16)
def dense_parameters(workload: Workload) -> int:
    """Number of the model's dense parameters, which are not allocated for it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in workload.model(0).parameters())


def fresh_model(workload: Workload, seed: int) -> FlatModel:
    """Make a workload's model from a seed. A model that draws from a global random stream must come out equal a second time."""
    before = _global_random_states()
    module = workload.model(seed)
    if not isinstance(module, torch.nn.Module):
        raise BadOption(f"{workload.name_in_errors}: model must return a torch.nn.Module, not {show_value(module)}")
    model = FlatModel(module)
    if _global_random_states() != before and not torch.equal(model.vector, FlatModel(workload.model(seed)).vector):
        raise BadOption(
            f"{workload.name_in_errors}: model(seed={seed}) gives another model each time; the layers of lib.tasks.layers take a "
            "generator of the seed, and torch.manual_seed(seed) first thing serves torch's own"
        )
    return model


def draw_batch(
    workload: Workload, seed: int, first: int, size: int, index: int, known_tables: Collection[str] | None = None
) -> Batch:
    """Call `workload.draw`, and check the number of samples and the names of its tables; `known_tables` spares
    making these names."""
    known_tables = workload.tables().keys() if known_tables is None else known_tables
    try:
        batch = workload.draw(seed, first, size, index)
    except (StopIteration, IndexError) as error:
        problem = f"ran dry: {error!r}; a stream has no end: begin it again, or train with samples={first}"
        raise _bad_draw_error(workload, first, size, problem) from error
    if not isinstance(batch, Batch):
        problem = f"must return a Batch, as Batch.of(...) makes one, not {show_value(batch)}"
    elif batch.size != size or (batch.labels is not None and len(batch.labels) != size):
        labels = "no" if batch.labels is None else len(batch.labels)
        problem = f"returned a batch of size {batch.size} with {labels} labels"
    elif unknown := batch.ids.keys() - known_tables:
        known = ", ".join(known_tables) or "none"
        problem = f"has ids of a table {min(unknown)!r}, which tables() does not name; there: {known}"
    else:
        return batch
    raise _bad_draw_error(workload, first, size, problem)


def _bad_draw_error(workload: Workload, first: int, size: int, problem: str) -> BadOption:
    return BadOption(f"{workload.name_in_errors}: draw(first={first}, size={size}) {problem}")


def evaluate(
    workload: Workload, model: torch.nn.Module, rows: Mapping[str, np.ndarray], seed: int, day: int | None = None
) -> dict[str, Any]:
    """Call `workload.evaluate` with rows and batches as a training step has them, without gradients, and check the metrics.

    Rows become tensors on the model's device. A batch that the workload passes to the model is moved there and pooled first.
    """
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    bags = workload.bags()

    def prepare(_: torch.nn.Module, given: tuple[Batch, Mapping[str, torch.Tensor]]) -> tuple:
        batch, blocks = given
        return pool(batch.to(device), blocks, bags)

    blocks = {table: tensor(block).to(device) for table, block in rows.items()}
    hook = model.register_forward_pre_hook(prepare)
    try:
        with torch.inference_mode():
            metrics = workload.evaluate(model, blocks, seed, day)
    finally:
        hook.remove()
    if not isinstance(metrics, Mapping) or not all(isinstance(value, Real) for value in metrics.values()):
        right = "metrics by name, as {'auc': 0.7}"
        raise BadOption(f"{workload.name_in_errors}: evaluate must return {right}, not {show_value(metrics)}")
    return dict(metrics)


def _global_random_states() -> tuple[bytes, ...]:
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 - a model's author may have drawn from it
    return torch.get_rng_state().numpy().tobytes(), numpys["key"].tobytes(), bytes(str(numpys["pos"]), "ascii")


Network = str | type[nn.Module]


def resolve_network(
    network: Network, known: Mapping[str, type[nn.Module]], base: type[nn.Module], owner: str
) -> Network:
    """The name of a registered network, or a class of the user's own that extends `base`, also as "my_file.py:MyNetwork"."""
    if network in known:
        return network
    if isinstance(network, str):
        if not is_user_file(network):
            *others, last = map(repr, known)
            own = f"a class that extends {base.__module__}.{base.__name__} may stand there too, or its file"
            raise BadField(owner, ("model",), f" must be {', '.join(others)} or {last}, not {network!r}; {own}")
        network = load_from_user_file(network, "model", base)
    if not isinstance(network, type) or not issubclass(network, base):
        raise BadOption(f"{owner}: model {network!r} does not extend {base.__module__}.{base.__name__}")
    return network


def build_with_accepted(kind: type[nn.Module], **shape: Any) -> nn.Module:
    """Make a network; its constructor gets the parts of the shape that it names."""
    return kind(**{name: shape[name] for name in signature(kind).parameters if name in shape})
