"""The device's table and cache on CUDA against the same on the CPU. Skipped where torch sees no CUDA device."""

from __future__ import annotations

import pytest
import torch

from lib.store.device import ways
from lib.store.device.device_cache import DeviceCache
from lib.store.device.table import DeviceTable
from lib.store.optim import Adagrad

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def test_first_rows_have_the_same_bits():
    ids = torch.randint(-(2**62), 2**62, (1000,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ways.first_rows(ids.cuda(), 3, 16, 0.1).cpu(), ways.first_rows(ids, 3, 16, 0.1))


def test_a_table_there_is_the_one_here():
    """Small and full, so that rows go; gradients are whole numbers, whose sums have one value in any order."""
    here, there = (
        DeviceTable(4, Adagrad(lr=0.1, initial=1.0), seed=1, capacity=256, device=device) for device in ("cpu", "cuda")
    )
    random = torch.Generator().manual_seed(0)
    for stamp in range(30):
        ids = torch.randint(-400, 400, (200,), generator=random)
        grads = torch.randint(-4, 5, (200, 4), generator=random).float()
        torch.testing.assert_close(there.pull(ids.cuda()).cpu(), here.pull(ids), rtol=1e-5, atol=1e-6)
        here.push(ids, grads, stamp)
        there.push(ids.cuda(), grads.cuda(), stamp)
    every = torch.arange(-400, 400)
    assert torch.equal(there.stamps(every.cuda()).cpu(), here.stamps(every))
    assert (len(there), int(there.lost), int(there.evicted)) == (len(here), int(here.lost), int(here.evicted))


def test_no_call_waits_for_the_device():
    """torch raises where one would."""
    table = DeviceTable(4, Adagrad(lr=0.1), seed=1, capacity=1024, device="cuda")
    cache = DeviceCache(8, 1024, "cuda")
    ids, grads = torch.arange(100, device="cuda") % 70, torch.ones(100, 4, device="cuda")
    rows, read = torch.ones(70, 8, device="cuda"), torch.full((70,), -1, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for stamp in range(3):
            table.pull(ids)
            table.push(ids, grads, stamp)
            fresh, _ = cache.validate(ids[:70], rows, read)
            cache.put(ids[:70], fresh, stamp)
            cache.evict(stamp - 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    cache.check()
