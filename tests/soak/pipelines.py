"""Random pipelines, held against their own histories and against a serial run, beside what holds of every run.

OAC and the sequential pipeline show no anomaly, and leave every byte as one batch after another does, in the order in which the
device computed them. Without validation a pipeline may show anything; where it shows nothing it must leave these bytes too:
so an anomaly that the history hides is a finding as well.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import strategies as st

from lib import streams
from lib.cluster.base import Site
from lib.cluster.local import WallClockSite
from lib.drivers import pipeline_loop
from lib.drivers.plan import Plan
from lib.protocols.pipeline_rule import PipelineRule
from lib.results.run import Run
from lib.store import table
from notebooks.oac.anomalies import check_run
from notebooks.oac.replay import digest_of, serial
from tests.soak.cases import FLOPS, STEP, WORKLOADS, Case, Draw

if TYPE_CHECKING:
    from tests.soak.checks import Finding


@st.composite
def cases(draw: st.DrawFn, cluster: str = "virtual") -> Case:
    """A pipeline on that cluster."""
    source = Draw(draw, cluster)
    one, below, seconds = source.one, source.below, source.seconds
    workload = one(("ctr-synthetic", "kg-synthetic"))
    case: Case = {"protocol": one(("oac", "oac", "oac", "pipelined", "sequential")), "cluster": cluster}
    case |= {"accesses": True, "workload": workload, **WORKLOADS[workload], "seed": below(0, 1000)}
    case |= {"vocabulary": one((6, 40, 400))} if workload == "ctr-synthetic" else {"entities": one((25, 40, 400))}
    batches, size = below(2, 60), case["batch_size"]
    case["samples"] = size * batches - below(0, 8)
    if cluster == "local":  # large batches with many conflicts, whose calls meet
        batches, size = 1 + batches // 3, one((64, 256))
        case |= {"batch_size": size, "samples": size * batches - below(0, size), "threads": 12}
        case |= {"hesitation": one((1e-4, 1e-3))}
    case["row_optimizer"] = {"name": one(("sgd", "momentum", "adagrad", "adam")), "lr": one((0.1, 0.01))}
    if one((False, False, True)):
        case["lr_milestones"] = [0.4]
    if case["protocol"] != "sequential":
        case |= {option: one((1, 2, 3, 5, 12)) for option in ("in_flight", "readers", "writers", "queue")}
    lasts = batches * STEP["local"]
    if cluster == "virtual":
        case["worker.flops"] = FLOPS * one((1, 30, 1000))
        case |= {f"{node}.bandwidth": one((1e5, 1e6, 1e9)) for node in ("worker", "server")}
        case |= {"server.cores": one((1, 3, 8)), "server.core_memory": one((1e4, 1e5, 1e9))}
        lasts = batches * 3e5 / case["worker.flops"]
    if one((False, True, True)):
        case["detour"] = seconds(one((1.0, 5.0, 20.0)) * lasts / batches)
    if one((False, True)):
        case["slowdown"] = one((0.3, 1.0, 2.0))
    if one((False, True)):
        case["checkpoint_every"] = size * below(1, batches + 2)
    if one((False, False, True)):
        node, kind = one(("worker0", "server0")), one(("dies", "hangs", "slows"))
        failure = {"node": node, "kind": kind, "at": seconds(lasts), "lasts": seconds(lasts)}
        case["failures"] = [failure | ({"factor": 20.0} if kind == "slows" else {})]
    return case


@st.composite
def busy(draw: st.DrawFn, cluster: str) -> Case:
    """One whose calls of the store overlap all the time, on the same rows."""
    workload = {"workload": "kg-synthetic", **WORKLOADS["kg-synthetic"]}
    rows = {**workload, "batch_size": 128, "entities": 600, "triples": 5000}
    most = dict.fromkeys(("in_flight", "readers", "writers", "queue"), 12)
    case = {"protocol": "oac", **most, **rows, "dim": 8, "samples": 128 * 20, "seed": draw(st.integers(0, 2**31 - 1))}
    return case | {"cluster": "local", "threads": 12, "accesses": True, "hesitation": 5e-3, "wide": 4}


def call(case: Case, finding: Finding | None = None) -> str:
    """The case as a call that can be pasted."""
    return f"tests.soak.checks.check({case!r})"


@contextmanager
def stirred(case: Case) -> Iterator[None]:
    """With a `detour` the host store reads and writes in another order than it is asked to. With `hesitation` its calls are on
    threads, however small they are, and stop for that long at most at each lock of a table: so they meet."""
    with ExitStack() as stack:
        if "detour" in case:
            kind = pipeline_loop.HostStore

            def store(site: Site, plan: Plan, rule: PipelineRule) -> pipeline_loop.HostStore:
                return kind(_Detours(site, plan.seed, case["detour"]), plan, rule)

            stack.enter_context(patch.object(pipeline_loop, "HostStore", store))
        if "hesitation" in case:
            stack.enter_context(patch.object(WallClockSite, "_too_small_for_thread", lambda self, work: False))
            locks = SimpleNamespace(Lock=partial(_Hesitant, case["hesitation"]), Condition=threading.Condition)
            stack.enter_context(patch.object(table, "threading", locks))
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(1e-5)
        yield


class _Hesitant:
    """A lock before which every thread stops for a random while."""

    def __init__(self, most: float):
        self._lock, self._most = threading.Lock(), most

    def __enter__(self) -> None:
        time.sleep(self._most * random.random() ** 3)
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class _Detours:
    """A site whose computations begin and end a random while later."""

    def __init__(self, site: Site, seed: int, most: float):
        self._site, self._seed, self._most = site, seed, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    async def compute(self, *args: Any) -> Any:
        await self._detour("there")
        result = await self._site.compute(*args)
        await self._detour("back")
        return result

    async def _detour(self, way: str) -> None:
        """As long as the moment says, so that a run which is resumed goes the same way."""
        stream = streams.stream(self._seed, "detour", way, self._site.now())
        await self._site.sleep(self._most * stream.random() ** 3)


def wrong(plan: Plan, run: Run) -> Iterator[tuple[str, str]]:
    """What a finished pipeline should not have shown or left: its kind, and the first of it."""
    workload, rule = plan.workload, plan.protocol.dense
    anomalies, name = check_run(run)[0]["anomalies"], rule.name
    if rule.validates and run.summary["largest_cache"] > (most := most_rows(plan)):
        yield f"{name}: cache beyond its bound", f"{run.summary['largest_cache']} rows, not at most {most}"
    if anomalies and name != "pipelined":
        yield f"{name}: {', '.join(sorted(anomalies))}", "; ".join(found["first"] for found in anomalies.values())
    if not anomalies:
        left = digest_of(serial(workload, plan.seed, run.summary["order"]))
        if left != run.digest:
            yield f"{name}: no serial run", f"it left {run.digest[:12]}, and one batch after another {left[:12]}"


def calls_at_once(run: Run) -> int:
    """The most calls of one table that were under way at once."""
    return check_run(run)[0]["calls_at_once"]


def most_rows(plan: Plan) -> int:
    """Of a table in the device's cache."""
    sizes = (ids.size for index in range(plan.batches) for ids in plan.batch(index).ids.values())
    return plan.protocol.dense.most_cached_updates * max(sizes)
