"""Sample IDs of eight bytes: the first says which embedding worker holds the sample (Persia, Section 4.1), the next two in
which generation of its node, so that a later one does not answer for what is gone, and five count."""

from __future__ import annotations

MOST = 256
"""Embedding workers that a byte can tell apart."""


def first(rank: int, generation: int) -> int:
    """The first ID of an embedding worker in that generation; each one after it is one more."""
    return rank << 56 | (generation & 0xFFFF) << 40


def holder(sample: int) -> int:
    """The rank of the embedding worker that gave it."""
    return sample >> 56
