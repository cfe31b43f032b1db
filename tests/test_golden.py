"""Every run of `tests/golden.py` leaves what is stored of it: training changes when somebody means it to, and says so."""

import pytest

from tests import golden


@pytest.mark.parametrize("name", golden.cases())
def test_a_run_leaves_what_is_stored_of_it(name):
    assert not golden.differences(name, golden.outcome(name), golden.load())


def test_every_case_is_stored_and_no_other():
    table = golden.load()
    known = [*golden.cases()]
    assert [*table["runs"]] == known and all({*bits} <= {*known} for bits in table["bits"].values())


def test_bits_are_compared_where_they_are_known(monkeypatch):
    run, mine = {"auc": 0.5, "digest": "a"}, golden.arithmetic()
    runs = {"sync": {"auc": 0.5}}
    assert golden.differences("sync", run, {"runs": runs, "bits": {mine: {"sync": "b"}}}) == ["digest: b before, a now"]
    assert golden.differences("sync", run, {"runs": runs, "bits": {"another": {"sync": "b"}}}) == []
    assert golden.differences("sync", run | {"auc": 0.52}, {"runs": runs, "bits": {}}) == ["auc: 0.5 before, 0.52 now"]
