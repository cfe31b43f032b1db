"""The sentence that says when a card last ran the code."""

import json

import pytest

from lib import paths
from reports.readme import CARD, last_card, with_card
from tests.reports.conftest import git_in


@pytest.mark.parametrize("place", ["README.md", "reports/reference/gpu/README.md"])
def test_it_is_todays_wherever_it_stands(place):
    text = (paths.root() / place).read_text(encoding="utf-8")
    assert CARD.search(text), f"{place} has no such sentence"
    assert with_card(text, paths.root() / "reports" / "reference") == text, "`python -m reports.publish` writes it"


def test_it_changes_with_lib_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", lambda: tmp_path)

    git = git_in(tmp_path)
    git("init")
    (tmp_path / "lib").mkdir()
    (tmp_path / "gpu").mkdir()
    (tmp_path / "lib" / "a.py").touch()
    git("add", "-A")
    git("commit", "-m", "one")
    made = git("rev-parse", "HEAD")
    (tmp_path / "gpu" / "machine.json").write_text(json.dumps({"commit": f"{made}+"}))
    assert last_card(tmp_path) == f"Run on a card at commit {made[:7]}."
    (tmp_path / "notes").touch()
    git("add", "-A")
    git("commit", "-m", "two")
    assert last_card(tmp_path) == f"Run on a card at commit {made[:7]}."
    (tmp_path / "lib" / "a.py").write_text("1")
    today = f"A. <!-- card: -->Not run on a card since commit {made[:7]}. B."
    assert with_card("A. <!-- card: -->Never. B.", tmp_path) == today
