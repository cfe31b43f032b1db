"""A task of the shape of UCI's Adult, which Persia's tutorial begins with: it takes a minute and synthetic data alone."""

from lib import LocalCluster, Workload, workloads
from lib.protocols.persia import Hybrid
from notebooks import study
from notebooks.persia import tasks

FIELDS = {
    "workclass": 9,
    "education": 16,
    "marital status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "sex": 2,
    "native country": 42,
}
"""Categorical columns and how many values each has, "?" among them (archive.ics.uci.edu, Adult)."""
NUMBERS = ("age", "fnlwgt", "education num", "capital gain", "capital loss", "hours per week")
TRAINING, TEST = 32_561, 16_281
"""Records in Adult's two files."""
EARN_MORE = 0.24
"""Share of those with more than 50,000 a year, whom one is to tell."""
WORKERS = 4


def task(samples: int, seed: int) -> Workload:
    """So many of the records, in batches that leave one pass 254 steps of all workers; nothing changes from day to day."""
    columns = {"fields": len(FIELDS), "vocabularies": tuple(FIELDS.values()), "dense_features": len(NUMBERS)}
    sizes = {"batch_size": 32, "samples": samples, "evaluation_samples": TEST}
    return workloads.get("criteo-ffnn", **columns, **sizes, base_rate=EARN_MORE, drift=0.0, world=seed)


def job(protocol: str, seed: int, samples: int, *, tau: int = tasks.TAU, threads: bool = False) -> dict:
    """A run on the paper's machines in virtual time, or on this machine in as many real threads; the hybrid reads `tau` ahead."""
    workload = task(samples, seed)
    cluster = LocalCluster(workers=WORKERS, servers=2) if threads else tasks.small(workload, WORKERS)
    rule = Hybrid(tau=tau) if protocol == "hybrid" else tasks.MODES[protocol]
    return study.job(workload, rule, cluster, seed, trace=True)
