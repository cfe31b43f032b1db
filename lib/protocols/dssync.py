"""DS-Sync: Wang et al., "Divide-and-Shuffle Synchronization for Distributed Machine Learning", 2020 (arXiv:2007.03298v1).

The rule in one sentence: after each local step a worker averages its parameters inside a small group only, and the groups
alternate so that every worker's update reaches all the others within two steps.

Paper -> code: Algorithm 1 lines 11-17 -> `groups`; line 19 -> the driver's group mean; Eq. 2 -> the number of factors, below; the
optimiser's state stays local.

Special cases: one group (`size` = workers) with plain SGD from equal starts is the averaging of gradients (BSP).

Where the print cannot be meant: line 16 compares x % GroupSize with Rank, read as Rank % GroupSize; lines 13 and 16 let x be
WorldSize, which no rank is; App. A.1 gives both kinds of iteration the groups of equal remainder, read as Algorithm 1 has them;
Eq. 2's last sum counts one worker too many; the text names lines of another numbering. Parity follows the worker's mixes, from
0 on and over epochs, as t does.

Departures: the paper needs W = N^2 workers. Here a rank is a number whose digits have the bases of a factoring of W, the
fewest that are at most `size`, and as even as possible; round k averages over the ranks that differ in digit k alone, so after as
many rounds as factors everyone has the exact average. With W = N^2 these are the paper's two groupings.

Where a prime factor p of W is above `size` (a prime W under any smaller groups) there is no such schedule, nor any other: the
weights of a round have sizes of groups as denominators, none of which p divides, nor does p then divide the denominator of a
sum of their products; but the exact average has weights of 1 / W. So groups as even as possible are cut from the ring of ranks,
in steps of 1, about `size`, `size`^2, ... from round to round, from another place each time: the average stays what it was, and
the workers' distance from it falls to a third or less in a round of groups of the root of W, for W of 5 or more. A
round of all workers now and then (`whole`) makes any world exact, at its price.

Inside a group, messages may be compressed, which the paper leaves for later ("combine it with other methods and tricks such as
gradient compression", Section 5). What is sent are parameters, of which a step moves less than a rounding takes: replicas that
were set to the mean of rounded ones would stand still. So with `half` a replica is moved by what the mean is above what it has
sent itself: what rounding took from its message stays with it and goes out later, and the average of all is theirs to within one
rounding of the mean. Rows of embedding tables travel in full.

Rows of embedding tables are parameters of the replica and are averaged with it; so are running statistics ("non-learnable model
statistical parameters", Section 3.1), unless another reading is asked for.
"""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lib.errors import BadOption
from lib.options.checked import Count
from lib.protocols.mixing import Buckets, Loop, Mean, Mix
from lib.protocols.replica_rule import Groups, ReplicaRule
from lib.protocols.statistics import StatisticsAveraging


@dataclass(frozen=True, kw_only=True)
class DSSync(ReplicaRule):
    """Divide and shuffle: parameter averages inside alternating groups."""

    name: ClassVar = "ds-sync"
    cite: ClassVar = "Wang et al., DS-Sync, 2020 (arXiv:2007.03298)"
    blocks: ClassVar = True
    drops: ClassVar = False
    max_staleness: ClassVar = 0

    every: Count = 1
    """Local steps between two averages."""
    size: Count | None = None
    """Most workers in a group (N); None: the larger of the two most even factors of the number of workers, or its root,
    rounded up, if it is prime."""
    crew: Count = 1
    """Workers next to each other in rank that are of one group at all times, as those of one machine; `size` then counts crews.
    Not in the paper, whose groups of equal remainder send a ring from each worker of a machine through their one interface."""
    whole: Count | None = None
    """Every so-many-th average is one of all workers; None: none is."""
    place: Literal["before", "beside", "after"] = "after"
    """Whether an average comes before the forward pass, during the computation, or after the update, as in the paper."""
    half: bool = False
    """Whether what is sent is rounded to half precision, as is the mean: steps that vanish in the mean's rounding are lost."""
    buckets: Buckets = 1
    """Collectives in which the parameters travel, one after the other; "tensor": one for each tensor, as in the released code."""
    statistics: StatisticsAveraging = "naive"
    """What an average makes of batch normalisation's running means and variances: as of parameters (the paper's and its code's),
    the exact ones of the group, or nothing: lib/protocols/statistics.py."""

    def __post_init__(self):
        super().__post_init__()
        if self.half and self.statistics == "pooled":
            raise BadOption(
                "ds-sync: statistics='pooled' is a difference of squares, of which half precision leaves little; "
                "half=True needs statistics='naive' or 'none'"
            )

    @property
    def exchange(self) -> Mean:
        return Mean(buckets=self.buckets)

    @property
    def when(self) -> Loop:
        return Loop(every=self.every, place=self.place)

    def groups(self, round: int, workers: int) -> Groups:
        if self.whole:
            if (round + 1) % self.whole == 0:
                return (tuple(range(workers)),)
            round -= round // self.whole  # the others go on where they were
        crews, over = divmod(workers, self.crew)
        if over:
            raise BadOption(f"ds-sync: crew={self.crew}: {workers} workers are no whole number of crews")
        size = self.size_for(crews)
        bases = factors(crews, size)
        found = _ring(round, crews, size) if bases is None else _digit(round, crews, bases)
        crew = range(self.crew)
        return tuple(tuple(self.crew * each + rank for each in group for rank in crew) for group in found)

    def send(self, memory: None, mine: np.ndarray, round: int) -> np.ndarray:
        return mine.astype(np.float16) if self.half else mine

    def merge(self, memory: None, mine: np.ndarray, mix: Mix) -> tuple[None, np.ndarray]:
        if not self.half:
            return None, mix.theirs
        return None, mine + (mix.theirs.astype(np.float32) - mix.sent.astype(np.float32))

    def size_for(self, workers: int) -> int:
        """Most workers in a group of so many workers, or crews."""
        root = math.isqrt(workers - 1) + 1
        even = next(size for size in range(root, workers + 1) if workers % size == 0)
        return self.size or (even if even < workers else root)


@functools.lru_cache(maxsize=4096)
def factors(number: int, most: int) -> tuple[int, ...] | None:
    """The fewest factors up to `most`, as even as possible, the largest first; None where a prime factor is above it."""
    if number == 1:
        return ()
    ways = [
        (first, *rest)
        for first in range(2, min(number, most) + 1)
        if number % first == 0 and (rest := factors(number // first, first)) is not None
    ]
    return min(ways, key=lambda way: (len(way), way), default=None)


def _digit(round: int, workers: int, bases: tuple[int, ...]) -> Groups:
    """Ranks that differ in one digit alone."""
    if not bases:
        return ((0,),)
    digit = round % len(bases)
    step = math.prod(bases[:digit])
    block = step * bases[digit]
    firsts = [(high, low) for high in range(0, workers, block) for low in range(step)]
    return tuple(tuple(range(high + low, high + block, step)) for high, low in firsts)


def _ring(round: int, workers: int, size: int) -> Groups:
    """The ring of ranks, turned by nearly half each round and gone through in steps, is cut into even pieces."""
    if size == 1:
        return tuple((rank,) for rank in range(workers))
    reach = next(rounds for rounds in range(1, workers + 1) if size**rounds >= workers)
    step = -(-workers // size ** (reach - round % reach))
    ring = np.roll(np.arange(workers), -round * ((workers - 1) // 2))
    order = np.concatenate([ring[first::step] for first in range(step)])
    return tuple(tuple(sorted(piece.tolist())) for piece in np.array_split(order, -(-workers // size)))
