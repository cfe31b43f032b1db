"""A run names the commit of its code, also where that changed in the life of a process."""

import subprocess

import pytest

from lib.results import provenance


@pytest.mark.parametrize("change, plus", [("rule.py", "+"), ("notes.txt", "")])
def test_new_code_since_the_run_before_shows_by_a_plus(tmp_path, monkeypatch, change, plus):
    def git(*words):
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words],
            check=True,
            capture_output=True,
        )

    monkeypatch.setenv("LOCKSTEP_ROOT", str(tmp_path))
    git("init")
    assert provenance.commit() is None, "nothing is committed"
    (tmp_path / "kept.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "a")
    head = provenance.machine()["commit"]
    assert len(head) == 40
    (tmp_path / change).write_text("b = 1\n")
    assert provenance.machine()["commit"] == head + plus
    (tmp_path / "kept.py").write_text("a = 2\n")
    assert provenance.machine()["commit"] == head + "+"
