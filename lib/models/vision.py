"""Wide residual networks (Zagoruyko and Komodakis, 2016) for small and for large images.

Images are float tensors (samples, channels, height, width); a score is a class's logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib.data.batch import Batch
from lib.models.layers import Conv, Linear, Norm, generator

Normalise = Callable[[int], nn.Module]
"""Makes a normalisation of so many channels."""


class Classifier(nn.Module):
    """Scores are logits of classes, the loss is the cross-entropy plus half of `weight_decay` times the squared weights."""

    def __init__(self, weight_decay: float):
        super().__init__()
        self.weight_decay = weight_decay

    def loss(self, batch: Batch, scores: Tensor) -> Tensor:
        loss = F.cross_entropy(scores, batch.labels)
        if self.weight_decay:
            # In the loss, where it is what torch's SGD makes of it, whichever optimiser a server runs.
            loss = loss + 0.5 * self.weight_decay * sum(p.square().sum() for p in self.parameters())
        return loss


class WideResNet(Classifier):
    """WRN-depth-width for images of about 32 x 32: three stages of pre-activation blocks, 16, 32 and 64 times `width` wide.

    `depth` counts 6 n + 2 layers for n blocks a stage, as DS-Sync's WRN-26-10 does; Zagoruyko and Komodakis count the two
    convolutions of the shortcuts too and call the same network WRN-28-10.
    """

    def __init__(
        self,
        *,
        depth: int,
        width: int,
        classes: int,
        channels: int = 3,
        weight_decay: float = 0.0,
        norm: Normalise = Norm,
        seed: int,
    ):
        super().__init__(weight_decay)
        stream = generator(seed)
        blocks = (depth - 2) // 6
        self.first = Conv(channels, 16, 3, stream)
        layers, inputs = [], 16
        for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
            for block in range(blocks):
                layers.append(Basic(inputs, outputs, stream, norm, stride=2 if stage and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.norm = norm(inputs)
        self.last = Linear(inputs, classes, stream)

    def forward(self, batch: Batch, rows: Mapping[str, Tensor]) -> Tensor:
        maps = F.relu(self.norm(self.blocks(self.first(batch.features["image"]))))
        return self.last(maps.mean((2, 3)))


class Basic(nn.Module):
    """Two 3 x 3 convolutions, each after a normalisation and a ReLU, around an identity or a 1 x 1 convolution."""

    def __init__(self, inputs: int, outputs: int, stream: torch.Generator, norm: Normalise, *, stride: int):
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
        self, *, width: int = 2, classes: int = 1000, weight_decay: float = 0.0, norm: Normalise = Norm, seed: int
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

    def __init__(
        self, inputs: int, middle: int, outputs: int, stream: torch.Generator, norm: Normalise, *, stride: int
    ):
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


def cost(model: nn.Module, channels: int, side: int) -> tuple[float, int]:
    """Floating-point operations of the convolutions, and values that they give, for one square image: one is passed through."""
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
