"""Taobao display advertising (Alimama, Tianchi 56): eight days of impressions with the users' behaviours before each.

Four files are joined: raw_sample (the impressions), ad_feature, user_profile, and behavior_log, of which each sample gets
the user's latest behaviours that lie strictly before it. So nothing of the sample's own second or later is known to it.
Ads and profiles are held in memory (about 100 MB for the real ones); impressions and behaviours go through the disk,
see `data_prep.history`.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import history, taobao_twin, threshold
from data_prep.dataset import Dataset
from data_prep.history import Joined, Kind
from data_prep.job import Job
from data_prep.parse import DECIMAL, LABEL, MISSING, NO_NUMBER, NUMBER, RARE, RESERVED, TEXT, Layout, encode, text_value
from data_prep.reading import Part, Reading, cut
from data_prep.source import RawFile
from lib.progress import Progress


def _layout(delimited: str, **kinds: int) -> Layout:
    names = delimited.split(",")
    return Layout(tuple(names), tuple(kinds.get(name, NUMBER) for name in names), ",", delimited.encode())


SAMPLES = _layout("user,time_stamp,adgroup_id,pid,nonclk,clk", pid=TEXT, clk=LABEL)
ADS = _layout("adgroup_id,cate_id,campaign_id,customer,brand,price", price=DECIMAL)
PROFILES = _layout(
    "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
    "new_user_class_level"
)
BEHAVIOURS = _layout("user,time_stamp,btag,cate,brand", btag=TEXT)

FIELDS = ("user", "adgroup_id", "pid", *ADS.names[1:5], *PROFILES.names[1:])
CATE, BRAND = FIELDS.index("cate_id"), FIELDS.index("brand")
"""The fields whose codes a behaviour has too: one table serves both."""

KINDS = ("pv", "cart", "fav", "buy")
"""What a user did, numbered from 1."""

MIDNIGHT = 1_494_000_000
"""2017-05-06 00:00 in China, where the days begin."""
_DAY = 86_400


class Taobao(Dataset):
    """Samples of a day in the order of time; a history has the oldest first, and zeros after its end."""

    name: ClassVar = "taobao"
    title: ClassVar = "Taobao display advertising (Alimama), 26,557,961 samples of 8 days, 723,268,134 behaviours"
    where: ClassVar = "https://tianchi.aliyun.com/dataset/56; unpack, and give the folder with the four files"
    licence: ClassVar = "as the page states it, which asks for an account: for research, not for commerce"
    files: ClassVar = tuple(RawFile(f"{n}.csv") for n in ("raw_sample", "ad_feature", "user_profile", "behavior_log"))
    takes: ClassVar = Dataset.takes | {"buckets", "min_count", "count_bits", "train_days", "history"}
    days: ClassVar = 8

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        train_days = job.options.training(cls.days)
        with Progress(None, cls.name, "rows") as progress:
            tables = Tables(job, progress)
            samples, behaviours = (
                {part.key: part for part in cut(job, lambda path, layout=layout: layout, [f"{name}.csv"])}
                for name, layout in (("raw_sample", SAMPLES), ("behavior_log", BEHAVIOURS))
            )
            sketch = _fit(job, tables, samples, train_days, progress) if job.options.min_count else None
            joined = Joined(job, len(FIELDS), cls.days, _DAY, sketch, np.array([CATE, BRAND]))
            records = [
                joined.spill(Kind.SAMPLES, samples, lambda reading: _samples(tables, reading), progress),
                joined.spill(Kind.BEHAVIOURS, behaviours, lambda reading: _behaviours(job, reading), progress),
            ]
            outputs = joined.merge()
        parts = [*tables.records, *(record for each in records for record in each)]
        per_file: dict[str, dict[str, int]] = {}
        for record in parts:
            counts = per_file.setdefault(record["file"], dict.fromkeys(("read", "written", "rejected"), 0))
            counts["read"] += record["read"]
            counts["written"] += record["written"]
            counts["rejected"] += len(record["rejects"])
        rows = sum(output["rows"] for output in outputs)
        if rows != per_file["raw_sample.csv"]["written"]:
            raise AssertionError(f"{per_file['raw_sample.csv']['written']} samples were read, but {rows} joined")
        facts: dict[str, Any] = {
            "kind": "clicks",
            "fields": list(FIELDS),
            "dense": ["price"],
            "history": {"length": job.options.history, "fields": ["cate_id", "brand"], "kinds": ["", *KINDS]},
            "schema": {name: [dtype, list(shape)] for name, (dtype, shape) in joined.schema.items()},
            "codes": {"missing": MISSING, "rare": RARE, "from": RESERVED, "buckets": job.options.buckets},
            "days": cls.days,
            "train_days": train_days,
            "counts_of_files": per_file,
            "without": {
                name: sum(record["lacking"].get(name, 0) for record in records[0]) for name in ("ad", "profile")
            },
        }
        if sketch:
            facts["threshold"] = sketch.describe(job.options.min_count, train_days)
        facts["positives"] = sum(output["positives"] for output in outputs)
        parts[0] = parts[0] | {"outputs": outputs}
        return job.finish(parts, **facts)

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        return taobao_twin.write(raw, rows, seed)


class Tables:
    """The ads and the profiles, found by their number."""

    def __init__(self, job: Job, progress: Progress):
        self.job = job
        self.records: list[dict[str, Any]] = []
        self._ads = self._load("ad_feature.csv", ADS, progress)
        self._profiles = self._load("user_profile.csv", PROFILES, progress)

    def _load(self, name: str, layout: Layout, progress: Progress) -> np.ndarray:
        """Rows in the order of their number; of two with one number the first counts."""
        blocks, record = [np.empty((0, len(layout.numbers)), np.int64 if DECIMAL in layout.kinds else np.int32)], None
        for part in cut(self.job, lambda path: layout, [name]):
            reading = Reading(self.job, part._replace(rows=None), self.job.limit)
            for rows, _, block in reading:
                nameless = rows.numbers[:, 0] == NO_NUMBER
                if nameless.any():
                    reading.refuse(block, rows.lines[nameless], f"no {layout.names[0]}")
                blocks.append(rows.numbers[~nameless])
                progress.advance(len(rows.lines))
            written = reading.read - len(reading.bad)
            record = {"file": name, "read": reading.read, "written": written, "rejects": reading.rejects, "outputs": []}
            self.records.append(record)
        table = np.concatenate(blocks)
        return table[np.unique(table[:, 0], return_index=True)[1]]

    def join(self, rows: np.ndarray, pid: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        """Codes (rows, FIELDS) and prices of samples, of which `rows` has user, time and ad; how many lack what."""
        ads, no_ad = _look_up(self._ads, rows[:, 2])
        profiles, no_profile = _look_up(self._profiles, rows[:, 0])
        values = np.concatenate((rows[:, [0, 2]], pid[:, None], ads[:, :4], profiles), 1)
        codes = np.empty(values.shape, np.uint32)
        encode(values, np.arange(len(FIELDS)), self.job.options.buckets, codes)
        return codes, ads[:, 4], {"ad": int(no_ad.sum()), "profile": int(no_profile.sum())}


def _look_up(table: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of these numbers without the number; NO_NUMBER throughout where there is none."""
    if not len(table):
        return np.full((len(numbers), table.shape[1] - 1), NO_NUMBER), np.ones(len(numbers), bool)
    at = np.minimum(np.searchsorted(table[:, 0], numbers), len(table) - 1)
    lacking = table[at, 0] != numbers
    found = table[at, 1:]
    found[lacking] = NO_NUMBER
    return found, lacking


def _samples(tables: Tables, reading: Reading):
    """A part's samples as history.Samples have them, and what they lack."""
    for rows, at, block in reading:
        numbers = rows.numbers.astype(np.int64)
        day = (numbers[:, 1] - MIDNIGHT) // _DAY
        faults = {
            "no user or ad": (numbers[:, [0, 2]] < 0).any(1),
            "outside the data set's days": (day < 0) | (day >= Taobao.days),
            "nonclk is not 1 - clk": numbers[:, 3] != 1 - rows.labels,
        }
        bad = np.zeros(len(at), bool)
        for why, wrong in faults.items():
            reading.refuse(block, rows.lines[wrong & ~bad], why)
            bad |= wrong
        numbers, at, labels = numbers[~bad], at[~bad], rows.labels[~bad]
        pid = np.where(rows.codes[~bad, 0] == MISSING, NO_NUMBER, (rows.codes[~bad, 0] - RESERVED) >> 1)
        codes, price, without = tables.join(numbers, pid)
        made = history.samples(len(numbers), len(FIELDS))
        made["user"], made["time"], made["row"] = numbers[:, 0], numbers[:, 1] - MIDNIGHT, at
        made["label"], made["price"], made["ids"] = labels, price, codes
        yield made, without


def _behaviours(job: Job, reading: Reading):
    """A part's behaviours as history.BEHAVIOURS has them."""
    known = np.array([text_value(kind) + RESERVED for kind in KINDS])
    order = np.argsort(known)
    for rows, _, block in reading:
        numbers = rows.numbers.astype(np.int64)
        place = np.minimum(np.searchsorted(known[order], rows.codes[:, 0]), len(KINDS) - 1)
        kind = order[place]
        bad = known[kind] != rows.codes[:, 0]
        reading.refuse(block, rows.lines[bad], f"btag is none of {', '.join(KINDS)}")
        nobody = ~bad & ((numbers[:, 0] < 0) | (numbers[:, 1] == NO_NUMBER))
        reading.refuse(block, rows.lines[nobody], "no user or time")
        bad |= nobody
        numbers = numbers[~bad]
        made = np.empty(len(numbers), history.BEHAVIOURS)
        codes = np.empty((len(numbers), 2), np.uint32)
        encode(numbers[:, 2:4], np.array([CATE, BRAND]), job.options.buckets, codes)
        made["user"], made["time"] = numbers[:, 0], np.maximum(numbers[:, 1] - MIDNIGHT, -(2**31))
        made["what"], made["kind"] = codes, kind[~bad] + 1
        yield made, {}


def _fit(job: Job, tables: Tables, parts: dict[str, Part], train_days: int, progress: Progress) -> threshold.Sketch:
    """Counts the samples' values on the training days."""
    sketch = threshold.Sketch(job.options.count_bits)

    def count(part: Part) -> None:
        for made, _ in _samples(tables, Reading(job, part)):
            sketch.add(np.ascontiguousarray(made["ids"][made["time"] < train_days * _DAY]))
            progress.advance(len(made))

    job.wait([job.submit(count, part) for part in parts.values()])
    return sketch
