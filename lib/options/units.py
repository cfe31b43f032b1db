"""Types of options that are measured: a plain number in the unit's own measure, or "10Gbit/s", "25 GB/s", "50us", "512MiB".

Where a plain number is beyond sense, plain data and options must say the unit; an object made in Python takes the number.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from lib.errors import BadField
from lib.options.checked import NotNegative, Positive

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("KMGT", 1)}
_BIT = Decimal("0.125")
_TIMES = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": 1, "min": 60, "h": 3600, "d": 86_400}
_SIZES = {f"{p}{word}": x * one for p, x in (_PREFIXES | _BINARY).items() for word, one in (("B", 1), ("bit", _BIT))}
_RATES = {f"{word}/s": x for word, x in _SIZES.items()} | {f"{p}bps": x * _BIT for p, x in _PREFIXES.items()}
_SPEEDS = {f"{p}{word}": x for p, x in _PREFIXES.items() for word in ("FLOP/s", "FLOPS", "flop/s")}


@dataclass(frozen=True, eq=False)
class Unit:
    """What a plain number counts, how one is written with a unit, and between which numbers a plain one makes sense."""

    name: str
    example: str
    words: dict[str, Any]
    least: float = 0.0
    most: float = float("inf")

    def read(self, text: str) -> float | int | None:
        """The number that a text stands for; None: the text is no quantity of this unit."""
        found = re.fullmatch(r"([+-]?[\d_.]+(?:[eE][+-]?\d+)?)\s*([^\d\s].*)", text)
        if not found or found[2] not in self.words:
            return None
        number = float(Decimal(found[1]) * Decimal(self.words[found[2]]))  # 50us are 5e-05, to the last bit
        return int(number) if self is BYTES and number.is_integer() else number

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._number, handler(source))

    def _number(self, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            if (number := self.read(value)) is None:
                raise PydanticCustomError("quantity", f"a number of {self.name}, such as {self.example}")
            return number
        plain = info.context and info.context["needs_units"] and isinstance(value, (int, float))
        if plain and (0 < value < self.least or self.most < value < float("inf")):
            raise BadField("", (), f" is {value:g} {self.name}, which is beyond sense: say its unit, as {self.example}")
        return value


SECONDS = Unit("seconds", "50us or 2 ms", _TIMES)
STEP_SECONDS = Unit("seconds", "50us or 2 ms", _TIMES, most=3600.0)
BYTES = Unit("bytes", "512MiB or 16 GB", _SIZES)
RATE = Unit("bytes a second", "10Gbit/s or 25 GB/s", _RATES, least=1e4)

Seconds = Annotated[NotNegative, SECONDS]
PositiveSeconds = Annotated[Positive, SECONDS]
StepSeconds = Annotated[NotNegative, STEP_SECONDS]
"""Seconds of a part of a step: not hours."""
Latency = Annotated[NotNegative, Unit("seconds", "50us or 2 ms", _TIMES, most=10.0)]
Bandwidth = Annotated[Positive, RATE]
Speed = Annotated[Positive, Unit("operations a second", "20 GFLOP/s", _SPEEDS, least=1e3)]
