"""What a pipeline's history shows that no serial run would, named as for databases, with the batches and the row that show it.

The serial run is the one in the order of computation: each batch makes its rows' next versions, numbered by its timestamp, from
those before. Of a row:

- stale read: a batch computed from another version than the newest;
- fractured read: it did so although what it had of another row came from the very batch whose update it missed;
- early eviction: it had not read a version that the device was free to forget by then;
- lost update: what the store has at the end was not made from it, or a batch read an older version after it had been written;
  or another batch's has its number, so that one of them is all that any store can have;
- dirty read: the store gave a batch what was written there only afterwards;
- stamp without data, data without stamp: the timestamp is that of a newer version than the values are, or of an older one;
- stamp going back: an update has a smaller timestamp than what it was made from;
- garbage read, garbage write: values that no batch had made, and that were not there at first.

Which version a batch had shows in its values, since each update makes others (Elle's way), and timestamps are compared with
that. Where several updates made the same bytes, as steps do that change nothing, any of them may be meant, and the timestamp
chooses among them: so what is ambiguous raises no alarm, and a timestamp that moved between equal bytes is believed. In a history
without values every timestamp is.

Only accesses are looked at, and no rule's state: so this is no part of any protocol that it judges.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from lib import Run
from lib.drivers.record import END, Access
from notebooks.oac import access_history

Row = tuple[str, int]
"""Table and id."""
TEXTS = {
    "dirty read": "{who} had version {version} of {row} before batch {maker} wrote it",
    "stamp without data": "{who} had the values of version {version} of {row} with the timestamp of {missed}",
    "data without stamp": "{who} had version {version} of {row} by its timestamp, with the values of {missed}",
    "stamp going back": "{who} made version {version} of {row} from {missed}",
    "garbage read": "{who} had values of {row} that no batch made, with timestamp {version}",
    "garbage write": "{who} wrote values of {row} that no batch made, with timestamp {version}",
}
"""What there is to say where a version is not merely too old."""
CYCLES = {
    "stale read": ("is computed later", "lacks the update of {row}"),
    "fractured read": ("has the update of {witness}", "lacks the update of {row}"),
    "early eviction": ("is computed later", "read {row} without the update"),
    "lost update": ("came to {row} later", "lacks the update of {row}"),
    "dirty read": ("has the update of {row}", "read {row} before it was written"),
    "stamp without data": ("has the timestamp of {row}", "lacks the values"),
    "data without stamp": ("has the values of {row}", "lacks the timestamp"),
    "stamp going back": ("made its update of {row} from it", "has a smaller timestamp"),
}
"""What puts a batch after the one that made what it had or missed, and what before."""


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
    witness: Row | None = None
    """fractured read: the other row."""

    def __str__(self) -> str:
        row = _named(self.row)
        had, missed = f"version {self.version} of {row}", f"{self.missed} by {_who(self.maker, 'nobody')}"
        if self.kind in TEXTS:
            named = {"who": _who(self.batch), "row": row, "version": self.version, "missed": missed}
            return f"{self.kind}: {TEXTS[self.kind].format(**named, maker=self.maker)}"
        if self.version == self.missed:
            return f"{self.kind}: batch {self.batch} made {had} too, after batch {self.maker}"
        if self.batch == END:
            return f"{self.kind}: at the end the store has {had}, which was not made from {missed}"
        return f"{self.kind}: batch {self.batch} had {had}, and not {missed}"

    @property
    def cycle(self) -> str:
        """Why no serial run has both batches in it; empty if no other batch is involved."""
        if self.kind not in CYCLES or self.maker == END:
            return ""
        named = {"row": _named(self.row), "witness": self.witness and _named(self.witness)}
        after, before = (why.format(**named) for why in CYCLES[self.kind])
        return f"batch {self.maker} -> {_who(self.batch)} ({after}) -> batch {self.maker} ({_who(self.batch)} {before})"


def anomalies(accesses: Iterable[Access]) -> list[Anomaly]:
    """Every one, of the store's accesses and the device's."""
    wrong: list[_Found] = []
    of: dict[str, list[Access]] = defaultdict(list)
    for access in _by_values(list(accesses), wrong):
        of["compute" if access.kind == "compute" else "store"].append(access)
    computes = sorted(of["compute"], key=lambda access: 0 if access.order is None else int(access.order.max(initial=0)))
    found = [*_on_the_device(computes, _reads(of["store"])), *_in_the_store(of["store"], computes), *wrong]
    makers = {access.stamp: access.batch for access in reversed(computes)}
    return [Anomaly(*each[:5], makers.get(each[4], END), *each[5:]) for each in found]


def check_run(run: Run) -> dict[int, dict[str, Any]]:
    """What `judged` finds in each stage of a run that noted its accesses."""
    return {stage: check(accesses) for stage, accesses in access_history.stages(run.accesses, "run.accesses").items()}


def check(accesses: Sequence[Access]) -> dict[str, Any]:
    """The anomalies of a history, and how many calls of one table were under way at once."""
    return {"anomalies": summary(anomalies(accesses)), "calls_at_once": most_at_once(accesses)}


def summary(found: Sequence[Anomaly]) -> dict[str, Any]:
    """For a summary: of each kind how many, and the first."""
    first = {each.kind: {"first": str(each), "cycle": each.cycle} for each in reversed(found)}
    return {kind: {"count": count, **first[kind]} for kind, count in Counter(each.kind for each in found).items()}


def report(judged: Mapping[str, Any]) -> str:
    """That, to be read."""
    found = [
        f"{each['count']} x {each['first']}\n    {each['cycle']}".rstrip() for each in judged["anomalies"].values()
    ]
    at_once = judged["calls_at_once"]  # 0: the history does not say
    return "\n".join([*(found or ["no anomaly"]), *[f"at most {at_once} calls of a table at once"] * bool(at_once)])


def most_at_once(accesses: Iterable[Access]) -> int:
    """The most calls of one table that were under way at once."""
    ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for access in accesses:
        if access.kind != "compute" and access.began < access.ended:
            ends[access.table] += [(access.began, 1), (access.ended, -1)]
    return max((max(accumulate(step for _, step in sorted(each))) for each in ends.values()), default=0)


_Found = tuple[Any, ...]
"""Kind, row, batch, version, missed, and the witness if there is one."""


def _by_values(accesses: list[Access], wrong: list[_Found]) -> Iterator[Access]:
    """The rows of each access with the versions that their values identify; timestamps that disagree go to `wrong`."""
    made: dict[tuple[Row, int], list[int]] = defaultdict(list)
    for access in accesses:
        if access.made is not None:
            for step in _of_rows(access, access.made).items():
                made[step].append(access.stamp)
    first: dict[Row, tuple[int, int]] = {}
    known = [access for access in accesses if access.values is not None]
    for kind in ("read", "compute"):
        for row, stamp, value, _ in _in_order(access for access in known if access.kind == kind):
            if stamp not in made.get((row, value), ()):
                first.setdefault(row, (value, stamp))
    for access in accesses:
        if access.values is None:
            yield access
            continue
        versions = access.versions.copy()
        for at, (row, value) in enumerate(_of_rows(access, access.values).items()):
            stamp, might = int(versions[at]), list(made.get((row, value), ()))
            at_first = first.get(row, (None, -1))
            if at_first[0] == value:
                might.append(-1)
            if access.kind == "compute" and access.stamp < stamp:
                wrong.append(("stamp going back", row, access.batch, access.stamp, stamp))
            if at_first == (value, stamp):
                versions[at] = -1
            elif not might:
                kind = "garbage write" if access.kind == "write" else "garbage read"
                wrong.append((kind, row, access.batch, stamp, stamp))
            elif stamp not in might:
                versions[at] = version = max(might)
                kind = "stamp without data" if version < stamp else "data without stamp"
                wrong.append((kind, row, access.batch, min(version, stamp), max(version, stamp)))
        yield replace(access, versions=versions)


def _reads(store: list[Access]) -> dict[int, dict[Row, int]]:
    reads: dict[int, dict[Row, int]] = defaultdict(dict)
    for access in store:
        if access.kind == "read":
            reads[access.batch] |= _of_rows(access, access.versions)
    return reads


def _on_the_device(computes: list[Access], reads: dict[int, dict[Row, int]]) -> Iterator[_Found]:
    versions: dict[Row, list[int]] = defaultdict(lambda: [-1])
    made: dict[int, dict[Row, int]] = {}
    safe = -1
    for (stamp, batch), parts in groupby(computes, key=lambda access: (access.stamp, access.batch)):
        parts = list(parts)
        used = {row: version for part in parts for row, version in _of_rows(part, part.versions).items()}
        for row, version in used.items():
            newest, forgotten = versions[row][-1], versions[row][bisect_right(versions[row], safe) - 1]
            if (read := reads[batch].get(row, version)) < forgotten:
                yield "early eviction", row, batch, read, forgotten
            if version != newest:
                yield "stale read", row, batch, version, newest
                for other, witness in {other: row for row, other in used.items()}.items():
                    if version < other and row in made.get(other, ()):
                        yield "fractured read", row, batch, version, other, witness
            if stamp == newest:
                yield "lost update", row, batch, stamp, stamp
        for row in used:
            versions[row].append(stamp)
        made[stamp], safe = used, max(safe, parts[0].safe)


def _in_the_store(store: list[Access], computes: list[Access]) -> Iterator[_Found]:
    from_which = {(row, a.stamp): version for a in computes for row, version in _of_rows(a, a.versions).items()}
    writes = [access for access in store if access.kind == "write"]
    to_come, maybe = (
        {step for access in writes if (access.ended < 0) == cut for step in _of_rows(access, access.versions).items()}
        for cut in (False, True)
    )
    maybe -= to_come  # what only interrupted calls were to write: it is there once it has been read
    written: dict[Row, int] = {}
    left: dict[Row, int] = {}
    for row, version, _, access in _in_order(store):
        if access.batch == END:
            left[row] = version
        elif access.kind == "read" and (row, version) in to_come:
            yield "dirty read", row, access.batch, version, version
        elif access.kind == "read" and version < written.get(row, -1):
            yield "lost update", row, access.batch, version, written[row]
        if (access.kind == "read") == ((row, version) in maybe):
            to_come.discard((row, version))
            written[row] = max(version, written.get(row, -1))
    found: set[tuple[Row, int]] = set()
    for step in left.items():
        while step in from_which and step not in found:  # a history may say that a version was made from itself
            found.add(step)
            step = step[0], from_which[step]
    for row, stamp in from_which if left else ():
        if (row, stamp) not in found | maybe:
            yield "lost update", row, END, left.get(row, -1), stamp


def _in_order(accesses: Iterable[Access]) -> list[tuple[Row, int, int, Access]]:
    """Each row that they came to, with its version and value, in the order of the store or of the device."""
    steps = []
    for number, access in enumerate(accesses):
        order = np.full(access.ids.size, number) if access.order is None else access.order
        values = access.versions if access.values is None else access.values
        columns = (each.tolist() for each in (order, access.ids, access.versions, values))
        steps += [
            (place, number, ((access.table, row), *what, access)) for place, row, *what in zip(*columns, strict=True)
        ]
    return [step for *_, step in sorted(steps, key=lambda step: step[:2])]


def _of_rows(access: Access, numbers: np.ndarray) -> dict[Row, int]:
    return {(access.table, row): number for row, number in zip(access.ids.tolist(), numbers.tolist(), strict=True)}


def _named(row: Row) -> str:
    return f"{row[0]} {row[1]}"


def _who(batch: int, end: str = "the end") -> str:
    return end if batch == END else f"batch {batch}"
