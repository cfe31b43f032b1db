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
