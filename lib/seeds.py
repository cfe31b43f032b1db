"""Which seeds are for what: settings are tuned, first looks taken and verdicts reached on seeds that have none in common.

Sealed seeds are drawn by `lockstep run PAPER --sealed` alone, a block of them for each state of a paper's rules.
An environment variable names the block, and `judging` then returns its seeds.
"""

import os
from collections.abc import Iterable

from lib.errors import BadOption

TUNING, PILOT, JUDGING = range(500), range(500, 1000), range(1000, 2000)
"""What ran before they were set apart had seeds below 20; settings and rules were chosen after looking at it: that is tuning."""
SEALED = range(7_000_000, 8_000_000)
BLOCK = 1_000
"""Sealed seeds of one state of a paper's rules."""
DRAWN = "LOCKSTEP_SEALED"
"""The environment variable with the first sealed seed that may be drawn here."""


def judging(count: int) -> range:
    """The first so many seeds that verdicts on a paper's claims are reached on; inside a sealed run, its own."""
    return (sealed_run_seeds() or JUDGING)[:count]


def tuning(count: int) -> range:
    """The first so many seeds that settings may be tried on."""
    return TUNING[:count]


def sealed_run_seeds() -> range:
    """The sealed seeds that may be drawn here: none, outside a sealed run."""
    first = int(os.environ.get(DRAWN, SEALED.stop))
    return SEALED[first - SEALED.start :][:BLOCK]


def check_not_sealed(seed: int) -> int:
    """Refuse a sealed seed for a run outside a sealed run; return every other seed."""
    if seed in SEALED and seed not in sealed_run_seeds():
        sealed = f"{SEALED.start} to {SEALED.stop - 1}"
        raise BadOption(f"seed {seed} is sealed: `lockstep run PAPER --sealed` alone draws {sealed}")
    return seed


def not_judging(seeds: Iterable[int], what: str) -> list[int]:
    """Refuse seeds of verdicts where settings are tried; return the others."""
    seeds = list(seeds)
    if taken := [seed for seed in seeds if seed in JUDGING or seed in SEALED]:
        raise BadOption(
            f"{what}: seed {', '.join(map(str, taken))}: verdicts are reached on {JUDGING.start} to {JUDGING.stop - 1}; "
            f"try settings on {TUNING.start} to {PILOT.stop - 1}"
        )
    return seeds
