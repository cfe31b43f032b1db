"""How often batches in flight meet in a row, in the pipeline and in closed form, and what the device's cache holds for it."""

from dataclasses import replace

from lib import Run, Workload, protocols, workloads
from lib.tasks.sampling import zipf_probabilities
from notebooks import study
from notebooks.oac.replay import replaced_share
from notebooks.oac.tasks import ESTIMATED, SETUPS

FIELDS = 4


def task(*, batch: int, exponent: float, batches: int, vocabulary: int = 2_000) -> Workload:
    """Clicks whose ids are Zipf-distributed, one of each field."""
    size = {"samples": batch * batches, "batch_size": batch, "fields": FIELDS, "vocabulary": vocabulary}
    return workloads.get("ctr-synthetic", exponent=exponent, days=1, drift=0.0, dim=4, evaluation_samples=100, **size)


def job(workload: Workload, in_flight: int, seed: int, protocol: str = "oac") -> dict:
    """A run of a pipeline in which so many batches are always in flight: the way back is what takes longest."""
    rule = protocols.get(protocol, in_flight=in_flight, readers=in_flight, writers=in_flight, queue=in_flight)
    cluster = SETUPS["setup 1"].cluster(workload, ESTIMATED)
    return study.job(replace(workload, world=seed), rule, cluster, seed)


def expected(workload: Workload, in_flight: int) -> float:
    """The share of a batch's rows that one of the others in flight has too.

    An id of probability p is in a batch of b samples with q = 1 - (1 - p)^b, and in one of the others with 1 - (1 - q)^(F - 1).
    """
    p = zipf_probabilities(workload.vocabulary, workload.exponent)
    q = 1 - (1 - p) ** workload.batch_size
    return float((q * (1 - (1 - q) ** (in_flight - 1))).sum() / q.sum())


def figures(run: Run, **case) -> dict[str, float]:
    """The share of rows that validation replaced, and the cache's size in batches, next to its bound."""
    summary, rule = run.summary, run.provenance["protocol"]
    most = protocols.get(
        "oac", **{k: rule[k] for k in ("in_flight", "readers", "writers", "queue")}
    ).most_cached_updates
    cached = summary["largest_cache"] * summary["applied"] / summary["rows_read"]
    return {"conflicts": replaced_share(run), "cache, in batches": cached, "bound": most}
