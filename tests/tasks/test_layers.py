import numpy as np
import pytest
import torch

from lib.tasks.layers import BatchNorm, Conv, generator, mlp, mlp_flops, use_fixed_moments


def test_norm_is_torch_batch_norm_on_the_batch():
    inputs = torch.randn(6, 3, 4, 4)
    torch.testing.assert_close(BatchNorm(3)(inputs), torch.nn.BatchNorm2d(3)(inputs))


def test_a_step_leaves_nothing_in_a_norm():
    norm, inputs = BatchNorm(3), torch.randn(6, 3)
    first = norm(inputs)
    norm(torch.randn(6, 3) + 10)
    assert torch.equal(norm(inputs), first) and not list(norm.buffers())


def test_settled_uses_the_moments_of_all_that_was_passed_through():
    model, inputs = mlp(2, (4,), 1, generator(0), norm=True), torch.randn(12, 2)
    with use_fixed_moments(model, lambda: [model(part) for part in inputs.split((5, 7))]):
        hidden = model[0](inputs)
        expected = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(model[1](hidden), expected)
        # With settled norms a sample's output no longer depends on its batch.
        torch.testing.assert_close(model(inputs[:1]), model(inputs)[:1])
    assert not torch.allclose(model(inputs[:3]), model(inputs)[:3])


def test_settled_comes_undone_after_an_error():
    model, inputs = mlp(2, (4,), 1, generator(0), norm=True), torch.randn(5, 2)
    before = model(inputs)
    with pytest.raises(ZeroDivisionError), use_fixed_moments(model, lambda: model(inputs)):
        raise ZeroDivisionError
    assert torch.equal(model(inputs), before)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_one_value_a_channel_normalises_to_the_bias(shape):
    norm = BatchNorm(3)
    norm.bias.data = torch.tensor([1.0, 2.0, 3.0])
    assert norm(torch.randn(shape)).flatten().tolist() == [1, 2, 3]


def test_gradients_through_a_norm():
    norm = BatchNorm(2).double()
    inputs = torch.randn(4, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w, b: torch.func.functional_call(norm, {"weight": w, "bias": b}, x),
                                    (inputs, norm.weight, norm.bias))  # fmt: skip


def test_conv_by_hand():
    conv = Conv(1, 1, 3, generator(0), stride=2)
    conv.weight.data.fill_(1.0)
    image = torch.arange(16.0).view(1, 1, 4, 4)
    # Sums of the 3 x 3 neighbourhoods of (0, 0), (0, 2), (2, 0) and (2, 2), with zeros outside.
    assert conv(image).flatten().tolist() == [10, 24, 51, 90]


def test_conv_starts_with_he_variance():
    weight = Conv(64, 64, 3, generator(1)).weight
    assert weight.std().item() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.03)


def test_flops_of_an_mlp():
    assert mlp_flops(3, (4, 5), 2) == 2 * (12 + 20 + 10)
