"""Where rows lie in memory of a fixed size on a device: sets of ways, found and filled by torch's operations alone.

An id belongs to one set by its hash and may lie in any of the set's ways, so a look-up compares all of them at once and never
loops. Every operation's shapes follow from those of its arguments and no value comes back, so the host may run ahead of the
device; on CUDA, `tests/gpu` holds torch to it.
Where a set is full of rows that have to stay, a new id gets no place, though others have room; `unplaced` counts those.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lib.store.inputs import whole
from lib.store.table import kernels

WAYS = 16
_LAST = torch.iinfo(torch.int64).max
_GOLDEN, _FIRST, _SECOND = (word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Ways:
    """Slots for ids. The last slot, `capacity`, takes what belongs nowhere, and is never found."""

    def __init__(self, capacity: int, device: torch.device | str):
        """Room for at least so many ids, a multiple of `WAYS`."""
        self.sets = -(-whole(capacity, "capacity", 1) // WAYS)
        self.capacity = self.sets * WAYS
        self.ids = torch.zeros(self.capacity + 1, dtype=torch.int64, device=device)
        self.used = torch.zeros(self.capacity + 1, dtype=torch.bool, device=device)
        self.unplaced = torch.zeros((), dtype=torch.int64, device=device)
        self.evicted = torch.zeros((), dtype=torch.int64, device=device)
        self._ways = torch.arange(WAYS, device=device)

    def find(self, ids: Tensor) -> Tensor:
        """int64[n], the slot of each id; `capacity` where it has none."""
        slots = self._slots(self._set(ids))
        hit = (self.ids[slots] == ids[:, None]) & self.used[slots]
        return torch.where(hit, slots, self.capacity).amin(dim=1)

    def place(self, ids: Tensor, keys: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
        """A slot for each id, and whether it is new there; `capacity` for one that found no place.

        A new id takes a free way, or that of the row with the least key; `keys` and `stays`, rows that may not go, are by slot.
        """
        slots = self.find(ids)
        inverse, first = _groups(ids)
        wanted = first & (slots == self.capacity)
        taken = self._room(torch.where(wanted, self._set(ids), self.sets), keys, stays)
        goes = wanted & (taken < self.capacity)
        self.evicted += (goes & self.used[taken]).sum()
        self.unplaced += (wanted & (taken == self.capacity)).sum()
        self.ids[taken] = ids
        self.used.index_fill_(0, taken, True)
        self.used[self.capacity].fill_(False)
        # all entries of an id get what its first entry got
        found = torch.full_like(slots, self.capacity).scatter_reduce(
            0, inverse, torch.where(first, taken, _LAST), "amin"
        )
        new = slots == self.capacity
        return torch.where(new, found[inverse], slots), new

    def _room(self, sets: Tensor, keys: Tensor, stays: Tensor) -> Tensor:
        """For each entry another slot of its set, in the order in which they go; the set `sets` asks for none."""
        order = torch.argsort(sets, stable=True)
        ordered = sets[order]
        rank = torch.arange(sets.numel(), device=sets.device) - torch.searchsorted(ordered, ordered)
        slots = self._slots(ordered.clamp(max=self.sets - 1))
        used = self.used[slots]
        rise = torch.where(used, keys[slots], torch.iinfo(torch.int64).min)
        rise, by_key = torch.where(used & stays[slots], _LAST, rise).sort(dim=1, stable=True)
        which = rank.clamp(max=WAYS - 1)[:, None]
        there = (ordered < self.sets) & (rank < WAYS) & (rise.gather(1, which)[:, 0] < _LAST)
        chosen = slots.gather(1, by_key.gather(1, which))[:, 0]
        return torch.empty_like(sets).scatter_(0, order, torch.where(there, chosen, self.capacity))

    def _slots(self, sets: Tensor) -> Tensor:
        return sets[:, None] * WAYS + self._ways

    def _set(self, ids: Tensor) -> Tensor:
        return shifted(mix(ids), 33) % self.sets


def mix(words: Tensor) -> Tensor:
    """`lib.store.table.kernels.mix` of int64 tensors."""
    words = (words ^ shifted(words, 30)) * _FIRST
    words = (words ^ shifted(words, 27)) * _SECOND
    return words ^ shifted(words, 31)


def shifted(words: Tensor, by: int) -> Tensor:
    """Shifted right as unsigned numbers are."""
    return (words >> by) & (2 ** (64 - by) - 1)


def first_rows(ids: Tensor, seed: int, dim: int, scale: float) -> Tensor:
    """`lib.store.table.kernels.first_rows` of int64 tensors, bit for bit."""
    key = int(np.uint64(kernels.mix(np.uint64((seed + _GOLDEN) % 2**64))).view(np.int64))
    steps = torch.arange(1, dim + 1, device=ids.device) * _GOLDEN
    words = mix(mix(ids ^ key)[:, None] + steps)
    centred = shifted(words, 39) * 2 - (2**25 - 1)
    return (scale * (centred.double() * 2.0**-25)).float()


def _groups(ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry the number of its id's group, and whether it is the group's first."""
    ordered, order = torch.sort(ids, stable=True)
    starts = torch.ones_like(ids, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    inverse = torch.empty_like(ids).scatter_(0, order, starts.cumsum(0) - 1)
    return inverse, torch.empty_like(starts).scatter_(0, order, starts)


def summed(ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """At each id's first entry the sum of its gradients, and which entries are first."""
    inverse, first = _groups(ids)
    sums = torch.zeros_like(grads).index_add_(0, inverse, grads)
    return sums[inverse], first
