"""The tensors of the paper's models, by size: what its code averages one by one, running statistics among them.

A convolution and its batch normalisation are five: kernel, scale, shift, running mean and running variance.
"""

from collections.abc import Iterator


def wide_resnet(classes: int) -> list[int]:
    """WRN-26-10 for CIFAR: 142 tensors, 36.5 million numbers."""
    sizes, inputs = [*_conv(3, 16, 3)], 16
    for width in (160, 320, 640):
        for _ in range(4):
            sizes += [*_conv(inputs, width, 3), *_conv(width, width, 3)]
            sizes += _conv(inputs, width, 1) if inputs != width else ()
            inputs = width
    return [*sizes, *_linear(inputs, classes)]


def wide_resnet_50() -> list[int]:
    """WRN-50-2 for ImageNet: 267 tensors, 69 million numbers."""
    sizes, inputs = [*_conv(3, 64, 7)], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            sizes += [*_conv(inputs, 2 * width, 1), *_conv(2 * width, 2 * width, 3), *_conv(2 * width, 4 * width, 1)]
            sizes += _conv(inputs, 4 * width, 1) if not block else ()
            inputs = 4 * width
    return [*sizes, *_linear(inputs, 1000)]


def bert_large() -> list[int]:
    """BERT-large for questions: 393 tensors, 336 million numbers."""
    wide, inner = 1024, 4096
    norm = [wide, wide]
    layer = 4 * [*_linear(wide, wide)] + 2 * norm + [*_linear(wide, inner), *_linear(inner, wide)]
    return [30_522 * wide, 512 * wide, 2 * wide, *norm, *(24 * layer), *_linear(wide, wide), *_linear(wide, 2)]


def deepfm(numbers: int = 10_000_000) -> list[int]:
    """DeepFM for Criteo: 23 tensors; how many numbers is an estimate, the smallest of them all by Sec. 4.3. Rows of 16, three
    layers of 400 with batch normalisation, and the linear part."""
    inputs, layers = 26 * 16, []
    for _ in range(3):
        layers += [*_linear(inputs, 400), *(4 * [400])]
        inputs = 400
    layers += [*_linear(inputs, 1), 1]
    rows = (numbers - sum(layers)) // 17
    return [16 * rows, rows, *layers]


def _conv(inputs: int, outputs: int, side: int) -> Iterator[int]:
    yield inputs * outputs * side * side
    yield from 4 * [outputs]


def _linear(inputs: int, outputs: int) -> Iterator[int]:
    yield inputs * outputs
    yield outputs


MODELS = {
    "CIFAR-10": wide_resnet(10),
    "CIFAR-100": wide_resnet(100),
    "ImageNet": wide_resnet_50(),
    "SQuAD": bert_large(),
    "Criteo": deepfm(),
}
"""The paper's data set -> its model's."""
