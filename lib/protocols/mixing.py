"""What a replica rule is composed of, as values: what is exchanged and with whom, when, and what one mix is."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lib.options.checked import Checked, Count, Natural
from lib.options.units import Seconds

Buckets = Count | Literal["tensor"]
"""In how many collectives a vector travels, cut between tensors and alike in size; or a collective for each tensor."""


@dataclass(frozen=True, slots=True)
class Mix:
    """One mix, as a replica sees it when it merges."""

    round: int
    """Which of the replica's mixes it is."""
    members: tuple[int, ...]
    """Who came to it, in ascending order; () where replicas meet one copy at a time."""
    sent: np.ndarray
    """What this replica sent."""
    theirs: np.ndarray
    """What came of it: the group's mean, the neighbours' weighted sum, or the other copy's answer."""


@dataclass(frozen=True, kw_only=True)
class Exchange(Checked):
    """What is exchanged, and with whom."""

    together: ClassVar[bool] = True
    """A replica mixes as one: its threads stand still meanwhile. Else each thread mixes by itself while the others go on."""
    copies: ClassVar[bool] = False
    """Replicas are copies of one model."""
    meets_workers: ClassVar[bool] = False
    """Workers call each other."""
    buckets: ClassVar[Buckets] = 1
    overlapped: ClassVar[bool] = False
    """Each bucket goes as soon as backward has it; else one after the other, when there is all of the vector."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Exchange):
    """The mean gradient of a group takes the place of each member's own, before its local step."""

    copies: ClassVar[bool] = True

    buckets: Buckets = 1
    overlapped: bool = True
    """Not where there is one bucket, nor where a run may skip a batch, whose gradient goes as a whole: a bucket on its way
    cannot be taken back."""


@dataclass(frozen=True, kw_only=True)
class Mean(Exchange):
    """Every member of a group gets the mean of what they all send: `groups`, or `form` for the workers that are ready."""

    ahead: bool = True
    """A worker asks for its group when its step begins, so that the answer travels while it computes; False: when it is
    ready to mix, which groups of the workers that happen to be ready need."""
    buckets: Buckets = 1


@dataclass(frozen=True, kw_only=True)
class Neighbours(Exchange):
    """Every worker gets a weighted sum of what it and its neighbours send, and waits for no others: `weights`."""

    meets_workers: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Peer(Exchange):
    """A worker meets another's replica, which answers at once, whatever its worker does: `partner`, `update_centre`."""

    together: ClassVar[bool] = False
    meets_workers: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Centre(Exchange):
    """A worker meets the copy on the sync servers at any time: `update_centre`; or its message is a gradient of the copy."""

    together: ClassVar[bool] = False

    servers: Count = 1
    """Sync servers ("sync0", "sync1", ...), each of which holds an equal part of what workers send."""
    optimizer: Any = None
    """One of `lib.store.optim`, or its name and fields, that steps the copy by what workers send, each of which gets the
    new copy; None: `update_centre` does."""


@dataclass(frozen=True, kw_only=True)
class Loop(Checked):
    """In the training loop: in every so-many-th step that begins so long after the last mix."""

    every: Count = 1
    """Steps from one mix to the next (k)."""
    seconds: Seconds = 0.0
    """Seconds from one mix to the next, at least."""
    place: Literal["before", "beside", "after"] = "after"
    """Before the forward pass, after the update, or during the computation: then the gradient is that of the parameters
    before the mix, and updates those after it."""
    overlap: Natural = 0
    """Steps that a worker goes on for while what it sent travels, before it merges what came of it; it merges earlier where its
    next mix is due, or its data ends. 0: it waits."""

    def is_due(self, step: int, seconds: float) -> bool:
        return step % self.every == 0 and seconds >= self.seconds


@dataclass(frozen=True, kw_only=True)
class Background(Checked):
    """By a shadow task that knows nothing of training, as often as the network lets it, at most once a local step."""

    until: Literal["own", "all"] = "own"
    """When the shadow ends: with its own worker's data, or when all workers have come to the end of theirs."""


def hash_places(count: int, round: int) -> np.ndarray:
    """So many 64-bit hashes of their places and the round (splitmix64's last steps): what all members of a mix agree on, since a
    rule draws no random numbers."""
    with np.errstate(over="ignore"):
        mixed = np.arange(count, dtype=np.uint64) + np.uint64(round) * np.uint64(count)
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        return (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
