"""Delimited rows to numbers, in one pass over the bytes: split, convert, hash, and check every field.

A row is kept whole or not at all. What is wrong with a row that is not kept is reported by line, column and reason.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from lib.store.kernels import mix_bits

SKIP, LABEL, NUMBER, DECIMAL, HEX, INTEGER, TEXT = range(7)
"""What a column holds: nothing of use; 0 or 1; a whole number; a number in hundredths; or a category, that is written as
up to eight hex digits, as a whole number of 32 bits, or as any ASCII text (hashed to 32 bits)."""

MISSING, RARE, RESERVED = 0, 1, 2
"""The codes of an empty field and of a value below the frequency threshold; the values' codes follow."""

NO_NUMBER = -(2**31)
"""An empty field of a NUMBER or DECIMAL column."""

COLUMNS, NOT_LABEL, NOT_NUMBER, NOT_HEX, NOT_TEXT = range(1, 6)
_NAMES = {
    COLUMNS: "wrong column count",
    NOT_LABEL: "label is neither 0 nor 1",
    NOT_NUMBER: "not a whole number of 32 bits",
    NOT_HEX: "not at most eight hex digits",
    NOT_TEXT: "not ASCII text",
}

_DIGIT = np.full(256, 255, np.uint8)
for _value in range(16):
    _DIGIT[ord(f"{_value:x}")] = _DIGIT[ord(f"{_value:X}")] = _value


class Layout(NamedTuple):
    """The columns of a file, left to right."""

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    delimiter: str
    header: bytes | None = None
    """The first line, without its end, where the format has one."""

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(name for name, kind in zip(self.names, self.kinds, strict=True) if kind in (NUMBER, DECIMAL))

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(name for name, kind in zip(self.names, self.kinds, strict=True) if kind in (HEX, INTEGER, TEXT))


class Rows(NamedTuple):
    """The good rows of a block, and what was wrong with the others."""

    lines: np.ndarray
    """int32: the line of each row, from 0 at the block's beginning."""
    labels: np.ndarray
    """uint8 (rows,): 0 where there is no label column."""
    numbers: np.ndarray
    """int32, or int64 with a DECIMAL column (rows, numbers)."""
    codes: np.ndarray
    """int64, or uint32 with buckets (rows, categories): MISSING, or RESERVED + the value or its bucket."""
    bad: np.ndarray
    """int64 (bad rows, 5): line, start, end, column, reason."""


def parse(data: np.ndarray, layout: Layout, lines: int, buckets: int = 0) -> Rows:
    """The rows of a block of whole lines, of which there are `lines`. `buckets` is 0 for the values themselves."""
    kinds = np.array(layout.kinds, np.int8)
    labels = np.zeros(lines, np.uint8)
    numbers = np.empty((lines, len(layout.numbers)), np.int64 if DECIMAL in layout.kinds else np.int32)
    codes = np.empty((lines, len(layout.categories)), np.uint32 if buckets else np.int64)
    where, bad = np.empty(lines, np.int32), np.empty((lines, 5), np.int64)
    good, wrong = _parse(data, kinds, ord(layout.delimiter), buckets, labels, numbers, codes, where, bad)
    return Rows(where[:good], labels[:good], numbers[:good], codes[:good], bad[:wrong].copy())


def reason(line: bytes, code: int, layout: Layout) -> str:
    """What is wrong with a line, in words."""
    if layout.header is not None and line.strip() == layout.header:
        return "a second header"
    try:
        line.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return _NAMES[code]


@njit(nogil=True, cache=True)
def code_of(value, field, buckets):
    """The code of a 32-bit value of a field: the same in every file, on every machine."""
    if buckets == 0:
        return np.int64(value) + RESERVED
    spread = mix_bits((np.uint64(field + 1) << np.uint64(32)) | np.uint64(value)) >> np.uint64(32)
    return np.int64((spread * np.uint64(buckets)) >> np.uint64(32)) + RESERVED


@njit(nogil=True, cache=True)
def encode(values, fields, buckets, codes):
    """The codes of whole numbers (rows, columns), of which each column belongs to a field; NO_NUMBER is MISSING."""
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if value == NO_NUMBER:
                codes[row, column] = MISSING
            else:
                codes[row, column] = code_of(np.uint32(value), fields[column], buckets)


def text_value(text: str) -> int:
    """The 32-bit value of a TEXT field (FNV-1a)."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


@njit(nogil=True, cache=True)
def _parse(data, kinds, delimiter, buckets, labels, numbers, codes, where, bad):
    columns, end = len(kinds), len(data)
    good = wrong = line = at = 0
    while at < end:
        start, fault, column = at, 0, 0
        number = category = 0
        while column < columns:
            kind, begin = kinds[column], at
            if kind == HEX:
                value = np.uint64(0)
                digit = _DIGIT[data[at]]
                while digit < 16:
                    value = (value << np.uint64(4)) | np.uint64(digit)
                    at += 1
                    digit = _DIGIT[data[at]]
                if at - begin > 8:
                    fault = NOT_HEX
                codes[good, category] = code_of(value, category, buckets) if at > begin else MISSING
                category += 1
            elif kind in (SKIP, TEXT):
                hashed = np.uint64(2166136261)  # FNV-1a
                while data[at] != delimiter and data[at] != 10 and data[at] != 13:
                    hashed = ((hashed ^ np.uint64(data[at])) * np.uint64(16777619)) & np.uint64(0xFFFFFFFF)
                    if data[at] >= 128 or data[at] < 32:
                        fault = NOT_TEXT
                    at += 1
                if kind == TEXT:
                    codes[good, category] = code_of(hashed, category, buckets) if at > begin else MISSING
                    category += 1
            else:
                negative = data[at] == 45
                at += negative
                if (
                    kind != LABEL
                    and data[at] == 78
                    and data[at + 1] == 85
                    and data[at + 2] == 76
                    and data[at + 3] == 76
                ):
                    at += 4  # NULL, as Taobao's files write an empty field
                digits, whole = at, np.int64(0)
                digit = _DIGIT[data[at]]
                while digit < 10:
                    whole = whole * 10 + np.int64(digit)
                    at += 1
                    digit = _DIGIT[data[at]]
                size = at - digits
                if kind == DECIMAL:
                    whole, at = _hundredths(data, at, whole)
                if negative:
                    whole = -whole
                if kind == LABEL:
                    if size != 1 or negative or whole > 1:
                        fault = NOT_LABEL
                    labels[good] = whole
                elif size > 10 or (negative and size == 0):
                    fault = NOT_NUMBER
                elif kind == INTEGER:
                    if whole > 2**32 - 1 or whole < -(2**31):
                        fault = NOT_NUMBER
                    value = np.uint32(whole & 0xFFFFFFFF)
                    codes[good, category] = code_of(value, category, buckets) if size else MISSING
                    category += 1
                else:
                    if kind == NUMBER and (whole > 2**31 - 1 or whole <= NO_NUMBER):
                        fault = NOT_NUMBER
                    numbers[good, number] = whole if size else NO_NUMBER
                    number += 1
            if fault:
                break
            stop = data[at]
            if column == columns - 1:
                if stop == 13 and data[at + 1] == 10:
                    at += 1
                if data[at] != 10:
                    fault = COLUMNS if data[at] == delimiter else _fault(kind)
            elif stop != delimiter:
                fault = COLUMNS if stop == 10 or stop == 13 else _fault(kind)
            if fault:
                break
            at += 1
            column += 1
        if fault:
            while data[at] != 10:
                at += 1
            bad[wrong, 0], bad[wrong, 1], bad[wrong, 2] = line, start, at
            bad[wrong, 3], bad[wrong, 4] = column, fault
            wrong += 1
            at += 1
        else:
            where[good] = line
            good += 1
        line += 1
    return good, wrong


@njit(nogil=True, cache=True)
def _fault(kind):
    """What a character is a sign of that neither belongs to the field nor ends it."""
    if kind == LABEL:
        return NOT_LABEL
    if kind == HEX:
        return NOT_HEX
    return NOT_TEXT if kind in (SKIP, TEXT) else NOT_NUMBER


@njit(nogil=True, cache=True)
def _hundredths(data, at, whole):
    """The number with its first two decimals; further ones are passed over."""
    whole *= 100
    if data[at] == 46:
        at += 1
        scale = 10
        digit = _DIGIT[data[at]]
        while digit < 10:
            whole += np.int64(digit) * scale
            scale //= 10
            at += 1
            digit = _DIGIT[data[at]]
    return whole, at
