"""Random streams derived from (seed, names): never shared, never global, the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, *names: object) -> int:
    """A 128-bit key of the stream that belongs to `names` under `seed`."""
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *names: object) -> np.random.Generator:
    """The generator of that stream, from its beginning."""
    return np.random.Generator(np.random.Philox(key=key(seed, *names)))


def uniform(seed: int, *names: object, first: int, shape: tuple[int, int]) -> np.ndarray:
    """Rows `first`, `first` + 1, ... of an endless table of uniform numbers: the same ones, however it is cut into blocks."""
    skipped = first * shape[1]
    source = np.random.Philox(key=key(seed, *names))
    source.advance(skipped // _STRIDE)
    generator = np.random.Generator(source)
    generator.random(skipped % _STRIDE)
    return generator.random(shape)


_STRIDE = 4  # numbers that Philox makes of one value of its counter
