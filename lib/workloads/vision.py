"""Wide residual networks on planted or real images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.data import epochs, source
from lib.data.batch import Batch
from lib.data.images import Images, PlantedImages, RealImages, augmented, moments, scaled
from lib.models.layers import Norm, settled
from lib.models.vision import Classifier, WideResNet, WideResNet50, cost
from lib.options.checked import Count, Natural, NotNegative
from lib.store.optim import SGD, Momentum, Optimizer
from lib.streams import stream
from lib.workloads.base import Workload, dense_parameters
from lib.workloads.networks import Network, made, resolved

MODELS: dict[str, type[Classifier]] = {"wrn": WideResNet, "wrn50": WideResNet50}

_MEASURED = 10_000  # training images by which colours are scaled
_CHUNK = 256  # images evaluated at once
_SETTLING = 1024  # training images by which batch normalisation is settled for an evaluation


@dataclass(frozen=True, kw_only=True)
class ImageClasses(Workload):
    """Images of classes, planted (lib.data.images) or of a data folder.

    Real images come in epochs, each in an order of its own that belongs to (seed, epoch), mirrored and moved at random.
    """

    name: str = "images-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}

    samples: Count = 8_000
    batch_size: Count = 32
    dense_optimizer: Optimizer = field(default=Momentum(lr=0.1))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    network: Network = "wrn"
    """The model (option `model`): wrn for small images, wrn50, or a class of your own, a `lib.models.vision.Classifier`;
    it gets what its constructor names of depth, width, classes, channels, weight_decay, norm and seed."""
    depth: int = 8
    """wrn: layers, 6 n + 2."""
    width: Count = 1
    """How many times wider than the plain residual network."""
    weight_decay: NotNegative = 1e-4
    """Weight of the squared parameters."""
    norm: Literal["settled", "running"] = "settled"
    """Moments of an evaluation's batch normalisation: of training batches at the parameters that it judges, or torch's running
    ones, which a replica rule mixes."""
    data: str | None = None
    """Folder of real images; without it they are planted, by the options from `classes` to `world`."""
    classes: Count = 10
    """Number of classes."""
    side: Count = 16
    """Pixels of a side."""
    channels: Count = 3
    """Colours."""
    shift: Natural = 1
    """Most pixels by which a pattern is moved."""
    noise: NotNegative = 6.0
    """Standard deviation of a pixel's noise, over a pattern's."""
    world: Natural = 0
    """Seed of the patterns, apart from the runs' seed."""
    evaluation_samples: Count = 1_000
    """Most images of the evaluation."""

    def __post_init__(self):
        object.__setattr__(self, "network", resolved(self.network, MODELS, Classifier, self.owner()))
        if self.network == "wrn" and (self.depth < 8 or self.depth % 6 != 2):
            self._reject("depth", "6 n + 2 layers: 8, 14, 20, 26, ...")
        if not self.noise:
            self._reject("noise", "more than 0, or the best accuracy is 1 by definition")

    def model(self, seed: int) -> Classifier:
        classes, channels = (
            (self._real.classes, self._real.train.shape[1]) if self.data else (self.classes, self.channels)
        )
        return made(
            MODELS.get(self.network, self.network),
            depth=self.depth,
            width=self.width,
            classes=classes,
            channels=channels,
            weight_decay=self.weight_decay,
            norm=nn.BatchNorm2d if self.norm == "running" else Norm,
            seed=seed,
        )

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        images = self._epoch(seed, first, size) if self.data else self._planted.draw(size, seed=seed, first=first)
        return Batch.of(index=index, raw={}, size=size, features={"image": images.pixels}, labels=images.labels)

    def work(self) -> Work:
        """The backward pass costs twice the forward pass; maps and parameters are read, and their gradients written."""
        forward, maps = _cost(self)
        return Work(flops=3 * self.batch_size * forward, bytes=12.0 * (dense_parameters(self) + self.batch_size * maps))

    def evaluate(
        self, model: Classifier, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """accuracy and loss on unseen images; planted ones have `accuracy_ceiling`, what the likeliest class would reach."""
        held_out = _evaluation(self, seed)

        def logits(pixels: np.ndarray) -> torch.Tensor:
            return model(Batch.of(index=0, raw={}, size=len(pixels), features={"image": pixels}), rows)

        def settle() -> None:
            last, count = self.batches(), max(1, _SETTLING // self.batch_size)
            for index in range(max(0, last - count), last):
                logits(self.batch(seed, index).features["image"])

        chunks = [slice(at, at + _CHUNK) for at in range(0, len(held_out.labels), _CHUNK)]
        with settled(model, settle):
            scores = torch.cat([logits(held_out.pixels(chunk)).cpu() for chunk in chunks])
        labels = torch.from_numpy(held_out.labels)
        result = {
            "accuracy": float((scores.argmax(1) == labels).double().mean()),
            "loss": float(F.cross_entropy(scores.double(), labels)),
        }
        return result if held_out.ceiling is None else result | {"accuracy_ceiling": held_out.ceiling}

    @functools.cached_property
    def _planted(self) -> PlantedImages:
        return self.plan(PlantedImages)

    @property
    def _real(self) -> RealImages:
        return source.images(self.data, self.side)

    def _epoch(self, seed: int, first: int, size: int) -> Images:
        rows = epochs.chosen(seed, first, size, len(self._real.train))
        pixels = scaled(self._real.train[rows], _moments(self.data, self.side))
        return Images(augmented(pixels, stream(seed, "augment", first)), self._real.train_labels[rows])


class _HeldOutImages(NamedTuple):
    pixels: Callable[[slice], np.ndarray]
    labels: np.ndarray
    ceiling: float | None


@functools.lru_cache(maxsize=4)
def _evaluation(workload: ImageClasses, seed: int) -> _HeldOutImages:
    if not workload.data:
        images = workload._planted.draw(workload.evaluation_samples, seed=seed, first="evaluation")
        ceiling = float(np.mean(workload._planted.best(images.pixels) == images.labels))
        return _HeldOutImages(lambda chunk: images.pixels[chunk], images.labels, ceiling)
    real = workload._real
    chosen = stream(workload.world, "judged").permutation(len(real.test))[: workload.evaluation_samples]
    colours = _moments(workload.data, workload.side)
    return _HeldOutImages(lambda chunk: scaled(real.test[chosen[chunk]], colours), real.test_labels[chosen], None)


@functools.lru_cache(maxsize=4)
def _moments(folder: str, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the first so many training images in an order of its own: encoded ones are not decoded all for this."""
    train = source.images(folder, side).train
    return moments(train[stream(0, "moments").permutation(len(train))[:_MEASURED]])


@functools.lru_cache(maxsize=8)
def _cost(workload: ImageClasses) -> tuple[float, int]:
    shape = workload._real.train.shape[1:3] if workload.data else (workload.channels, workload.side)
    return cost(workload.model(0), *shape)
