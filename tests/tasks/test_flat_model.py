"""The flat model: views, buckets and gradients."""

import warnings

import numpy as np
import torch
from torch import nn

from lib import workloads
from lib.tasks.flat_model import FlatModel


def example():
    workload = workloads.get("ctr-synthetic", batch_size=16, fields=3, vocabulary=20, dim=2, hidden=(4,))
    batch = workload.batch(0, 0)
    rows = np.random.default_rng(0).normal(size=(len(batch.ids["feature"]), 3)).astype(np.float32)
    return workload, batch, {"feature": rows}


def test_equals_the_module_on_its_own():
    workload, batch, rows = example()
    flat, module = FlatModel(workload.model(1)), workload.model(1)
    result = flat.step(batch, rows)
    block = torch.tensor(rows["feature"], requires_grad=True)
    tensors = batch.to(torch.device("cpu"))
    scores = module(tensors, {"feature": block})
    loss = module.loss(tensors, scores)
    loss.backward()
    assert result.loss == loss.item()
    np.testing.assert_array_equal(result.scores, scores.detach().numpy())
    np.testing.assert_array_equal(result.rows["feature"], block.grad.numpy())
    assert torch.equal(result.dense, torch.cat([p.grad.flatten() for p in module.parameters()]))
    assert flat.size == sum(p.numel() for p in module.parameters())


def test_the_vector_is_live_and_load_copies():
    workload, _, _ = example()
    flat = FlatModel(workload.model(1))
    values = np.arange(flat.size, dtype=np.float32)
    flat.load(values)
    values[0] = 7
    first = next(flat.module.parameters())
    assert first.flatten().tolist() == list(range(first.numel()))
    flat.vector.zero_()
    assert not any(p.any() for p in flat.module.parameters())


def test_a_step_repeats_to_the_bit_and_its_gradient_is_a_copy():
    workload, batch, rows = example()
    flat = FlatModel(workload.model(1))
    first, again = flat.step(batch, rows), flat.step(batch, rows)
    assert torch.equal(first.dense, again.dense) and first.dense.data_ptr() != again.dense.data_ptr()
    np.testing.assert_array_equal(first.rows["feature"], again.rows["feature"])


def test_read_only_arrays_are_taken_without_a_copy_or_a_warning():
    workload, batch, rows = example()
    flat = FlatModel(workload.model(1))
    vector = flat.vector.numpy().copy()
    for array in (vector, rows["feature"]):
        array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat.load(vector)
        flat.step(batch, rows)


class Partial(nn.Module):
    """Uses neither one of its parameters nor its rows."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))

    def forward(self, batch, rows):
        return self.used * 2

    def loss(self, batch, scores):
        return scores.mean()


def test_what_gets_no_gradient_gets_zeros():
    _, batch, rows = example()
    result = FlatModel(Partial()).step(batch, rows)
    assert result.dense.tolist() == [1, 1, 0, 0, 0]
    assert result.rows["feature"].shape == rows["feature"].shape and not result.rows["feature"].any()


class Rowwise(Partial):
    """Has no dense parameters."""

    def __init__(self):
        nn.Module.__init__(self)

    def forward(self, batch, rows):
        return rows["feature"].sum(1)


def test_works_without_tables_and_without_dense_parameters():
    workload = workloads.get("quadratic", dim=3)
    assert FlatModel(workload.model(0)).step(workload.batch(0, 0), {}).rows == {}
    _, batch, rows = example()
    flat = FlatModel(Rowwise())
    assert flat.size == 0 and len(flat.step(batch, rows).dense) == 0


def test_running_statistics_lie_behind_the_parameters_and_move_with_the_forward_pass():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList([nn.BatchNorm1d(2, momentum=0.5), nn.BatchNorm1d(1, track_running_stats=False)])

        def forward(self, batch, rows):
            return self.norms[0](torch.tensor([[1.0, 0.0], [3.0, 0.0]])).sum() + self.norms[1](torch.ones(2, 1)).sum()

        def loss(self, batch, scores):
            return scores

    _, batch, _ = example()
    flat = FlatModel(Normed())
    assert (flat.size, flat.running) == (6, ("norms.0.running_mean", "norms.0.running_var"))
    values = np.float32([1, 1, 0, 0, 1, 0, 0, 8, 1, 3])
    for _ in range(2):
        flat.load(values)
        result = flat.step(batch, {})
        assert result.statistics.tolist() == [1, -4, 0.5, -1.5]  # halfway to the means 2 and 0, the variances 2 and 0
        assert flat.module.norms[0].running_mean.tolist() == [1, 4] and len(result.dense) == 6
