"""What comes from another process is read-only there: no rule, driver or store writes to what a call brings, or asks for more."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

import lib
from lib.cluster.base import nbytes
from lib.cluster.virtual import VirtualHandle
from lib.protocols import ALL
from tests.toys import one_of_each_composition

SUMS = {"pooling": (1, 3), "store.pooling": "server"}
STORES = {
    "plain": {},
    "sums at the servers": SUMS,
    "sums by halves": {**SUMS, "store.rows": "fp16", "store.gradients": "scaled-fp16"},
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
    result = await (context.call(call) if self._site.may_fail else call)
    await self._caller.sleep_until(self._site.send(self._caller, nbytes(result)))
    return read_only(result)


def digest(protocol: str, **options: Any) -> str:
    return lib.train("ctr-synthetic", protocol, "virtual", workers=3, save=False, **SMALL, **options).digest


SHARING = [name for name, rule in ALL.items() if rule.family != "pipeline"]


@pytest.mark.parametrize("protocol", one_of_each_composition(SHARING))
def test_what_calls_bring_may_be_read_only(protocol, monkeypatch, store="plain"):
    whole = digest(protocol, **STORES[store])
    monkeypatch.setattr(VirtualHandle, "_carry", _carried)
    assert digest(protocol, **STORES[store]) == whole


@pytest.mark.parametrize("protocol", ["gba", "hybrid", "dc-asgd", "s-easgd"])
@pytest.mark.parametrize("store", [name for name in STORES if name != "plain"])
def test_so_it_may_in_whatever_form_rows_travel(protocol, store, monkeypatch):
    test_what_calls_bring_may_be_read_only(protocol, monkeypatch, store)
