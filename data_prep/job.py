"""One preparation: its options, its threads, what an earlier run of it left, and the manifest at its end."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joblib import cpu_count

from data_prep import lines, partitions, rejects
from data_prep.source import RawFile, standing
from data_prep.threshold import LARGEST
from lib.errors import BadOption, Damaged, LockstepError
from lib.paths import check_writable, write_text_atomic
from lib.progress import Progress
from lib.store import sealed

FORMAT = 2
MANIFEST, REJECTS = "manifest.json", "rejects.jsonl"
REFUSED = "refused"
"""What the plan of a preparation says that ended with an error."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose; those that a data set does not take stay at their defaults."""

    sample: int | None = None
    """Only the first rows of each file."""
    buckets: int = 0
    """Values of a field are hashed into so many buckets; 0 keeps the values themselves."""
    min_count: int = 0
    """Values seen less often on the training days share one code."""
    count_bits: int = 26
    """Two rows of 2^count_bits counters of one byte count the values: 128 MiB."""
    train_days: int | None = None
    """The days, from the first, on which the frequencies are counted; all but the last."""
    history: int = 50
    """Behaviours of a sample that are kept, the latest."""
    order: str = ""
    """Where head, relation and tail stand in a file without a header: hrt, htr, ...; empty is hrt."""
    max_rejects: int = 1000
    """Bad rows that are set aside before the run stops."""
    workers: int = 0
    """Threads; 0 is one for each core."""

    def __post_init__(self):
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise BadOption(f"--{name.replace('_', '-')} is {value}; expected {least:,} to {most:,}")
        if self.order and sorted(self.order) != sorted("hrt"):
            raise BadOption(f"--order is {self.order!r}; expected the letters h, r and t, in the order of the fields")

    def training(self, days: int, held_out: bool = False) -> int:
        """The number of training days, of `days`; all of them where other data is held out."""
        chosen = days - (not held_out) if self.train_days is None else self.train_days
        if chosen > days:
            raise BadOption(f"--train-days is {chosen}; expected 1 to {days}")
        return chosen

    @property
    def threads(self) -> int:
        return self.workers or cpu_count()

    @property
    def block(self) -> int:
        """Bytes that a thread parses at once: smaller where there are many, so that their sum is not."""
        return max(1 << 17, min(lines.BLOCK, (16 << 20) // self.threads))


_RANGES = {
    "sample": (1, 2**63),
    "buckets": (0, 2**31 - 1),
    "min_count": (0, LARGEST),
    "count_bits": (16, 30),
    "train_days": (1, 366),
    "history": (1, 10_000),
    "max_rejects": (0, 10_000_000),
    "workers": (0, 1024),
}


class Stopped(Exception):
    """Another thread failed, or the user pressed Ctrl-C."""


class Job:
    """`with Job(...) as job:` prepares into `job.out`; what a stopped run of the same plan finished is kept."""

    def __init__(
        self,
        dataset: str,
        files: Sequence[tuple[Path, RawFile | None]],
        out: Path,
        options: Options,
        folders: Sequence[Path] = (),
        roles: Mapping[Path, str] | None = None,
    ):
        self.dataset, self.files, self.out, self.options = dataset, files, Path(out), options
        self.folders, self.roles = folders, roles or {}
        """`roles` has the split of each file that was given for one."""
        self.limit = rejects.Limit(options.max_rejects)
        self.manifest: dict[str, Any] | None = None
        """What an earlier run of the same plan has finished already: then there is nothing to do."""
        self._stop = threading.Event()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Job:
        check_writable(self.out, "give a folder that you can write to")
        plan, path = self.plan(), self.out / partitions.WORK / "plan.json"
        before = path if path.exists() else self.out / MANIFEST
        if before.exists():
            earlier = json.loads(before.read_text()) if before == path else sealed.load(before)
            other = [name for name in plan if earlier.get("plan", earlier).get(name) != plan[name]]
            if other and earlier.get(REFUSED):
                partitions.clear(self.out)
            elif other:
                raise BadOption(
                    f"{self.out} holds a preparation with {' and '.join(f'other {name}' for name in other)}: "
                    f"{_difference(earlier.get('plan', earlier), plan, other[0])}; give another folder, or delete that one"
                )
            elif before != path:
                self.manifest = earlier
                return self
        write_text_atomic(path, json.dumps(plan))
        self._pool = ThreadPoolExecutor(self.options.threads, "prepare")
        self._digests = [self._pool.submit(self._digest, path) for path, _ in self.files]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind:
            self._stop.set()
        if self._pool:
            self._pool.shutdown(cancel_futures=kind is not None)
        if kind and issubclass(kind, LockstepError):
            self._give_way()

    def _give_way(self) -> None:
        """What was refused does not stand in the way of another plan; of the same plan, what is finished is kept."""
        if any(self.out.glob("*=*/part-*")):
            write_text_atomic(self.out / partitions.WORK / "plan.json", json.dumps(self.plan() | {REFUSED: True}))
            return
        partitions.clear(self.out)
        if not any(self.out.iterdir()):
            self.out.rmdir()

    def plan(self) -> dict[str, Any]:
        """What must be the same for the work of an earlier run to be of use."""
        options = asdict(self.options)
        del options["workers"], options["max_rejects"]
        files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path, _ in self.files]
        files += [[f"{path.parent.name}/{path.name}", None, path.stat().st_mtime_ns] for path in self.folders]
        plan = {"format": FORMAT, "dataset": self.dataset, "options": options, "files": files}
        return plan | ({"roles": {path.name: role for path, role in self.roles.items()}} if self.roles else {})

    def check(self) -> None:
        """Called between two blocks, so that a run that must end does so soon."""
        if self._stop.is_set():
            raise Stopped

    def parts(
        self, keys: Iterable[str], work: Callable[[str], dict[str, Any]], progress: Progress | None = None
    ) -> list[dict[str, Any]]:
        """The records of all parts, in their order; `work` makes those that no earlier run has finished."""
        records: dict[str, Any] = {}
        for key in keys:
            records[key] = partitions.record(self.out, key)
            if records[key]:
                self.limit.check(records[key]["rejects"])
                if progress:
                    progress.advance(records[key]["read"])
        futures = {key: self._pool.submit(work, key) for key, record in records.items() if record is None}
        self.wait(futures.values())
        return [record or futures[key].result() for key, record in records.items()]

    def wait(self, futures: Iterable[Future]) -> None:
        """Until all are done; the first failure stops the others and is raised."""
        futures = list(futures)
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            failed = [f for f in futures if f.done() and not f.cancelled() and f.exception()]
            if failed or not all(f.done() for f in futures):
                self._stop.set()
                for future in futures:
                    future.cancel()
                wait(futures)
        causes = [f.exception() for f in futures if not f.cancelled() and f.exception()]
        causes.sort(key=lambda cause: isinstance(cause, Stopped))
        if causes:
            raise causes[0]

    def submit(self, work: Callable, *arguments: Any) -> Future:
        return self._pool.submit(work, *arguments)

    def finish(self, records: list[dict[str, Any]], tables: Sequence[Path] = (), **facts: Any) -> dict[str, Any]:
        """Writes the rejects and the manifest, which closes the preparation; `tables` lie next to the partitions."""
        bad = [row for record in records for row in record["rejects"]]
        counts = {name: sum(record[name] for record in records) for name in ("read", "written")}
        counts["rejected"] = len(bad)
        if counts["read"] != counts["written"] + counts["rejected"]:
            raise AssertionError(f"rows are lost: {counts}")
        if not counts["written"]:
            first = (
                f"{bad[0]['file']}, line {bad[0]['line']}: {bad[0]['reason']}: {bad[0]['text'][:60]!r}"
                if bad
                else "none"
            )
            raise Damaged(f"none of the {counts['read']:,} rows is one of {self.dataset}; the first one: {first}")
        rejects.write(self.out / REJECTS, bad)
        self.wait(self._digests)
        sources = [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": future.result()}
            | {"published": standing(raw, future.result())}
            for (path, raw), future in zip(self.files, self._digests, strict=True)
        ]
        manifest = {
            "plan": self.plan(),
            "dataset": self.dataset,
            **facts,
            "counts": counts,
            "rejects": rejects.reasons(bad),
            "sources": sources,
            "tables": {path.name: partitions.facts(path) for path in tables},
            "partitions": [output for record in records for output in record["outputs"]],
        }
        write_text_atomic(self.out / MANIFEST, sealed.text(manifest))
        shutil.rmtree(self.out / partitions.WORK)
        return manifest

    def _digest(self, path: Path) -> str:
        return lines.sha256(path, lambda size: self.check())


def _difference(earlier: Mapping[str, Any], plan: Mapping[str, Any], name: str) -> str:
    """What is not the same in a part of two plans, in a few words."""
    before, now = earlier.get(name), plan.get(name)
    if name == "options":
        return ", ".join(f"{each} {before.get(each)}, now {now[each]}" for each in now if before.get(each) != now[each])
    if name == "files" and (changed := [one[0] for one, other in zip(before, now, strict=False) if one != other]):
        same = {each[0] for each in before} == {each[0] for each in now}
        return f"{changed[0]} {'was another file of that name' if same else f'there, now {now[0][0]}'}"
    return f"{before}, now {now}"
