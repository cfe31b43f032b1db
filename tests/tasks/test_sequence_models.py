import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.tasks.click_models import DIEN, TABLE
from lib.tasks.flat_model import Batch
from lib.tasks.retrieval import ITEM, YouTubeDNN
from tests.tasks.gradients import check_gradients

SHAPE = {"fields": 2, "dim": 2, "dense_features": 1, "hidden": (), "length": 3}
USERS = {"dim": 2, "hidden": ()}
COUNTS = (3, 1, 0)


@pytest.fixture
def dien_batch():
    ids = np.random.default_rng(0).integers(20, size=(3, 2 + 2 + 6 + 6))
    features = {"dense": np.ones((3, 1), np.float32), "behaviours": np.array(COUNTS)}
    labels = np.array([1, 0, 1], np.float32)
    batch = Batch.of(index=0, size=3, raw={TABLE: ids}, features=features, labels=labels)
    return batch.to(torch.device("cpu"))


@pytest.fixture
def tube_batch():
    watched = np.random.default_rng(1).integers(20, size=(3, 1 + 3))
    features = {"behaviours": np.array(COUNTS), "log_chance": np.log(np.array([0.5, 0.25, 0.1, 0.5, 0.05], np.float32))}
    raw = {TABLE: watched, ITEM: np.array([7, 8, 9, 7, 6])}  # the first negative is the first sample's next item
    return Batch.of(index=0, size=3, raw=raw, features=features).to(torch.device("cpu"))


def plain_dien(model, vectors, dense):
    """One sample after another, step by step, with torch's cell."""

    def cell(layer):
        made = torch.nn.GRUCell(model.item, model.item)
        made.weight_ih.data, made.bias_ih.data = layer.outer.weight.data, layer.outer.bias.data
        made.weight_hh.data, made.bias_hh.data = layer.inner.weight.data, layer.inner.bias.data
        return made

    scores = []
    for count, v, x in zip(COUNTS, vectors, dense, strict=True):
        profile, target = v[:2].flatten(), v[2:4].flatten()
        history, others = v[4:10].view(3, 4), v[10:16].view(3, 4)
        state, interests = torch.zeros(1, 4), []
        for t in range(count):
            state = cell(model.interest)(history[t : t + 1], state)
            interests.append(state)
        loss = torch.zeros(())
        for t in range(1, count):
            loss = loss + F.softplus(-(interests[t - 1] @ history[t])) + F.softplus(interests[t - 1] @ others[t])
        final = torch.zeros(1, 4)
        if count:
            weights = torch.cat([h @ model.attention(target) for h in interests]).softmax(0)
            for h, a in zip(interests, weights, strict=True):
                # AUGRU: the update gate is scaled, so the step is that share of a GRU's.
                final = final + a * (cell(model.evolution)(h, final) - final)
        score = model.deep(torch.cat((profile, target, final[0], x)))
        scores.append(torch.cat((score, (loss / max(count - 1, 1)).view(1))))
    return torch.stack(scores)


def test_dien_equals_the_plain_reference(dien_batch):
    model, rows = DIEN(**SHAPE, parts=2, seed=0), torch.randn(len(dien_batch.ids[TABLE]), 2)
    expected = plain_dien(model, rows[dien_batch.where[TABLE]], dien_batch.features["dense"])
    scores = model(dien_batch, {TABLE: rows})
    assert scores.shape == (3, 2) and scores[1, 1] == scores[2, 1] == 0  # no second behaviour, no auxiliary loss
    torch.testing.assert_close(scores, expected)


def test_dien_ignores_places_past_the_end(dien_batch):
    model, rows = DIEN(**SHAPE, parts=2, seed=0), torch.randn(len(dien_batch.ids[TABLE]), 2)
    before = model(dien_batch, {TABLE: rows})
    dien_batch.where[TABLE][1, 6:10] = 0  # the second sample's second and third behaviour
    dien_batch.where[TABLE][2, 4:16] = 0  # all that the third one has
    assert torch.equal(model(dien_batch, {TABLE: rows}), before)


def test_dien_loss_by_hand(dien_batch):
    scores = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    assert DIEN(**SHAPE, parts=2, seed=0).loss(dien_batch, scores).item() == pytest.approx(np.log(2) + 2)


def test_dien_gradients(dien_batch):
    check_gradients(DIEN(**SHAPE, parts=2, seed=0), dien_batch, 2)


def rows_of(batch):
    return {table: torch.randn(len(ids), 2) for table, ids in batch.ids.items()}


def test_youtube_equals_the_plain_reference(tube_batch):
    model, rows = YouTubeDNN(**USERS, seed=0), rows_of(tube_batch)
    vectors, items = rows[TABLE][tube_batch.where[TABLE]], rows[ITEM][tube_batch.where[ITEM]]
    scores = model(tube_batch, rows)
    assert scores.shape == (3, 3)
    for row, count in enumerate(COUNTS):
        mean = vectors[row, 1 : 1 + count].mean(0) if count else torch.zeros(2)
        user = model.tower(torch.cat((vectors[row, 0], mean)))
        expected = torch.stack([user @ item for item in (items[row], items[3], items[4])])
        torch.testing.assert_close(scores[row], expected)


def test_youtube_loss_by_hand(tube_batch):
    # exp(0 - log q) is 1 / q: the true items 2, 4, 10; the negatives 2 and 20, of which the first is sample 0's own item
    expected = -np.mean(np.log([2 / 22, 4 / 26, 10 / 32]))
    assert YouTubeDNN(**USERS, seed=0).loss(tube_batch, torch.zeros(3, 3)).item() == pytest.approx(expected, rel=1e-6)


def test_youtube_gradients(tube_batch):
    check_gradients(YouTubeDNN(**USERS, seed=0), tube_batch, 2, loss=True)


def test_flops_count_the_recurrence():
    assert DIEN.forward_flops(**SHAPE, parts=2) == 2 * (4 + 8 + 1) + 3 * (24 * 16 + 24)
