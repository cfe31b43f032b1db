"""What comes from another process is read-only there: no rule, driver or store writes to what a call brings, or asks for more."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import lib
from lib.cluster.base import nbytes
from lib.cluster.virtual import VirtualHandle
from lib.protocols import ALL

STORES = {
    "plain": {},
    "sums at the servers": {"pooling": (1, 3), "store.pooling": "server"},
    "sums by halves": {
        "pooling": (1, 3),
        "store.pooling": "server",
        "store.rows": "fp16",
        "store.gradients": "scaled-fp16",
    },
    "halves": {"store.rows": "scaled-fp16", "store.gradients": "fp16"},
    "distinct ids": {"store.ids": "distinct"},
}
SMALL = {"fields": 2, "vocabulary": 30, "dim": 2, "hidden": (4,), "dense_features": 1, "batch_size": 8, "samples": 160}


def read_only(message: Any) -> Any:
    """The same with all arrays as views that cannot be written to."""
    if isinstance(message, np.ndarray):
        view = message.view()
        view.flags.writeable = False
        return view
    if type(message) in (list, tuple):
        return type(message)(map(read_only, message))
    if type(message) is dict:
        return {key: read_only(value) for key, value in message.items()}
    if is_dataclass(message):
        values = {each.name: getattr(message, each.name) for each in fields(message) if each.init}
        held = {name: value for name, value in values.items() if nbytes(value)}
        return replace(message, **{name: read_only(value) for name, value in held.items()}) if held else message
    return message


async def _carried(self, arrival, context, function, args):
    await self._caller.sleep_until(arrival)
    call = function(*map(read_only, args))
    result = await (context.call(call) if self._site.fails else call)
    await self._caller.sleep_until(self._site.send(self._caller, nbytes(result)))
    return read_only(result)


def digest(protocol: str, **options: Any) -> str:
    return lib.train("ctr-synthetic", protocol, "virtual", workers=3, save=False, **SMALL, **options).digest


PAIRS = [(name, "plain") for name, rule in ALL.items() if rule.family != "pipeline"]
PAIRS += [(name, store) for name in ("gba", "hybrid", "dc-asgd", "s-easgd") for store in STORES if store != "plain"]


@pytest.mark.parametrize("protocol, store", PAIRS)
def test_what_calls_bring_may_be_read_only(protocol, store, monkeypatch):
    options = STORES[store]
    whole = digest(protocol, **options)
    monkeypatch.setattr(VirtualHandle, "_carry", _carried)
    assert digest(protocol, **options) == whole
