"""Synthetic twins of the click logs: the clicks of `lib.tasks.clicks_stream`, in the raw files' own formats.

Fields have the real ones' numbers of values, scaled down with the rows. A value's bytes are a bijection of its rank; where the
real field is often empty, the commonest value is written as an empty field. A numeric input becomes a count, monotonely; its
smallest values are left empty, as often as in the real file. The labels are drawn from the logits, so no model ranks better
than the logits do, and their AUC is the ceiling.
"""

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_prep import truth
from lib.tasks.clicks_stream import FIELD_SHIFT, Clicks, ClickStream

_CHUNK = 50_000  # rows made at once
_ODD = 2654435761  # multiplication by an odd number is a bijection of 32 bits

_KAGGLE = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10)
_KAGGLE += (5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
_TERABYTE = (227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209, 11938, 155)
_TERABYTE += (4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36)
_AVAZU = (7, 7, 4737, 7745, 26, 8552, 559, 36, 2686408, 6729486, 8251, 5, 4, 2626, 8, 9, 435, 4, 68, 172, 60)

_EMPTY_COUNTS = (0.45, 0.0, 0.2, 0.2, 0.05, 0.25, 0.05, 0.0, 0.05, 0.45, 0.05, 0.77, 0.2)
"""Share of each count that is empty in the same rows."""
_EMPTY_FIELDS = frozenset({2, 3, 5, 11, 15, 18, 19, 20, 21, 23, 24, 25})
"""Fields that are empty in some of the first rows of the Kaggle file."""


def criteo_kaggle(rows: int) -> ClickStream:
    return _stream(_KAGGLE, rows / 45_840_617, rate=0.256, world=1, counts=len(_EMPTY_COUNTS))


def criteo_1tb(rows: int) -> ClickStream:
    return _stream(_TERABYTE, rows / 4_373_472_329, rate=0.033, world=2, counts=len(_EMPTY_COUNTS))


def avazu(rows: int) -> ClickStream:
    return _stream(_AVAZU, rows / 40_428_967, rate=0.17, world=3)


def _stream(values: Sequence[int], share: float, *, rate: float, world: int, counts: int = 0) -> ClickStream:
    """Clicks of fields with so many values. For a share of the rows small fields stay, and large ones shrink with the rows."""
    return ClickStream(
        fields=len(values),
        vocabulary=1,
        vocabularies=tuple(max(min(size, 50), int(size * min(1.0, share))) for size in values),
        exponent=1.1,
        dense_features=counts,
        rank=4,
        first_order=0.9,
        cross=0.3,
        linear=0.5,
        drift=0.03,
        base_rate=rate,
        world=world,
    )


def write_criteo(raw: Path, names: list[str], clicks: ClickStream, rows: int, seed: int) -> dict[str, Any]:
    """One file of seven days, or one file for each day."""
    days = 7 if len(names) == 1 else len(names)
    texts = [_hex(field, size) for field, size in enumerate(clicks.sizes)]
    for field in _EMPTY_FIELDS:
        texts[field][0] = b""

    def columns(sample: Clicks, day: int) -> list[np.ndarray]:
        return [sample.labels.astype(np.uint8).astype("S1"), *_counts(sample.dense), *_values(sample, texts)]

    return _write(raw, names, clicks, _days(rows, days), seed, columns, b"\t")


def write_avazu(raw: Path, rows: int, seed: int) -> dict[str, Any]:
    """One file in the order of time."""
    from data_prep.avazu import FIRST, LAYOUT
    from data_prep.parse import HEX

    clicks = avazu(rows)
    kinds = [kind for name, kind in zip(LAYOUT.names, LAYOUT.kinds, strict=True) if name in LAYOUT.categories]
    texts = [
        _hex(field, size) if kind == HEX else np.arange(size).astype("S")
        for field, (size, kind) in enumerate(zip(clicks.sizes, kinds, strict=True))
    ]

    def columns(sample: Clicks, day: int) -> list[np.ndarray]:
        rows = len(sample.labels)
        hours = (FIRST + day) * 100 + np.arange(rows) * 24 // max(rows, 1)
        identity = np.arange(rows, dtype=np.uint64) * np.uint64(_ODD) + np.uint64(10**19 + day)
        labels = sample.labels.astype(np.uint8).astype("S1")
        return [identity.astype("S20"), labels, hours.astype("S8"), *_values(sample, texts)]

    return _write(raw, ["train.csv"], clicks, _days(rows, 10), seed, columns, b",", LAYOUT.header)


def _write(
    raw: Path,
    names: list[str],
    clicks: ClickStream,
    rows: list[int],
    seed: int,
    columns: Callable[[Clicks, int], list[np.ndarray]],
    delimiter: bytes,
    header: bytes | None = None,
) -> dict[str, Any]:
    """Days in order, in one file or in one each; then the truth."""
    raw.mkdir(parents=True, exist_ok=True)
    samples: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    place = 0
    for day, count in enumerate(rows):
        name = names[day if len(names) > 1 else 0]
        first = day == 0 or len(names) > 1
        mode = "wb" if first else "ab"
        with gzip.GzipFile(raw / name, mode, mtime=0) if name.endswith(".gz") else (raw / name).open(mode) as file:
            if header and first:
                file.write(header + b"\n")
            for start in range(0, count, _CHUNK):
                sample = clicks.draw(min(_CHUNK, count - start), seed=seed, day=day, first=place + start)
                lines = zip(*(column.tolist() for column in columns(sample, day)), strict=True)
                file.write(b"".join(delimiter.join(line) + b"\n" for line in lines))
                samples.append((sample.labels, sample.logits, np.full(len(sample.labels), day)))
        place += count
    labels, logits, days = map(np.concatenate, zip(*samples, strict=True))
    return truth.save(raw, {"seed": seed, **truth.ceiling(labels, logits, days)}, logits)


def _days(rows: int, days: int) -> list[int]:
    """Rows of each day: row r belongs to day r * days // rows, as nearly equal as can be."""
    return np.bincount(np.arange(rows) * days // rows, minlength=days).tolist()


def _values(sample: Clicks, texts: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Each field's column."""
    ranks = sample.ids & ((1 << FIELD_SHIFT) - 1)
    return (text[rank] for text, rank in zip(texts, ranks.T, strict=True))


def _counts(dense: np.ndarray) -> Iterator[np.ndarray]:
    """Each count's column; inputs are uniform with mean 0 and variance 1."""
    for values, empty in zip(dense.T, _EMPTY_COUNTS, strict=True):
        counts = np.expm1(2.5 + 1.3 * values).astype(np.int64).astype("S11")
        yield np.where(values < np.sqrt(3) * (2 * empty - 1), b"", counts)


def _hex(field: int, size: int) -> np.ndarray:
    """The text of each rank."""
    values = (np.arange(size, dtype=np.uint64) * np.uint64(_ODD) + np.uint64(field * 0x1234567)) & np.uint64(0xFFFFFFFF)
    return np.array([b"%08x" % value for value in values.tolist()])
