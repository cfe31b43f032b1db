"""Which seeds are for what: settings are tuned, first looks taken and verdicts reached on seeds that have none in common."""

from __future__ import annotations

from collections.abc import Iterable

from lib.errors import BadOption

TUNING, PILOT, JUDGING = range(500), range(500, 1000), range(1000, 2000)
"""What ran before they were set apart had seeds below 20; settings and rules were chosen after looking at it: that is tuning."""


def judging(count: int) -> range:
    """The first so many seeds that verdicts on a paper's claims are reached on."""
    return JUDGING[:count]


def tuning(count: int) -> range:
    """The first so many seeds that settings may be tried on."""
    return TUNING[:count]


def not_judging(seeds: Iterable[int], what: str) -> list[int]:
    """The seeds, of something that tries settings: whoever chooses among them must not have seen what is judged."""
    seeds = list(seeds)
    if taken := [seed for seed in seeds if seed in JUDGING]:
        raise BadOption(
            f"{what}: seed {', '.join(map(str, taken))}: verdicts are reached on {JUDGING.start} to {JUDGING.stop - 1}; "
            f"try settings on {TUNING.start} to {PILOT.stop - 1}"
        )
    return seeds
