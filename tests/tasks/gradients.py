"""What tests of models share: gradients against differences of what a model gives, and rows of zeros."""

import numpy as np
import torch


def zero_rows(workload, seed):
    """For an evaluation."""
    ids = workload.evaluation_ids(seed)
    return {name: np.zeros((len(ids[name]), spec.dim), np.float32) for name, spec in workload.tables().items()}


def check_gradients(model, batch, dim=1, loss=False, of=lambda name: True):
    """In double precision autograd agrees on the scores, or the loss, by the rows and by the parameters `of` these names."""
    batch.features.update({name: each.double() for name, each in batch.features.items() if each.is_floating_point()})
    rows = [torch.randn(len(ids), dim, dtype=torch.double, requires_grad=True) for ids in batch.ids.values()]
    named = {name: parameter for name, parameter in model.double().named_parameters() if of(name)}

    def outcome(*values):
        tables = dict(zip(batch.ids, values, strict=False))
        parameters = dict(zip(named, values[len(rows) :], strict=True))
        scores = torch.func.functional_call(model, parameters, (batch, tables))
        return model.loss(batch, scores) if loss else scores

    assert torch.autograd.gradcheck(outcome, (*rows, *named.values()))
