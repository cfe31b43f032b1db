"""What a pipeline's history shows that no serial run would, named as for databases, with the batches and the row that show it.

The serial run is the one in the order of computation: each batch makes its rows' next versions, numbered by its timestamp, from
those before. Of a row:

- stale read: a batch computed from another version than the newest;
- fractured read: it did so although what it had of another row came from the very batch whose update it missed;
- early eviction: it had not read a version that the device was free to forget by then;
- lost update: what the store has at the end was not made from it, or a batch read an older version after it had been written;
  or another batch's has its number, so that one of them is all that any store can have.

Only accesses are looked at, neither values nor timestamps' rules: so this is no part of any protocol that it judges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lib.drivers.run.record import END, Access

Row = tuple[str, int]
"""Table and id."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One batch and one row that show it."""

    kind: str
    row: Row
    batch: int
    """Who computed, read or left what it should not have."""
    version: int
    """What it had."""
    missed: int
    """The version that it should have been, or come from."""
    maker: int
    """The batch that made this one."""

    def __str__(self) -> str:
        had, missed = f"version {self.version} of {self.row[0]} {self.row[1]}", f"{self.missed} by batch {self.maker}"
        if self.version == self.missed:
            return f"{self.kind}: batch {self.batch} made {had} too, after batch {self.maker}"
        if self.batch == END:
            return f"{self.kind}: at the end the store has {had}, which was not made from {missed}"
        return f"{self.kind}: batch {self.batch} had {had}, and not {missed}"


def anomalies(accesses: Iterable[Access]) -> list[Anomaly]:
    """Every one, of the store's accesses and the device's, each in their order."""
    of: dict[str, list[Access]] = defaultdict(list)
    for access in accesses:
        of["compute" if access.kind == "compute" else "store"].append(access)
    found = [*_on_the_device(of["compute"], _reads(of["store"])), *_in_the_store(of["store"], of["compute"])]
    makers = {access.stamp: access.batch for access in reversed(of["compute"])}
    return [Anomaly(*each, makers.get(each[-1], END)) for each in found]


def told(found: Sequence[Anomaly]) -> dict[str, Any]:
    """For a summary: of each kind how many, and the first."""
    first = {each.kind: str(each) for each in reversed(found)}
    return {
        kind: {"count": count, "first": first[kind]} for kind, count in Counter(each.kind for each in found).items()
    }


_Found = tuple[str, Row, int, int, int]


def _reads(store: list[Access]) -> dict[int, dict[Row, int]]:
    reads: dict[int, dict[Row, int]] = defaultdict(dict)
    for access in store:
        if access.kind == "read":
            reads[access.batch] |= _versions(access)
    return reads


def _on_the_device(computes: list[Access], reads: dict[int, dict[Row, int]]) -> Iterator[_Found]:
    versions: dict[Row, list[int]] = defaultdict(lambda: [-1])
    made: dict[int, dict[Row, int]] = {}
    safe = -1
    for (stamp, batch), parts in groupby(computes, key=lambda access: (access.stamp, access.batch)):
        parts = list(parts)
        used = {row: version for part in parts for row, version in _versions(part).items()}
        for row, version in used.items():
            newest, forgotten = versions[row][-1], versions[row][bisect_right(versions[row], safe) - 1]
            if (read := reads[batch].get(row, version)) < forgotten:
                yield "early eviction", row, batch, read, forgotten
            if version != newest:
                yield "stale read", row, batch, version, newest
                for other in {*used.values()}:
                    if version < other and row in made.get(other, ()):
                        yield "fractured read", row, batch, version, other
            if stamp == newest:
                yield "lost update", row, batch, stamp, stamp
        for row in used:
            versions[row].append(stamp)
        made[stamp], safe = used, max(safe, parts[0].safe)


def _in_the_store(store: list[Access], computes: list[Access]) -> Iterator[_Found]:
    from_which = {(row, access.stamp): version for access in computes for row, version in _versions(access).items()}
    written: dict[Row, int] = {}
    left: dict[Row, int] = {}
    for access in store:
        for row, version in _versions(access).items():
            if access.kind == "write":
                written[row] = max(version, written.get(row, -1))
            elif access.batch == END:
                left[row] = version
            elif version < written.get(row, -1):
                yield "lost update", row, access.batch, version, written[row]
    kept = set()
    for step in left.items():
        while step in from_which and step not in kept:  # a history may say that a version was made from itself
            kept.add(step)
            step = step[0], from_which[step]
    for row, stamp in from_which.keys() - kept if left else ():
        yield "lost update", row, END, left.get(row, -1), stamp


def _versions(access: Access) -> dict[Row, int]:
    versions = zip(access.ids.tolist(), access.versions.tolist(), strict=True)
    return {(access.table, number): version for number, version in versions}
