"""Slowdowns from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lib.cluster.slowdowns.base import Slowdown
from lib.cluster.slowdowns.batchwise import Empirical, Lognormal, Steady
from lib.cluster.slowdowns.presets import get, presets
from lib.cluster.slowdowns.product import Product
from lib.cluster.slowdowns.shared_machines import Shared
from lib.cluster.slowdowns.timed import Diurnal, Transient
from lib.errors import BadField, nearest
from lib.options.checked import of_name
from lib.options.document import load

SLOWDOWNS: dict[str, type[Slowdown]] = {
    kind.name: kind for kind in (Lognormal, Steady, Empirical, Transient, Diurnal, Shared, Product)
}


def read(data: Any) -> Slowdown:
    """A slowdown from `{name: kind, field: value, ...}`; from a preset's name, or `{name: preset, scale: 0.001}`; from the name
    of a YAML file with either, as `python -m data_prep trace` writes it; from a number: the sigma of a lognormal one."""
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return Lognormal(sigma=data)
    if isinstance(data, str):
        if data.endswith((".yaml", ".yml")):
            document = load(data)
            wrapped = isinstance(document.data, Mapping) and [*document.data] == ["slowdown"]
            return document.read(Slowdown, *(["slowdown"] if wrapped else []))
        if data not in SLOWDOWNS and data not in presets():
            right = f"a number, a slowdown's name or fields, or a YAML file; {nearest(data, [*SLOWDOWNS, *presets()])}"
            raise BadField("slowdown", (), f" is {data!r}; expected {right}")
        data = {"name": data}
    if isinstance(data, Mapping) and data.get("name") not in [*SLOWDOWNS] and data.get("name") in [*presets()]:
        for name in data.keys() - {"name", "scale"}:
            raise BadField("slowdown", (name,), f": a preset has no such field; {nearest(name, ['scale'])}")
        return get(**data)
    return of_name("slowdown", SLOWDOWNS, data)
