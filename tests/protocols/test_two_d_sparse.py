"""2D sparse parallelism: copies of tables that are averaged with their state; `test_optim.py` has the scaled AdaGrad."""

from collections import defaultdict

import numpy as np
import pytest

import lib
from lib import VirtualCluster
from lib.protocols import get
from lib.store.optim import SGD, Adagrad, Adam
from tests.protocols.test_equivalences import clicks
from tests.protocols.test_oracles import Forces, force
from tests.toys import finals, records


def copies(workload, workers, every):
    """Each worker's rows in plain Python, and what the dense parameter ends with."""
    optimizer, dense = workload.row_optimizer, 0.0
    rows = [defaultdict(float) for _ in range(workers)]
    sums = [defaultdict(float) for _ in range(workers)]
    for step, first in enumerate(range(0, workload.samples, workers), 1):
        batches = range(first, min(first + workers, workload.samples))
        for rank, batch in enumerate(batches):
            for letter in workload.letters(batch):
                sums[rank][letter] += force(batch) ** 2
                scale = np.sqrt(sums[rank][letter] / (optimizer.copies or 1)) if isinstance(optimizer, Adagrad) else 1
                rows[rank][letter] += optimizer.lr * force(batch) / scale
        dense += np.mean([force(batch) for batch in batches])
        if step % every == 0:
            for letter in {letter for each in rows for letter in each}:
                for part in (rows, sums):
                    mean = np.mean([each[letter] for each in part])
                    for each in part:
                        each[letter] = mean
    return rows, dense


@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), *(Adagrad(lr=1.0, rowwise=True, copies=n) for n in (None, 3))])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_2d_sparse_row_by_row(optimizer, every, sigma):
    workload = Forces(row_optimizer=optimizer)
    cluster = VirtualCluster(workers=3, slowdown=sigma)
    final = finals(records(workload, get("2d-sparse", every=every), cluster))
    expected, dense = copies(workload, 3, every)
    for rank in range(3):
        rows = final[f"worker{rank}/replica rows"]["letter"]
        found = dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True))
        assert found == pytest.approx(expected[rank], rel=1e-4)
        assert final[f"worker{rank}/replica"]["values"].item() == pytest.approx(dense, rel=1e-5)


def test_one_worker_is_sync_and_rows_travel_only_in_their_rounds():
    workload = clicks(24)
    alone = finals(records(workload, get("2d-sparse"), VirtualCluster(workers=1)))
    sync = finals(records(workload, get("sync"), VirtualCluster(workers=1)))
    ours, theirs = (end["feature"].values for end in (alone["worker0/replica rows"], sync["server0/rows"]))
    np.testing.assert_array_equal(ours, theirs)
    rules = [get("2d-sparse", every=every) for every in (1, 4, 9)]
    runs = [lib.train(workload, rule, VirtualCluster(workers=3), save=False) for rule in rules]
    sent = [run.summary["bytes_by_kind"] for run in runs]
    one, four, nine = (kinds.get("mix rows", 0) for kinds in sent)
    assert one > 2.5 * four > 0 == nine and len({kinds["mix gradients"] for kinds in sent}) == 1


def test_the_state_of_rows_has_its_parts_where_they_are_said_to_be():
    """Of Adam's 2 x 3 + 1 numbers the count of steps is no part, and stays each copy's own."""
    assert Adam(lr=0.1).columns_of(("exp_avg_sq",), 3) == [3, 4, 5]
    assert Adam(lr=0.1).columns_of(("exp_avg", "exp_avg_sq", "sum"), 3) == [0, 1, 2, 3, 4, 5]
    assert Adagrad(lr=0.1, rowwise=True).columns_of(("sum",), 3) == [0] and SGD(lr=0.1).columns_of(("sum",), 3) == []
