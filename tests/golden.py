"""Small runs of every protocol and of most features, whose results are stored: `python -m tests.golden [--write] [NAME ...]`.

A change that is meant to leave training as it is leaves all of them as they are. One that is not rewrites the table with
`--write`, and its commit says why. Seconds, bytes and the ledger are the same on every machine. The model's bits depend on the
processor, whose kernels add in an order of their own: the table has them for each arithmetic on which it was written, and
`--write` on another machine adds its own.
"""

import argparse
import hashlib
import itertools
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lib
from lib import protocols
from lib.cluster.failures import Failure, Mishaps

TABLE = Path(__file__).parent / "golden.json"
CLICKS = {"samples": 1600, "batch_size": 32, "workers": 4, "servers": 2, "slowdown": 0.6, "evaluation_samples": 500}
TRIPLES = {"samples": 800}
WORKERS_DIE = [Failure(node="worker*", kind="dies", every=0.02, lasts=0.004)]
SERVER_DIES = [Failure(node="server0", kind="dies", at=0.02, lasts=0.01)]
BOUND = {"weight_bound": 1.0}
TABLES = {"model": "dlrm", "fields": 3, "vocabularies": (100, 500, 2000), "pooling": (1, 4, 20)}


def _clicks(protocol: Any, **options: Any) -> dict[str, Any]:
    return {"workload": "ctr-synthetic", "protocol": protocol, "cluster": "virtual", **CLICKS, **options}


def _triples(protocol: str, **options: Any) -> dict[str, Any]:
    return {"workload": "kg-synthetic", "protocol": protocol, "cluster": "virtual", **TRIPLES, **options}


def cases() -> dict[str, dict[str, Any]]:
    """What `lib.train` is called with, by name."""
    pipelines = [name for name in protocols.ALL if protocols.ALL[name].family == "pipeline"]
    every = {name: (_triples if name in pipelines else _clicks)(name) for name in protocols.ALL}
    four = {"cluster": "virtual", "workers": 4}
    switch = lib.Schedule(phases=(lib.Phase(protocol="sync", steps=20), lib.Phase(protocol="gba")))
    return every | {
        "gba+all-reduce": _clicks("gba+all-reduce"),
        "async+ds-sync": _clicks("async+ds-sync"),
        "ds-sync, mix before the step": _clicks("ds-sync", place="before"),
        "ds-sync, mix beside the step": _clicks("ds-sync", place="beside"),
        "ds-sync, half precision": _clicks("ds-sync", half=True, buckets=3),
        "embedding workers": _clicks("hybrid", embedding_workers=2),
        "reader nodes": _clicks("gba", reader_nodes=2),
        "hogwild threads": _clicks("fr-easgd", worker_threads=2),
        "rows: adagrad": _clicks("gba", row_optimizer={"name": "adagrad", "lr": 0.05, "rowwise": True, **BOUND}),
        "rows: momentum": _clicks("async", row_optimizer={"name": "momentum", "lr": 0.05}),
        "rows: sgd": _clicks("async", row_optimizer={"name": "sgd", "lr": 0.05}),
        "row limit at servers": _clicks("gba", store=lib.RowStore(max_rows=600)),
        "row limit in replicas": _clicks("local-sgd", store=lib.RowStore(max_rows=900)),
        "codecs": _clicks("gba", store=lib.RowStore(rows={"name": "scaled-fp16"}, gradients={"name": "int8"})),
        "pooling at servers": _clicks("s-easgd", store=lib.RowStore(pooling="server", placement="by-cost"), **TABLES),
        "workers die: gba": _clicks("gba", failures=WORKERS_DIE, patience=0.002),
        "workers die: sync": _clicks("sync", failures=WORKERS_DIE, patience=0.002),
        "workers die: ds-sync": _clicks("ds-sync", failures=WORKERS_DIE, patience=0.002),
        "workers die: hybrid": _clicks("hybrid", failures=WORKERS_DIE, patience=0.002),
        "a server dies": _clicks("gba", failures=SERVER_DIES, patience=0.002, checkpoint_every=400),
        "checkpoints: gba": _clicks("gba", checkpoint_every=400),
        "checkpoints: ds-sync": _clicks("ds-sync", checkpoint_every=400),
        "checkpoints: oac": _triples("oac", checkpoint_every=200),
        "messages late and lost": _clicks("gba", mishaps=Mishaps(late=0.1, delay=0.01, lost=0.05, retry=0.01)),
        "timing: gba": _clicks("gba", gradients=False),
        "timing: ds-sync": _clicks("ds-sync", gradients=False),
        "accesses": _triples("oac", accesses=True),
        "a switch": _clicks(switch),
        "images": {**four, "workload": "cifar10-wrn", "protocol": "ds-sync", "samples": 128},
        "behaviours": {**four, "workload": "alimama-dien", "protocol": "gba", "samples": 600},
        "threads of this machine": _clicks("sync", cluster="local", workers=2, servers=1, slowdown=0.0),
    }


def outcome(name: str) -> dict[str, Any]:
    """What is stored of a run."""
    run = lib.train(**cases()[name], save=False)
    kept = ("virtual_seconds", "bytes", "applied", "decayed", "dropped", "lost", "auc", "mrr", "accuracy")
    found = {key: run.summary[key] for key in kept if run.summary.get(key) is not None}
    wall = {"auc", "mrr", "accuracy"} if run.summary["clock"] == "wall" else set()
    return {key: value for key, value in found.items() if key not in wall} | {"digest": run.digest[:20]}


def differences(name: str, now: dict[str, Any], table: dict[str, Any]) -> list[str]:
    """What differs in a run's results from the table, in words."""
    bits = table["bits"].get(arithmetic(), {})
    before = table["runs"].get(name, {}) | ({"digest": bits[name]} if name in bits else {})
    found = []
    for key in sorted({*before, *now} - ({"digest"} - {*before})):
        one, other = before.get(key), now.get(key)
        close = isinstance(one, float) and isinstance(other, float) and key != "virtual_seconds"
        if not (close and np.isclose(one, other, rtol=0, atol=1e-12 if name in bits else 0.01)) and one != other:
            found.append(f"{key}: {one} before, {other} now")
    return found


@cache
def arithmetic() -> str:
    """Names what decides the last bits of a sum: equal where matrices of all kinds of shapes give equal products."""
    drawn, threads = np.random.default_rng(0), torch.get_num_threads()
    torch.set_num_threads(1)  # as where a run computes
    digest = hashlib.sha256(f"torch {torch.__version__} numpy {np.__version__}".encode())
    for rows, inner, columns in itertools.product((1, 7, 16, 32, 50, 100, 500), (3, 8, 13, 64, 200), (1, 8, 32, 100)):
        left, right = (
            torch.from_numpy(drawn.normal(size=size).astype("f4")) for size in ((rows, inner), (inner, columns))
        )
        product = left @ right
        for each in (product, torch.sigmoid(product).sum(0), torch.softmax(product, 1), left.T @ product):
            digest.update(each.numpy().tobytes())
    torch.set_num_threads(threads)
    return digest.hexdigest()[:16]


def load() -> dict[str, Any]:
    return json.loads(TABLE.read_text())


def write(found: dict[str, dict[str, Any]]) -> None:
    """Store these results; bits of other machines go where this machine's bits have changed."""
    table, mine = load(), arithmetic()
    before = table["bits"].setdefault(mine, {})
    for name, now in found.items():
        if name in before and before[name] != now["digest"]:
            for bits in table["bits"].values():
                bits.pop(name, None)
        before[name] = now["digest"]
        table["runs"][name] = {key: value for key, value in now.items() if key != "digest"}
    known = cases()
    bits = {each: {name: of[name] for name in known if name in of} for each, of in table["bits"].items()}
    TABLE.write_text(json.dumps({"runs": {name: table["runs"][name] for name in known}, "bits": bits}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these runs only")
    parser.add_argument("--write", action="store_true", help="store what these runs give now")
    options = parser.parse_args()
    found = {name: outcome(name) for name in options.names or cases()}
    if options.write:
        write(found)
    table = load()
    if arithmetic() not in table["bits"]:
        print("the table has no bits of this machine's arithmetic: only seconds, bytes and metrics are compared")
    wrong = {name: words for name, now in found.items() if (words := differences(name, now, table))}
    for name, words in wrong.items():
        print(f"{name}: {'; '.join(words)}")
    print(f"{len(wrong)} of {len(found)} runs differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
