"""Synthetic twins of the click logs: the planted truth of `data_prep.truth` in the raw files' own formats.

Fields have the real ones' numbers of values, scaled down with the rows; a value's bytes are a bijection of its rank.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import truth
from data_prep.truth import EMPTY, NO_COUNT, Plan, Sample

_CHUNK = 50_000  # rows made at once
_ODD = 2654435761  # multiplication by an odd number is a bijection of 32 bits

_KAGGLE = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10)
_KAGGLE += (5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
_TERABYTE = (227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209, 11938, 155)
_TERABYTE += (4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36)
_AVAZU = (7, 7, 4737, 7745, 26, 8552, 559, 36, 2686408, 6729486, 8251, 5, 4, 2626, 8, 9, 435, 4, 68, 172, 60)

# The shares of empty fields in the first rows of the Kaggle file.
_NO_COUNTS = (0.45, 0.0, 0.2, 0.2, 0.05, 0.25, 0.05, 0.0, 0.05, 0.45, 0.05, 0.77, 0.2)
_NO_VALUES = (
    0,
    0,
    0.04,
    0.04,
    0,
    0.13,
    0,
    0,
    0,
    0,
    0,
    0.04,
    0,
    0,
    0,
    0.04,
    0,
    0,
    0.45,
    0.45,
    0.04,
    0.82,
    0,
    0.04,
    0.45,
)
_NO_VALUES += (0.45,)


def criteo_kaggle(rows: int) -> Plan:
    values = truth.scaled(_KAGGLE, rows, 45_840_617)
    return Plan(values=values, empty=_NO_VALUES, counts=_NO_COUNTS, rate=0.256, world=1)


def criteo_1tb(rows: int) -> Plan:
    values = truth.scaled(_TERABYTE, rows, 4_373_472_329)
    return Plan(values=values, empty=_NO_VALUES, counts=_NO_COUNTS, rate=0.033, world=2)


def avazu(rows: int) -> Plan:
    return Plan(values=truth.scaled(_AVAZU, rows, 40_428_967), empty=(0.0,) * len(_AVAZU), rate=0.17, world=3)


def write_criteo(raw: Path, names: list[str], plan: Plan, rows: int, seed: int) -> dict[str, Any]:
    """One file of seven days, or one file for each day."""
    days = 7 if len(names) == 1 else len(names)
    texts = [_hex(field, size) for field, size in enumerate(plan.values)]

    def line(sample: Sample, day: int) -> Iterator[bytes]:
        counts = np.where(sample.counts == NO_COUNT, b"", sample.counts.astype("S11"))
        columns = [sample.labels.astype("S1"), *counts.T]
        columns += [text[ranks] for text, ranks in zip(texts, sample.ranks.T, strict=True)]
        return map(b"\t".join, zip(*(column.tolist() for column in columns), strict=True))

    return _write(raw, names, plan, _shares(rows, days), seed, line)


def write_avazu(raw: Path, rows: int, seed: int) -> dict[str, Any]:
    """One file in the order of time."""
    from data_prep.avazu import FIRST, LAYOUT
    from data_prep.parse import HEX

    plan = avazu(rows)
    kinds = [kind for name, kind in zip(LAYOUT.names, LAYOUT.kinds, strict=True) if name in LAYOUT.categories]
    texts = [
        _hex(field, size) if kind == HEX else np.array([b"", *(b"%d" % (value - 1) for value in range(size))])
        for field, (size, kind) in enumerate(zip(plan.values, kinds, strict=True))
    ]

    def line(sample: Sample, day: int) -> Iterator[bytes]:
        rows = len(sample.labels)
        hours = (FIRST + day) * 100 + np.arange(rows) * 24 // max(rows, 1)
        identity = np.arange(rows, dtype=np.uint64) * np.uint64(_ODD) + np.uint64(10**19 + day)
        columns = [identity.astype("S20"), sample.labels.astype("S1"), hours.astype("S8")]
        columns += [text[ranks] for text, ranks in zip(texts, sample.ranks.T, strict=True)]
        return map(b",".join, zip(*(column.tolist() for column in columns), strict=True))

    return _write(raw, ["train.csv"], plan, _shares(rows, 10), seed, line, LAYOUT.header)


def _write(
    raw: Path,
    names: list[str],
    plan: Plan,
    rows: list[int],
    seed: int,
    line: Callable[[Sample, int], Iterator[bytes]],
    header: bytes | None = None,
) -> dict[str, Any]:
    """Days in order, in one file or in one each; then the truth."""
    raw.mkdir(parents=True, exist_ok=True)
    labels, logits, days = [], [], []
    for day, count in enumerate(rows):
        name = names[day if len(names) > 1 else 0]
        first = day == 0 or len(names) > 1
        mode = "wb" if first else "ab"
        with gzip.GzipFile(raw / name, mode, mtime=0) if name.endswith(".gz") else (raw / name).open(mode) as file:
            if header and first:
                file.write(header + b"\n")
            for start in range(0, count, _CHUNK):
                sample = plan.draw(min(_CHUNK, count - start), seed=seed * 1000 + start // _CHUNK, day=day)
                file.write(b"".join(text + b"\n" for text in line(sample, day)))
                labels.append(sample.labels)
                logits.append(sample.logits)
                days.append(np.full(len(sample.labels), day))
    facts = truth.ceiling(np.concatenate(labels), np.concatenate(logits), np.concatenate(days))
    return truth.save(raw, {"seed": seed, **facts}, np.concatenate(logits))


def _shares(rows: int, days: int) -> list[int]:
    """Row r belongs to day r * days // rows, as nearly equal as can be."""
    return np.bincount(np.arange(rows) * days // rows, minlength=days).tolist()


def _hex(field: int, size: int) -> np.ndarray:
    """The text of each rank."""
    values = (np.arange(size, dtype=np.uint64) * np.uint64(_ODD) + np.uint64(field * 0x1234567)) & np.uint64(0xFFFFFFFF)
    texts = np.array([b"", *(b"%08x" % value for value in values.tolist())])
    assert EMPTY == 0
    return texts
