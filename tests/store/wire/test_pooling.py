"""Pooling on servers: numbers by hand, torch's EmbeddingBag, and that the parts of any split make the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import BadOption
from lib.store.optim import SGD
from lib.store.placement import ByGroup, Uniform
from lib.store.table.table import Table
from lib.store.wire.pooling import Bags, join, pool, spread

KINDS = pytest.mark.parametrize("kind", ["sum", "mean"])


def test_by_hand():
    bags = Bags.of([1, 2, 1, 3], [0, 2, 2])
    rows = np.float32([[1, 10], [2, 20], [3, 30], [5, 50]])
    part = pool(rows, bags)
    assert part.sums.tolist() == [[3, 30], [0, 0], [8, 80]] and part.counts.tolist() == [2, 0, 2]
    assert join([part]).tolist() == [[3, 30], [0, 0], [8, 80]]
    assert join([part], "mean").tolist() == [[1.5, 15], [0, 0], [4, 40]]
    assert part.nbytes == 3 * 2 * 4 + 3 * 4
    grads = np.float32([[2, 4], [9, 9], [6, 8]])
    assert spread(grads, bags).tolist() == [[2, 4], [2, 4], [6, 8], [6, 8]]
    assert spread(grads, bags, [part], "mean").tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]


@settings(derandomize=True, deadline=None, max_examples=80, database=None)
@given(data=st.data(), kind=st.sampled_from(["sum", "mean"]), whole_numbers=st.booleans())
def test_parts_over_any_split_equal_the_pool_over_the_whole(data, kind, whole_numbers):
    entries, count = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 8))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bags = Bags(rng.integers(-9, 9, entries), rng.integers(0, count, entries), count)
    rows = rng.integers(-50, 50, (entries, 3)) if whole_numbers else rng.normal(0, 10, (entries, 3))
    rows = rows.astype(np.float32)
    owner = rng.integers(0, data.draw(st.integers(1, 5)), entries)
    parts = [pool(rows[owner == shard], bags.take(owner == shard)) for shard in range(5)]
    apart, whole = join(parts, kind), join([pool(rows, bags)], kind)
    if whole_numbers:
        assert np.array_equal(apart, whole)
    magnitudes = join([pool(np.abs(rows), bags)], kind)
    assert (np.abs(apart - whole) <= (entries + 5) * 2.0**-23 * magnitudes).all()


@KINDS
@pytest.mark.parametrize("placement", [Uniform(shards=3), ByGroup.in_turn(["t"], 3)], ids=["uniform", "group"])
def test_servers_pool_as_torch_does_forward_and_backward(kind, placement):
    rng = np.random.default_rng(0)
    ids, offsets = rng.integers(0, 40, 200), np.sort(np.append(0, rng.integers(0, 200, 29)))
    servers = [Table(4, SGD(lr=0.5), seed=1, scale=1.0) for _ in range(placement.shards)]
    bags = Bags.of(ids, offsets)
    mine = [bags.take(entries) for entries in placement.split("t", ids)]
    weight = torch.from_numpy(servers[0].peek(np.arange(40))).requires_grad_()
    expected = torch.nn.functional.embedding_bag(torch.from_numpy(ids), weight, torch.from_numpy(offsets), mode=kind)
    parts = [pool(server.pull(share.ids), share) for server, share in zip(servers, mine, strict=True)]
    assert np.allclose(join(parts, kind), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    upstream = rng.normal(0, 1, expected.shape).astype(np.float32)
    expected.backward(torch.from_numpy(upstream))
    for server, share in zip(servers, mine, strict=True):
        server.push(share.ids, spread(upstream, share, parts, kind), 0)
    owner = placement.owner("t", np.arange(40))
    learned = np.stack([servers[owner[number]].peek([number])[0] for number in range(40)])
    assert np.allclose(learned, (weight - 0.5 * weight.grad).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_pooled_is_named():
    with pytest.raises(BadOption, match=r"bags must lie in \[0, 2\), not in \[0, 2\]"):
        Bags(np.array([1, 2]), np.array([0, 2]), 2)
    with pytest.raises(BadOption, match="offsets must start at 0, rise, and end within the ids"):
        Bags.of([1, 2], [0, 3, 1])
    bags = Bags.of([1, 2], [0])
    with pytest.raises(BadOption, match="rows must be one for each of the 2 entries"):
        pool(np.ones((3, 1), np.float32), bags)
    with pytest.raises(BadOption, match="pooling must be 'sum' or 'mean', not 'max'"):
        join([pool(np.ones((2, 1), np.float32), bags)], "max")
