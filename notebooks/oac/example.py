"""The paper's running example: parameters a to h, one batch reads {a, c, f}, another {a, b, h} (Fig. 1 and 4)."""

from collections.abc import Mapping, Sequence

import pandas as pd

from lib import PipelineRule, Rule, VirtualCluster
from lib.drivers.plan import Plan
from lib.drivers.record import END, Access, PartLog
from lib.training.schedule import DRIVERS
from notebooks.oac.plays import Play
from notebooks.toys import NAMES, Letters

BATCHES = ("acf", "abh")
AFTER = {"a": 2, "b": 1, "c": 1, "f": 1, "h": 1}
"""How often each parameter was updated in the end; d, e and g never were (Sec. 3.2)."""

ORDERS = {
    "the first writes first": (0, 0, 1, 1, 0, 1, 0, 0, 1, 1),
    "the second writes first": (0, 0, 1, 1, 0, 1, 1, 1, 0, 0),
}
"""Both batches are read before either is computed; whose step comes next, through `Play.STAGES`."""

STAGES = ("read", "validated", "computed", "written")


def record(rule: Rule, seed: int = 0) -> list[PartLog]:
    """What store and device wrote down, with every access to a row."""
    cluster, task = VirtualCluster(), Letters()
    course = {"workload": task, "protocol": rule, "seed": seed, "workers": 1, "servers": 1, "on_nan": "stop"}
    plan, drive = Plan(**course, trace=True, accesses=True), DRIVERS[rule.dense.family]
    return cluster.open(seed, 1).run(lambda world: drive(world, plan)).records


def spans(records: list[PartLog]) -> pd.DataFrame:
    """When each batch was in which stage."""
    found = [(f"batch {batch}", kind, start, end) for r in records for kind, start, end, batch, _ in r.spans or ()]
    return pd.DataFrame(found, columns=["node", "kind", "start", "end"]).sort_values(
        ["node", "start"], ignore_index=True
    )


def steps(records: list[PartLog]) -> pd.DataFrame:
    """What the two batches had after each stage, and what the store has at the end; a' (0) is a's first update, by the batch that
    was computed first."""
    accesses = [access for record in records for access in record.accesses or ()]
    primes: dict[tuple[str, int], int] = {}
    rows = []
    for access in sorted(accesses, key=lambda access: access.kind != "compute"):
        if access.kind == "compute":
            primes |= {(letter, access.stamp): primes.get((letter, of), 0) + 1 for letter, of in _versions(access)}
            updated = [(letter, access.stamp) for letter, _ in _versions(access)]
            stages = {"validated": _versions(access), "computed": updated}
            rows += [(access.batch, stage, _shown(held, primes)) for stage, held in stages.items()]
        elif access.batch == END:
            untouched = [(letter, -1) for letter in NAMES if ord(letter) not in access.ids]
            rows.append(("store", "written", _shown(sorted(_versions(access) + untouched), primes)))
        else:
            stage = "read" if access.kind == "read" else "written"
            rows.append((access.batch, stage, _shown(_versions(access), primes)))
    table = pd.DataFrame(rows, columns=["batch", "stage", "parameters"]).set_index(["batch", "stage"])["parameters"]
    return table.unstack()[list(STAGES)].fillna("")


def updates(records: list[PartLog]) -> dict[str, float]:
    """How often each parameter was updated, by what the store has at the end."""
    rows = next(record.final["rows"]["letter"] for record in records if "rows" in record.final)
    return {chr(number): float(value) for number, value in zip(rows.ids, rows.values[:, 0], strict=True)}


def matches_paper(records: list[PartLog]) -> float:
    """1 if all eight parameters end with the paper's values, else 0."""
    found = updates(records)
    return float(all(found.get(letter, 0) == AFTER.get(letter, 0) for letter in NAMES))


def step_table(rule: PipelineRule, order: Sequence[int]) -> pd.DataFrame:
    """Figure 4, a row for each step: what the batch has, then the store, the cache, MFT, and STE of the batch."""
    play, done, rows = Play(rule, BATCHES, NAMES), [0, 0], []
    for batch in order:
        step = Play.STAGES[done[batch]]
        read, cached = dict(play.found.get(batch, {})), dict(play.cache)
        getattr(play, step)(batch)
        done[batch] += 1
        if step == "compute":  # just before it, what the cache has newer takes the place of what was read
            seen = {row: max(version, cached.get(row, -1)) for row, version in read.items()}
            rows.append((batch, "validate", _primed(seen), _primed(play.store), _primed(cached), *_known(play, batch)))
        stamp = play.stamp.get(batch)
        held = play.found.get(batch, {}) if stamp is None else dict.fromkeys(BATCHES[batch], stamp)
        rows.append((batch, step, _primed(held), _primed(play.store), _primed(play.cache), *_known(play, batch)))
    columns = ["batch", "stage", "the batch has", "the store has", "the cache has", "MFT", "STE"]
    return pd.DataFrame(rows, columns=columns).set_index("batch")


def finished_table(rule: PipelineRule, stamps: Sequence[int]) -> pd.DataFrame:
    """MFT after each of these timestamps is written, in this order (Sec. 3.3)."""
    state, rows = rule.init(), []
    for stamp in stamps:
        state = rule.on_written(state, stamp, stamp)
        rows.append((stamp, state.finished, ", ".join(map(str, sorted(state.early)))))
    return pd.DataFrame(rows, columns=["written", "MFT", "written beyond it"]).set_index("written")


def _known(play: Play, batch: int) -> tuple[int, int]:
    return play.state.finished, play.admission[batch].safe


def _primed(versions: Mapping[str, int]) -> str:
    """a'' (1) has had two updates: those of the batches with it, up to that timestamp; batches are computed by number here."""
    return _shown(
        list(versions.items()),
        {(row, stamp): sum(row in reads for reads in BATCHES[: stamp + 1]) for row, stamp in versions.items()},
    )


def _versions(access: Access) -> list[tuple[str, int]]:
    return [(chr(number), int(version)) for number, version in zip(access.ids, access.versions, strict=True)]


def _shown(held: list[tuple[str, int]], primes: Mapping[tuple[str, int], int]) -> str:
    stamps = (f" ({version})" if version >= 0 else "" for _, version in held)
    return ", ".join(each[0] + "'" * primes.get(each, 0) + stamp for each, stamp in zip(held, stamps, strict=True))
