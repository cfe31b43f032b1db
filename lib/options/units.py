"""What options are measured in, and quantities with their unit: "10Gbit/s", "25 GB/s", "50us", "2 ms", "512MiB".

A plain number is in the unit's own measure. Where it is beyond sense, plain data and options are asked for the unit that was
meant; an object made in Python takes it. Fields are named here and not by their types: a unit is how a value is read, and what
reads is no part of a run's name (`lib/results/closure.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lib.errors import BadField

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("KMGT", 1)}
_TIMES = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": 1, "min": 60, "h": 3600, "d": 86_400}
_SIZES = {
    f"{p}{word}": x * Decimal(b)
    for p, x in (_PREFIXES | _BINARY).items()
    for word, b in {"B": 1, "bit": "0.125"}.items()
}
_RATES = {f"{word}/s": x for word, x in _SIZES.items()} | {
    f"{p}bps": x * Decimal("0.125") for p, x in _PREFIXES.items()
}
_SPEEDS = {f"{p}{word}": x for p, x in _PREFIXES.items() for word in ("FLOP/s", "FLOPS", "flop/s")}


@dataclass(frozen=True, eq=False)
class Unit:
    """What a plain number counts, how one is written with a unit, and between which numbers a plain one makes sense."""

    name: str
    such: str
    words: dict[str, Any]
    least: float = 0.0
    most: float = float("inf")

    def read(self, value: Any) -> Any:
        """The number that a text stands for, or any text that is in a list; what is no quantity of this unit stays as it is."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.read, value))
        found = (
            re.fullmatch(r"([+-]?[\d_.]+(?:[eE][+-]?\d+)?)\s*([^\d\s].*)", value) if isinstance(value, str) else None
        )
        if not found or found[2] not in self.words:
            return value
        number = float(Decimal(found[1]) * Decimal(self.words[found[2]]))  # 50us are 5e-05, to the last bit
        return int(number) if self is BYTES and number.is_integer() else number


SECONDS = Unit("seconds", "50us or 2 ms", _TIMES)
STEPS, LAGS = (Unit("seconds", "50us or 2 ms", _TIMES, most=most) for most in (3600.0, 10.0))
BYTES = Unit("bytes", "512MiB or 16 GB", _SIZES)
RATE = Unit("bytes a second", "10Gbit/s or 25 GB/s", _RATES, least=1e4)
SPEED = Unit("operations a second", "20 GFLOP/s", _SPEEDS, least=1e3)

_FIELDS = {
    STEPS: "Node.launch Node.reading Device.launch",
    LAGS: "Node.latency Link.latency",
    RATE: "Node.memory Node.core_memory Node.bandwidth Device.memory Device.pcie Link.bandwidth Uplink.bandwidth",
    SPEED: "Node.flops Device.flops",
    BYTES: "Device.capacity",
    SECONDS: "Cluster.patience Failure.at Failure.every Failure.lasts Mishaps.delay Mishaps.retry Empirical.seconds Shared.hold "
    "Shared.period Shared.begin Diurnal.period Diurnal.begin Transient.mean_on Transient.mean_off _Foreground.seconds "
    "Automatic.cost Phase.seconds Schedule.restart Choice.every Choice.restart",
}
_OF = {field: unit for unit, fields in _FIELDS.items() for field in fields.split()}


def of(kind: type, field: str) -> Unit | None:
    """What a class's field is measured in."""
    return next((_OF[name] for base in kind.__mro__ if (name := f"{base.__name__}.{field}") in _OF), None)


def asked(kind: type, data: dict[str, Any]) -> None:
    """An error for a plain number among a class's fields that is beyond sense."""
    for name, value in data.items():
        unit = of(kind, name)
        if unit and isinstance(value, (int, float)) and (0 < value < unit.least or unit.most < value < float("inf")):
            raise BadField(
                kind.owner(), (name,), f" is {value:g} {unit.name}, which is beyond sense: say its unit, as {unit.such}"
            )
