import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.tasks.flat_model import Batch
from lib.tasks.vision import WideResNet, WideResNet50, forward_cost
from tests.tasks.gradients import check_gradients


def batch_of(images, labels=None):
    return Batch(index=0, size=len(images), ids={}, where={}, features={"image": images}, labels=labels)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_the_published_ones():
    # Zagoruyko and Komodakis give 36.5 million for WRN-28-10, which DS-Sync calls WRN-26-10, and torchvision 68,883,240
    # for wide_resnet50_2.
    assert parameters(WideResNet(depth=26, width=10, classes=10, seed=0)) == 36_479_194
    assert parameters(WideResNet50(width=2, classes=1000, seed=0)) == 68_883_240


def plain_wrn(model, images):
    """Zagoruyko's network out of torch's own layers, block by block."""

    def norm(maps):
        return nn.BatchNorm2d(maps.shape[1])(maps)

    maps = F.conv2d(images, model.first.weight, padding=1)
    for number, block in enumerate(model.blocks):
        stride = 2 if number in (2, 4) else 1
        active = F.relu(norm(maps))
        out = F.conv2d(active, block.convs[0].weight, stride=stride, padding=1)
        out = F.conv2d(F.relu(norm(out)), block.convs[1].weight, padding=1)
        maps = out + (F.conv2d(active, block.shortcut.weight, stride=stride) if block.shortcut else maps)
    return F.linear(F.relu(norm(maps)).mean((2, 3)), model.last.weight, model.last.bias)


def test_equals_the_plain_reference():
    model, images = WideResNet(depth=14, width=2, classes=5, seed=0), torch.randn(4, 3, 8, 8)
    scores = model(batch_of(images), {})
    assert scores.shape == (4, 5)
    torch.testing.assert_close(scores, plain_wrn(model, images))


def test_the_large_one_halves_five_times_and_scores_every_class():
    model = WideResNet50(width=1, classes=7, seed=0)
    assert model(batch_of(torch.randn(2, 3, 64, 64)), {}).shape == (2, 7)
    assert parameters(WideResNet50(width=1, classes=1000, seed=0)) == 25_557_032  # torchvision's resnet50


def test_gradients():
    model = WideResNet(depth=8, width=1, classes=2, seed=0)
    batch = batch_of(torch.randn(2, 3, 4, 4), torch.tensor([0, 1]))
    check_gradients(model, batch, loss=True, of=lambda name: name.startswith(("last", "norm", "blocks.2.norms")))


def test_weight_decay_is_what_sgd_makes_of_it():
    batch = batch_of(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 1, 0]))
    models = [WideResNet(depth=8, width=1, classes=2, weight_decay=decay, seed=0) for decay in (0.1, 0.0)]
    for model in models:
        model.loss(batch, model(batch, {})).backward()
    for ours, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, plain.grad + 0.1 * plain.detach())


def test_a_score_by_hand():
    model = WideResNet(depth=8, width=1, classes=2, seed=0)
    model.last.weight.data.zero_()
    model.last.bias.data = torch.tensor([1.0, 3.0])
    batch = batch_of(torch.randn(2, 3, 8, 8), torch.tensor([1, 1]))
    scores = model(batch, {})
    assert scores.tolist() == [[1, 3], [1, 3]]
    assert model.loss(batch, scores).item() == pytest.approx(0.126928, abs=1e-5)  # log(1 + e^-2)


def test_flops_count_the_convolutions():
    model = WideResNet(depth=8, width=1, classes=2, seed=0)
    first = 2 * 3 * 16 * 9 * 64
    blocks = 2 * 64 * (2 * 16 * 16 * 9)
    blocks += 2 * 16 * (16 * 32 * 9 + 32 * 32 * 9 + 16 * 32) + 2 * 4 * (32 * 64 * 9 + 64 * 64 * 9 + 32 * 64)
    maps = 64 * (16 + 16 + 16) + 16 * 3 * 32 + 4 * 3 * 64
    assert forward_cost(model, 3, 8) == (first + blocks, maps)
