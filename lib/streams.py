"""Random streams derived from (seed, names): never shared, never global, the same on every machine."""

import hashlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def key(seed: int, *names: object) -> int:
    """A 128-bit key of the stream that belongs to `names` under `seed`."""
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(seed: int, *names: object) -> np.random.Generator:
    """The generator of that stream, from its beginning."""
    return np.random.Generator(np.random.Philox(_Key(key(seed, *names))))


def uniform(seed: int, *names: object, first: int, shape: tuple[int, int]) -> np.ndarray:
    """Rows `first`, `first` + 1, ... of an endless table of uniform numbers: the same ones, however it is cut into blocks."""
    skipped = first * shape[1]
    source = np.random.Philox(_Key(key(seed, *names)))
    source.advance(skipped // _STRIDE)
    generator = np.random.Generator(source)
    generator.random(skipped % _STRIDE)
    return generator.random(shape)


_STRIDE = 4  # numbers that Philox makes of one value of its counter


class _Key(ISeedSequence):
    """A key instead of a seed. `Philox(key=...)` is the same stream, but asks the machine for entropy first, and drops it."""

    def __init__(self, value: int):
        self._words = np.array([value & (1 << 64) - 1, value >> 64], np.uint64)

    def generate_state(self, n_words: int, dtype: type = np.uint32) -> np.ndarray:
        return self._words
