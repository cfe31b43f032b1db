"""Image classification with wide residual networks (Zagoruyko and Komodakis, 2016), on real or synthetic images.

Images are float tensors (samples, channels, height, width); a score is a class's logit.
The best accuracy on synthetic images is known. Large data sets, such as ImageNet, stay encoded on disk as JPEG or PNG and are
decoded when a batch needs them.
"""

import bisect
import functools
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pyarrow import parquet
from torch import Tensor, nn
from torch.nn import functional as F

from lib.cluster.spec import Work
from lib.options.checked import Count, Natural, NotNegative, Text
from lib.store.optim import SGD, Momentum, Optimizer
from lib.streams import stream
from lib.tasks.flat_model import Batch
from lib.tasks.layers import BatchNorm, Conv, Linear, generator, use_fixed_moments
from lib.tasks.prepared_datasets import Partitions, train_and_test_columns
from lib.tasks.sampling import epoch_rows
from lib.tasks.workload import Network, Workload, build_with_accepted, dense_parameters, resolve_network

_COARSE = 4  # side in pixels of the noise from which a class's pattern is enlarged
_PAD = 4  # pixels by which a real image may move


class Images(NamedTuple):
    pixels: np.ndarray
    """float32 (samples, channels, side, side), about mean 0 and variance 1."""
    labels: np.ndarray
    """int64 (samples,) classes."""


class RealImages(NamedTuple):
    """A data set as it is stored."""

    train: np.ndarray
    """uint8 (images, channels, side, side)."""
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    classes: int


def standardise(images: np.ndarray, colour_moments: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Scale bytes to float32 by the mean and deviation of each colour in the training images."""
    mean, spread = (part[:, None, None] for part in colour_moments)
    return (images.astype(np.float32) - mean) / spread


def colour_moments(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each colour."""
    return images.mean((0, 2, 3), dtype=np.float32), images.std((0, 2, 3), dtype=np.float32)


def augment(images: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Mirror half of the images, and move each by up to four pixels each way; pixels from outside are 0."""
    size, side = len(images), images.shape[-1]
    mirrored = generator.random(size) < 0.5
    images = np.where(mirrored[:, None, None, None], images[..., ::-1], images)
    padded = np.pad(images, ((0, 0), (0, 0), (_PAD, _PAD), (_PAD, _PAD)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
    down, right = generator.integers(2 * _PAD + 1, size=(2, size))
    return np.ascontiguousarray(windows[np.arange(size), :, down, right])


CROP = 0.875
"""Share of the shorter side in the central square, as is usual for evaluations on ImageNet."""


class EncodedImages:
    """An array of bytes (images, 3, side, side) of which rows can be read; they are decoded on reading."""

    def __init__(self, files: Sequence[Path], side: int):
        """`files`: the rows that `python -m data_prep imagenet` wrote."""
        self._side = side
        labels = [parquet.read_table(path, columns=["label"])["label"].to_numpy() for path in files]
        self.labels = np.concatenate(labels).astype(np.int64)
        groups = []
        for path in files:
            about = parquet.read_metadata(path)
            groups += [(path, number, about.row_group(number).num_rows) for number in range(about.num_row_groups)]
        self._groups = groups
        self._ends = list(accumulate(rows for *_, rows in groups))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, self._side, self._side

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        rows = np.arange(len(self))[rows]
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows.tolist()):
            group = bisect.bisect_right(self._ends, row)
            path, number, count = self._groups[group]
            found[place] = decode(_images(path, number)[row - self._ends[group] + count], self._side)
        return found


def decode(image: bytes, side: int) -> np.ndarray:
    """The central square of a picture as bytes (3, side, side)."""
    from PIL import Image  # only encoded images need it

    with Image.open(io.BytesIO(image)) as picture:
        width, height = picture.size
        kept = min(width, height) * CROP
        left, top = (width - kept) / 2, (height - kept) / 2
        box, size = (left, top, left + kept, top + kept), (side, side)
        square = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR, box=box)
    return np.asarray(square).transpose(2, 0, 1)


@functools.lru_cache(maxsize=64)
def _images(path: Path, group: int) -> list[bytes]:
    with parquet.ParquetFile(path) as file:
        return file.read_row_group(group, columns=["image"])["image"].to_pylist()


@functools.lru_cache(maxsize=2)
def read_images(path: str, side: int) -> RealImages:
    """Read images: arrays in memory, or encoded ones, which are decoded to `side` pixels on reading."""
    found = Partitions(path, "images", "encoded images")
    if found.manifest["kind"] == "encoded images":
        train, test = (EncodedImages(found.files(name, "rows.parquet"), side) for name in ("train", "val"))
        return RealImages(train, train.labels, test, test.labels, len(found.manifest["classes"]))
    label, classes = list(found.manifest["classes"].items())[-1]
    parts = {name: (found.take(name, "images"), found.take(name, label).astype(np.int64)) for name in found.names}
    train, test = train_and_test_columns(path, parts, "train", "test")
    return RealImages(*train, *test, classes)


NormType = Callable[[int], nn.Module]
"""Makes a normalisation for a number of channels."""


class Classifier(nn.Module):
    """Scores are logits of classes; the loss is the cross-entropy plus half of `weight_decay` times the squared weights."""

    def __init__(self, weight_decay: float):
        super().__init__()
        self.weight_decay = weight_decay

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        loss = F.cross_entropy(scores, batch.labels)
        if self.weight_decay:
            # As part of the loss it equals the weight decay of torch's SGD, whatever optimiser a server uses.
            loss = loss + 0.5 * self.weight_decay * sum(p.square().sum() for p in self.parameters())
        return loss


class WideResNet(Classifier):
    """WRN-depth-width for images of about 32 x 32: three stages of pre-activation blocks, 16, 32 and 64 times `width` wide.

    `depth` counts 6 n + 2 layers for n blocks in a stage, as in DS-Sync's WRN-26-10. Zagoruyko and Komodakis also count the two
    convolutions of the shortcuts, and call the same network WRN-28-10.
    """

    def __init__(
        self,
        *,
        depth: int,
        width: int,
        classes: int,
        channels: int = 3,
        weight_decay: float = 0.0,
        norm: NormType = BatchNorm,
        seed: int,
    ):
        super().__init__(weight_decay)
        stream = generator(seed)
        blocks = (depth - 2) // 6
        self.first = Conv(channels, 16, 3, stream)
        layers, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(blocks):
                layers.append(BasicBlock(inputs, outputs, stream, norm, stride=2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.norm = norm(inputs)
        self.last = Linear(inputs, classes, stream)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        maps = F.relu(self.norm(self.blocks(self.first(batch.features["image"]))))
        return self.last(maps.mean((2, 3)))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, each after a normalisation and a ReLU, around an identity or a 1 x 1 convolution."""

    def __init__(self, inputs: int, outputs: int, stream: torch.Generator, norm: NormType, *, stride: int):
        super().__init__()
        self.norms = nn.ModuleList([norm(inputs), norm(outputs)])
        self.convs = nn.ModuleList([Conv(inputs, outputs, 3, stream, stride=stride), Conv(outputs, outputs, 3, stream)])
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else Conv(inputs, outputs, 1, stream, stride=stride)

    def forward(self, maps: Tensor) -> Tensor:
        active = F.relu(self.norms[0](maps))
        straight = self.shortcut(active) if self.shortcut else maps
        return straight + self.convs[1](F.relu(self.norms[1](self.convs[0](active))))


class WideResNet50(Classifier):
    """WRN-50-width for ImageNet: ResNet-50 (He et al., 2016) whose 3 x 3 convolutions are `width` times as wide."""

    def __init__(
        self, *, width: int = 2, classes: int = 1000, weight_decay: float = 0.0, norm: NormType = BatchNorm, seed: int
    ):
        super().__init__(weight_decay)
        stream = generator(seed)
        self.first, self.norm = Conv(3, 64, 7, stream, stride=2), norm(64)
        layers, inputs = [], 64
        for stage, (blocks, base) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(inputs, base * width, 4 * base, stream, norm, stride=stride))
                inputs = 4 * base
        self.blocks = nn.Sequential(*layers)
        self.last = Linear(inputs, classes, stream)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        maps = F.relu(self.norm(self.first(batch.features["image"])))
        maps = self.blocks(F.max_pool2d(maps, 3, stride=2, padding=1))
        return self.last(maps.mean((2, 3)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, each before a normalisation; the ReLU of the last comes after the addition."""

    def __init__(self, inputs: int, middle: int, outputs: int, stream: torch.Generator, norm: NormType, *, stride: int):
        super().__init__()
        self.convs = nn.ModuleList(
            [
                Conv(inputs, middle, 1, stream),
                Conv(middle, middle, 3, stream, stride=stride),
                Conv(middle, outputs, 1, stream),
            ]
        )
        self.norms = nn.ModuleList([norm(middle), norm(middle), norm(outputs)])
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Sequential(Conv(inputs, outputs, 1, stream, stride=stride), norm(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        straight = self.shortcut(maps) if self.shortcut else maps
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            maps = norm(conv(maps)) if place == 2 else F.relu(norm(conv(maps)))
        return F.relu(straight + maps)


def forward_cost(model: nn.Module, channels: int, side: int) -> tuple[float, int]:
    """Floating-point operations of the convolutions for one square image, and the number of values that they output."""
    total, values, hooks = 0.0, 0, []

    def count(conv: Conv, inputs: tuple[Tensor, ...], maps: Tensor) -> None:
        nonlocal total, values
        total += 2.0 * conv.weight.numel() * maps.shape[2] * maps.shape[3]
        values += maps.numel()

    for module in model.modules():
        if isinstance(module, Conv):
            hooks.append(module.register_forward_hook(count))
    image = torch.zeros(1, channels, side, side, device=next(model.parameters()).device)
    with torch.inference_mode():
        model(Batch(index=0, size=1, ids={}, where={}, features={"image": image}), {})
    for hook in hooks:
        hook.remove()
    return total, values


MODELS: dict[str, type[Classifier]] = {"wrn": WideResNet, "wrn50": WideResNet50}

_MEASURED = 10_000  # training images that give the mean and deviation of colours
_CHUNK = 256  # images evaluated at once
_NORM_SAMPLES = 1024  # training images that give the moments of batch normalisation for an evaluation


@dataclass(frozen=True, kw_only=True)
class ImageClasses(Workload):
    """Classification of real or synthetic images.

    Real images come in epochs, each in its own random order, mirrored and moved at random.
    """

    name: str = "images-synthetic"
    spelled: ClassVar[Mapping[str, str]] = {"model": "network"}
    synthetic_only: ClassVar[frozenset[str]] = frozenset({"classes", "channels", "shift", "noise"})

    samples: Count = 8_000
    batch_size: Count = 32
    dense_optimizer: Optimizer = field(default=Momentum(lr=0.1))
    row_optimizer: Optimizer = field(default=SGD(lr=0.1))
    network: Network = "wrn"
    """The model (option `model`): wrn for small images, wrn50, or a class of your own that extends
    `lib.tasks.vision.Classifier`. Its constructor names what it needs of depth, width, classes, channels, weight_decay, norm and
    seed."""
    depth: int = 8
    """wrn: layers, 6 n + 2."""
    width: Count = 1
    """How many times wider than the plain residual network."""
    weight_decay: NotNegative = 1e-4
    """Weight of the squared parameters."""
    norm: Literal["settled", "running"] = "settled"
    """Moments of batch normalisation in an evaluation: of training batches at the evaluated parameters (settled), or torch's
    running statistics, which a replica rule mixes."""
    data: Text | None = None
    """Folder of real images; without it they are synthetic, by the options from `classes` to `world`."""
    classes: Count = 10
    """Number of classes."""
    side: Count = 16
    """Pixels of a side."""
    channels: Count = 3
    """Colours."""
    shift: Natural = 1
    """Most pixels by which a pattern is moved."""
    noise: NotNegative = 6.0
    """Standard deviation of a pixel's noise, relative to that of a pattern."""
    world: Natural = 0
    """Seed of the patterns, independent of the seed of runs."""
    evaluation_samples: Count = 1_000
    """Most images of the evaluation."""

    def __post_init__(self):
        object.__setattr__(self, "network", resolve_network(self.network, MODELS, Classifier, self.name_in_errors))
        if self.network == "wrn" and (self.depth < 8 or self.depth % 6 != 2):
            self._reject("depth", "6 n + 2 layers: 8, 14, 20, 26, ...")
        if not self.noise:
            self._reject("noise", "more than 0, or the best accuracy is 1 by definition")

    def model(self, seed: int) -> Classifier:
        real = self.data and self._real
        classes, channels = (real.classes, real.train.shape[1]) if real else (self.classes, self.channels)
        return build_with_accepted(
            MODELS.get(self.network, self.network),
            depth=self.depth,
            width=self.width,
            classes=classes,
            channels=channels,
            weight_decay=self.weight_decay,
            norm=nn.BatchNorm2d if self.norm == "running" else BatchNorm,
            seed=seed,
        )

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        images = self._epoch(seed, first, size) if self.data else self.synthetic(size, seed=seed, first=first)
        return Batch.of(index=index, raw={}, size=size, features={"image": images.pixels}, labels=images.labels)

    def work(self) -> Work:
        """The backward pass costs twice the forward pass; maps and parameters are read, and their gradients written."""
        forward, maps = _cost(self)
        return Work(flops=3 * self.batch_size * forward, bytes=12.0 * (dense_parameters(self) + self.batch_size * maps))

    def evaluate(
        self, model: Classifier, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """accuracy and loss on unseen images, and of more than ten classes `top5`: how often the class is among the five
        likeliest. Of synthetic images, whose classes' true probabilities are known, also `expected_accuracy`, `expected_loss` and
        `accuracy_ceiling`, the largest expected accuracy of any answers."""
        held_out = _held_out_data(self, seed)

        def logits(pixels: np.ndarray) -> torch.Tensor:
            return model(Batch.of(index=0, raw={}, size=len(pixels), features={"image": pixels}), rows)

        def settle() -> None:
            last, count = self.batches(), max(1, _NORM_SAMPLES // self.batch_size)
            for index in range(max(0, last - count), last):
                logits(self.batch(seed, index).features["image"])

        chunks = [slice(at, at + _CHUNK) for at in range(0, len(held_out.labels), _CHUNK)]
        with use_fixed_moments(model, settle):
            scores = torch.cat([logits(held_out.pixels(chunk)).cpu() for chunk in chunks])
        labels, scores = torch.from_numpy(held_out.labels), scores.double()
        result = {
            "accuracy": float((scores.argmax(1) == labels).double().mean()),
            "loss": float(F.cross_entropy(scores, labels)),
        }
        if scores.shape[1] > 10:
            result["top5"] = float((scores.topk(5).indices == labels[:, None]).any(1).double().mean())
        if held_out.truth is not None:
            truth = torch.from_numpy(held_out.truth)
            result["expected_accuracy"] = float(truth.gather(1, scores.argmax(1, keepdim=True)).mean())
            result["expected_loss"] = float(F.cross_entropy(scores, truth))
            result["accuracy_ceiling"] = float(truth.amax(1).mean())
        return result

    def synthetic(self, size: int, *, seed: int, first: object) -> Images:
        """Draw synthetic images: each is its class's pattern, moved around a torus, plus noise. So the probability of each class,
        given the image, is known."""
        generator = stream(seed, "images", first)
        labels = generator.integers(self.classes, size=size)
        moves = generator.integers((2 * self.shift + 1) ** 2, size=size)
        pixels = generator.standard_normal((size, self.channels, self.side, self.side), dtype=np.float32)
        pixels *= np.float32(self.noise)
        pixels += _patterns(self)[labels, moves]
        pixels /= np.float32((1 + self.noise**2) ** 0.5)
        return Images(pixels, labels)

    def class_probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """The true probability of each class for each image; a class's likelihood is the sum over the moves."""
        patterns = _patterns(self)
        flat = patterns.reshape(-1, pixels[0].size)
        products = pixels.reshape(len(pixels), -1) @ flat.T * np.float32((1 + self.noise**2) ** 0.5)
        logs = (products - 0.5 * np.square(flat).sum(1)) / np.float32(self.noise**2)
        logs = np.logaddexp.reduce(logs.reshape(len(pixels), *patterns.shape[:2]), axis=2).astype(np.float64)
        chances = np.exp(logs - logs.max(1, keepdims=True))
        return chances / chances.sum(1, keepdims=True)

    @property
    def _real(self) -> RealImages:
        return read_images(self.data, self.side)

    def _epoch(self, seed: int, first: int, size: int) -> Images:
        rows = epoch_rows(seed, first, size, len(self._real.train))
        pixels = standardise(self._real.train[rows], _moments(self.data, self.side))
        return Images(augment(pixels, stream(seed, "augment", first)), self._real.train_labels[rows])


@functools.lru_cache(maxsize=4)
def _patterns(images: ImageClasses) -> np.ndarray:
    """float32 (classes, moves, channels, side, side)."""
    shape = (images.classes, images.channels, _COARSE, _COARSE)
    coarse = torch.from_numpy(stream(images.world, "patterns").standard_normal(shape, dtype=np.float32))
    smooth = F.interpolate(coarse, size=(images.side, images.side), mode="bicubic", align_corners=False).numpy()
    smooth -= smooth.mean((1, 2, 3), keepdims=True)
    smooth /= smooth.std((1, 2, 3), keepdims=True)
    steps = range(-images.shift, images.shift + 1)
    return np.stack([np.roll(smooth, (down, right), (2, 3)) for down in steps for right in steps], 1)


class _HeldOutImages(NamedTuple):
    pixels: Callable[[slice], np.ndarray]
    labels: np.ndarray
    truth: np.ndarray | None
    """The true probabilities of the classes; None: unknown."""


@functools.lru_cache(maxsize=4)
def _held_out_data(workload: ImageClasses, seed: int) -> _HeldOutImages:
    if not workload.data:
        images = workload.synthetic(workload.evaluation_samples, seed=seed, first="evaluation")
        truth = workload.class_probabilities(images.pixels)
        return _HeldOutImages(lambda chunk: images.pixels[chunk], images.labels, truth)
    real = workload._real
    chosen = stream(workload.world, "judged").permutation(len(real.test))[: workload.evaluation_samples]
    colours = _moments(workload.data, workload.side)
    return _HeldOutImages(lambda chunk: standardise(real.test[chosen[chunk]], colours), real.test_labels[chosen], None)


@functools.lru_cache(maxsize=4)
def _moments(folder: str, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The colour moments of some random training images: to decode all of a large data set would take hours."""
    train = read_images(folder, side).train
    return colour_moments(train[stream(0, "moments").permutation(len(train))[:_MEASURED]])


@functools.lru_cache(maxsize=8)
def _cost(workload: ImageClasses) -> tuple[float, int]:
    shape = workload._real.train.shape[1:3] if workload.data else (workload.channels, workload.side)
    return forward_cost(workload.model(0), *shape)
