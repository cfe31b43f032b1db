"""Every run of `tests/golden.py` leaves what is stored of it: training changes when somebody means it to, and says so."""

from __future__ import annotations

import json

import pytest

from tests.golden import TABLE, cases, differences, outcome, processor

STORED = json.loads(TABLE.read_text())


@pytest.mark.parametrize("name", cases())
def test_a_run_leaves_what_is_stored_of_it(name):
    assert not differences(STORED["runs"][name], outcome(name), STORED["processor"] == processor())


def test_every_case_is_stored_and_no_other():
    assert [*STORED["runs"]] == [*cases()]
