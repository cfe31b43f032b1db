"""Table 1's features of a replica rule: as its values declare them, and as small runs in virtual time show them."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

import lib
from lib import BadOption, Failure, Node, ReplicaRule, Run, VirtualCluster, Workload, workloads
from lib.protocols.mixing import Background, Centre, Gradients, Peer
from notebooks import study

WORKERS, STEPS, HANG = 4, 60, 20
"""Workers of a run, steps of each, and how many of them one worker hangs in the middle."""

STEP = 1.0
"""Seconds of a step; a message of the dense parameters takes an eighth."""

WORDS = {
    "background": ("BG", "FG"),
    "Hogwild": ("yes", "no"),
    "synchronous": ("sync", "async"),
    "stops others": ("yes", "no"),
    "centralised": ("C", "DC"),
}
"""Feature -> what the paper calls it where it is there, and where not."""


def declared_features(rule: ReplicaRule) -> dict[str, bool]:
    """What its values say.

    background: a shadow mixes, and not the training loop. Hogwild: several threads may train on one replica. synchronous: a mix
    is one of all or of scheduled groups, who wait for each other. stops others: so do their steps. centralised: copies meet on
    sync servers.
    """
    scheduled = type(rule).form_groups is ReplicaRule.form_groups
    return {
        "background": isinstance(rule.when, Background),
        "Hogwild": not isinstance(rule.exchange, Gradients),
        "synchronous": scheduled and not isinstance(rule.exchange, Centre | Peer),
        "stops others": bool(rule.blocks),
        "centralised": isinstance(rule.exchange, Centre),
    }


def table(rules: Sequence[ReplicaRule], seeds: Sequence[int]) -> tuple[pd.DataFrame, list[Run]]:
    """One row for each rule, feature and seed: declared, measured, and whether they agree; and the bytes of a mix."""
    begins = STEPS / 2 + 0.3
    hang = Failure(node="worker1", kind="hangs", at=begins * STEP, lasts=HANG * STEP)
    cases = [(rule, seed) for rule in rules for seed in seeds]
    crews = {case: crew for case in cases if (crew := _with_two_threads(case[0]))}
    jobs = [_job(*case, failures=failures) for failures in ([], [hang]) for case in cases]
    runs = lib.sweep([*jobs, *(_job(crew, seed) for (_, seed), crew in crews.items())])
    several, rows = dict(zip(crews, runs[2 * len(cases) :], strict=True)), []
    for (rule, seed), one, late in zip(cases, runs, runs[len(cases) :], strict=False):
        says, shows = (
            declared_features(rule),
            measured_features(one, several.get((rule, seed)), late.trace, begins * STEP),
        )
        about = {"rule": rule.name, "seed": seed, "bytes of a mix": _bytes(one)}
        rows += [about | {"feature": name, "declared": says[name], "measured": shows[name]} for name in WORDS]
    found = pd.DataFrame(rows)
    return found.assign(agrees=found["declared"] == found["measured"]), runs


def measured_features(alone: Run, several: Run | None, hung: pd.DataFrame, begins: float) -> dict[str, bool]:
    """The same features measured: in a run with one thread a worker, in one with two threads where the rule allows it, and in
    the trace of one in which worker 1 hangs."""
    late = hung[hung["node"] != "worker1"]  # those who wait have come to a stand long before its end
    late = late[late["start"].between(begins + HANG / 2 * STEP, begins + HANG * STEP)]
    return {
        "background": _overlap(alone.trace, "mix", "compute"),
        "Hogwild": several is not None and _overlap(several.trace, "compute", "compute"),
        "synchronous": not (late["kind"] == "mix").any(),
        "stops others": not (late["kind"] == "compute").any(),
        "centralised": bool((alone.trace["kind"] == "absorb").any()),
    }


def words(found: pd.DataFrame) -> pd.DataFrame:
    """One row for each rule in the paper's words; disagreements with the runs are marked."""

    def word(group: pd.DataFrame) -> str:
        present, absent = WORDS[group["feature"].iloc[0]]
        one, other = (present, absent) if group["declared"].iloc[0] else (absent, present)
        return one if group["agrees"].all() else f"{one}; measured {other} (!)"

    each = {key: word(group) for key, group in found.groupby(["rule", "feature"], sort=False)}
    rows = pd.Series(each).unstack()[list(WORDS)].loc[found["rule"].unique()]
    return rows.assign(**{"bytes of a mix": found.groupby("rule")["bytes of a mix"].first()}).rename_axis("rule")


def _task() -> Workload:
    return workloads.get("quadratic", dim=64, batch_size=4, samples=4 * WORKERS * STEPS)


def _job(rule: ReplicaRule, seed: int, **cluster) -> dict:
    task = _task()
    node = Node(flops=task.work().flops / STEP, cores=2, bandwidth=4 * task.dim / (STEP / 8), latency=0)
    crew = VirtualCluster(workers=WORKERS, worker=node, server=node, slowdown=0.1, patience=10 * HANG, **cluster)
    return study.job(task, rule, crew, seed, trace=True)


def _with_two_threads(rule: ReplicaRule) -> ReplicaRule | None:
    try:
        return replace(rule, worker_threads=2)
    except BadOption:  # it says itself that it has one
        return None


def _overlap(trace: pd.DataFrame, one: str, other: str) -> bool:
    """Whether, on any worker, one of these spans lies over another of those."""
    trace = trace[trace["node"].str.startswith("worker")].reset_index()
    ones, others = (trace[trace["kind"] == kind] for kind in (one, other))
    pairs = ones.merge(others, on="node", suffixes=("", " of other"))
    beside = (pairs["start of other"] < pairs["end"] - 1e-9) & (pairs["end of other"] > pairs["start"] + 1e-9)
    return bool((beside & (pairs["index"] != pairs["index of other"])).any())


def _bytes(run: Run) -> str:
    """Bytes of one replica's mix by kind, in copies of the dense parameters."""
    whole = (run.trace["kind"] == "mix").sum() * 4 * _task().dim
    moved = {kind.removeprefix("mix "): count for kind, count in run.summary["bytes_by_kind"].items() if "mix" in kind}
    return ", ".join(f"{kind} {count / whole:.2g}×" for kind, count in moved.items())
