import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.tasks.sampling import alias_table, pick, zipf_probabilities


@settings(derandomize=True, deadline=None, max_examples=50)
@given(size=st.integers(1, 300), exponent=st.floats(0, 3))
def test_the_table_holds_exactly_the_distribution(size, exponent):
    keep, alias = alias_table(size, exponent)
    held = keep + np.bincount(alias, weights=1 - keep, minlength=size)
    np.testing.assert_allclose(held / size, zipf_probabilities(size, exponent), atol=1e-12)


def test_probabilities_by_hand():
    np.testing.assert_allclose(zipf_probabilities(3, 1.0), np.array([6, 3, 2]) / 11)
    np.testing.assert_allclose(zipf_probabilities(4, 0.0), 0.25)


def test_pick_uses_the_column_then_the_rest():
    keep, alias = np.array([0.5, 1.0]), np.array([1, 1])
    assert [pick(u, keep, alias) for u in (0.0, 0.24, 0.26, 0.5, 0.999)] == [0, 0, 1, 1, 1]
