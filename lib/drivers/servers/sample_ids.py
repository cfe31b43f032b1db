"""Sample IDs of eight bytes: the first says which embedding worker holds the sample (Persia, Section 4.1), the next two in
which life of its node, so that a later one does not answer for what is gone, and five count."""

from __future__ import annotations

MOST = 256
"""Embedding workers that a byte can tell apart."""


def first(rank: int, life: int) -> int:
    """The first ID of an embedding worker in that life; each one after it is one more."""
    return rank << 56 | (life & 0xFFFF) << 40


def holder(sample: int) -> int:
    """The rank of the embedding worker that gave it."""
    return sample >> 56
