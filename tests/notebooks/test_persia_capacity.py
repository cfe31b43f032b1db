"""More ids than rows: how they are drawn, and the server that is asked for them."""

import numpy as np
import pytest

from lib.errors import BadOption
from lib.tasks.click_models import TABLE
from lib.tasks.clicks_stream import FIELD_SHIFT
from notebooks.persia.capacity import CAPACITIES, DIM, CoinFlips, serve


def ranks(task, batch):
    """Of each sample's id of each field."""
    return batch.ids[TABLE][batch.where[TABLE]] - (np.arange(task.fields) << FIELD_SHIFT)


@pytest.mark.parametrize("parameters", [1e6, *CAPACITIES.values()])
def test_ids_fill_their_capacity_by_zipfs_law(parameters):
    """The share of ranks below k is that of the law for real numbers: (1 - k^-0.05) / (1 - N^-0.05)."""
    task = CoinFlips(parameters=parameters, batch_size=2000)
    found, each = ranks(task, task.batch(3, 0)), int(parameters / DIM / 26)
    assert found.min() == 0 and found.max() < each == task.each
    assert found.max() > each**0.95
    for k in (2, 10, 100):
        expected = ((k) ** -0.05 - 1) / (each**-0.05 - 1)
        assert np.mean(found < k - 1) == pytest.approx(expected, abs=4 * 0.5 / np.sqrt(found.size))


def test_a_sample_is_the_same_however_the_stream_is_cut():
    task = CoinFlips(batch_size=64)
    whole, part = task.draw(0, 0, 64, 0), task.draw(0, 40, 24, 0)
    assert np.array_equal(ranks(task, whole)[40:], ranks(task, part))
    assert np.array_equal(whole.labels[40:], part.labels)


def test_more_ids_than_a_field_can_number_are_refused():
    with pytest.raises(BadOption, match="parameters"):
        CoinFlips(parameters=1e18)


@pytest.mark.parametrize("parameters", [1e6, 1e14])
def test_a_served_table_holds_as_many_rows_as_it_may(parameters):
    """Of a million parameters all 7,800 ids have room; of a hundred trillion 20,000 stay, and memory with them."""
    task = CoinFlips(parameters=parameters, batch_size=256)
    found = serve({"some": task, "more": task}, 20_000, turns=2, batches=3)
    most = min(20_000, task.each * task.fields)
    assert found["rows"].between(most - 26, most).all()
    assert (found["bytes"] <= 1.1 * 20_000 * (4 * (16 + 1 + 4) + 4 * 1.85 + 0.25)).all()
    new = found.set_index(["capacity", "seed"])["new"]
    assert (new["more"] == 0).all()  # the same batches again
    assert (new["some"] == 0).all() if parameters == 1e6 else new["some"].between(0.5, 1).all()
    assert found["sent"].between(0, 1).all() and (found["rate"] > 0).all()
    assert found[["capacity", "seed"]].to_numpy().tolist() == [["some", 0], ["more", 0], ["some", 1], ["more", 1]]
