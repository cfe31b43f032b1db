"""The sketch never takes a frequent value for a rare one, and says how often it errs the other way."""

from collections import Counter

import numpy as np
import pytest

from data_prep import manifest
from data_prep.avazu import Avazu
from data_prep.job import Options
from data_prep.parse import MISSING, RARE
from data_prep.threshold import LARGEST, Sketch


@pytest.mark.parametrize("bits", [8, 20])
def test_frequent_values_are_always_kept(bits):
    random = np.random.default_rng(0)
    codes = random.zipf(1.3, (4000, 2)) % 3000 + 2
    sketch = Sketch(bits)
    for block in np.array_split(codes, 7):
        sketch.add(block)
    kept = codes.copy()
    sketch.drop_rare(kept, 5)
    counts = [Counter(column.tolist()) for column in codes.T]
    true = np.array([[counts[field][code] for field, code in enumerate(row)] for row in codes.tolist()])
    assert (kept[true >= 5] == codes[true >= 5]).all()
    wrong = (kept[true < 5] != RARE).mean()
    assert wrong == 0 if bits == 20 else wrong > 0.5  # a crowded sketch keeps what it should not


def test_false_keep_is_what_it_says():
    random = np.random.default_rng(0)
    sketch = Sketch(12)
    sketch.add(random.integers(2, 3000, (5000, 1)))
    unseen = np.arange(10**6, 10**6 + 20_000)[:, None]
    sketch.drop_rare(unseen, 2)
    assert 0.05 < sketch.false_keep(2) < 0.6
    assert (unseen != RARE).mean() == pytest.approx(sketch.false_keep(2), rel=0.1)


def test_order_fields_and_empty_fields():
    codes = np.array([[7, 7], [7, MISSING], [8, 7], [7, 9]])
    one, other = Sketch(16), Sketch(16)
    one.add(codes)
    for row in codes[::-1]:
        other.add(row[None])
    np.testing.assert_array_equal(one.counters, other.counters)
    kept = codes.copy()
    one.drop_rare(kept, 3)
    assert kept.tolist() == [[7, RARE], [7, MISSING], [RARE, RARE], [7, RARE]]
    swapped = np.array([[7, 7]])
    one.drop_rare(swapped, 3, np.array([1, 0]))  # the columns belong to the other fields
    assert swapped.tolist() == [[RARE, 7]]


def test_counters_do_not_overflow():
    sketch = Sketch(16)
    sketch.add(np.full((1000, 1), 5))
    codes = np.array([[5]])
    sketch.drop_rare(codes, LARGEST)
    assert codes.tolist() == [[5]]


def test_a_crowded_sketch_is_told(tmp_path):
    Avazu.twin(tmp_path / "raw", 500, 0)
    made = Avazu.prepare(tmp_path / "raw", tmp_path / "out", Options(min_count=2))
    assert "raise --count-bits" not in manifest.summary(made, tmp_path)
    made["threshold"]["false_keep"] = 0.02
    assert "raise --count-bits" in manifest.summary(made, tmp_path)
