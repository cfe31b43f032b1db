"""The list of faults is up to date, and what finds them finds them."""

from __future__ import annotations

import json

import pytest

from lib.errors import BadOption, UnknownName
from tests import mutate

LISTED = """
- name: a sum is a difference
  file: lib/adding.py
  old: "a + b"
  new: "a - b"
  tests: [tests/test_adding.py]
- name: nobody looks at this
  file: lib/adding.py
  old: "a * b"
  new: "a / b"
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(mutate, "READY", ())
    files = {
        "lib/__init__.py": "",
        "lib/adding.py": "def add(a, b):\n    return a + b\n\n\ndef times(a, b):\n    return a * b\n",
        "tests/test_adding.py": "from lib.adding import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n",
        "tests/faults.yaml": LISTED,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_fault_of_the_list_can_be_planted():
    listed = mutate.faults()
    assert len(listed) >= 60
    assert len({fault.name for fault in listed}) == len(listed)
    for fault in listed:
        assert fault.new != fault.old
        assert all((mutate.ROOT / test).exists() for test in fault.tests), fault.name


def test_a_fault_is_noticed_or_survives_and_nothing_is_left_behind(repository):
    before = {path: path.read_bytes() for path in repository.rglob("*.*")}
    noticed, survived = mutate.mutate(mutate.chosen([], repository), 2, repository)
    assert noticed.noticed_by == "tests/test_adding.py::test_add"
    assert survived.noticed_by is None
    assert mutate.result([noticed, survived])["noticed"] == 1
    assert {path: path.read_bytes() for path in repository.rglob("*.*")} == before


def test_what_noticed_a_fault_before_is_asked_first(repository):
    """Though another would notice it sooner, unless it has another name now."""
    (repository / "tests" / "test_also.py").write_text(
        "from lib.adding import add\n\ndef test_too():\n    assert add(1, 1) == 2\n"
    )
    [fault] = mutate.chosen(["a sum is a difference"], repository)
    for before, after in (
        ("test_also.py::test_too", "test_also.py::test_too"),
        ("test_also.py::test_old", "test_adding.py::test_add"),
    ):
        (repository / mutate.RECORD).parent.mkdir(exist_ok=True, parents=True)
        (repository / mutate.RECORD).write_text(
            json.dumps({"faults": [{"name": fault.name, "noticed_by": f"tests/{before}"}]})
        )
        [finding] = mutate.mutate([fault], 1, repository)
        assert finding.noticed_by == f"tests/{after}"


def test_a_test_that_fails_without_the_fault_has_noticed_nothing(repository, capsys):
    (repository / "tests" / "test_adding.py").write_text("def test_add():\n    raise ValueError\n")
    findings = list(mutate.mutate(mutate.chosen([], repository), 1, repository))
    assert not any(finding.noticed_by for finding in findings)
    assert "test_add fails without 'a sum is a difference' too" in capsys.readouterr().err


def test_a_suite_that_is_stuck_has_noticed(repository, monkeypatch):
    monkeypatch.setattr(mutate, "LIMIT", 3)
    (repository / "tests" / "test_adding.py").write_text("import time\n\ndef test_add():\n    time.sleep(600)\n")
    [finding] = mutate.mutate(mutate.chosen(["a sum is a difference"], repository), 1, repository)
    assert finding.noticed_by == "the time limit"


def test_a_suite_that_cannot_run_notices_nothing(repository):
    (repository / "tests" / "test_adding.py").unlink()
    with pytest.raises(BadOption, match="the tests cannot run"):
        list(mutate.mutate(mutate.chosen([], repository), 1, repository))


def test_code_that_has_changed_is_named(repository):
    (repository / "lib" / "adding.py").write_text("")
    with pytest.raises(BadOption, match=r"faults\.yaml:2:3: the code of 'a sum is a difference' stands 0 times"):
        mutate.chosen([], repository)


def test_a_misspelt_fault(repository):
    with pytest.raises(UnknownName, match="a sum is a difference"):
        mutate.chosen(["a sum is a diference"], repository)
