import io
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lib import paths, progress
from lib.progress import Progress, track


def test_places(monkeypatch, tmp_path):
    for name in ("LOCKSTEP_ROOT", "LOCKSTEP_REPORTS", "LOCKSTEP_STAGE"):
        monkeypatch.delenv(name, raising=False)
    assert (paths.root() / "lib" / "paths.py").exists()
    assert paths.runs() == paths.root() / "reports" / "output" / "runs"
    assert paths.results() == paths.reports() / "interactive"
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path / "r"))
    assert paths.reports() == tmp_path / "r" and paths.reference() == paths.root() / "reports" / "reference"
    monkeypatch.setenv("LOCKSTEP_STAGE", str(tmp_path / "s"))
    assert paths.results() == tmp_path / "s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "INTERVAL", 0)
    with Progress(20000, "train", "samples") as line:
        threads = [threading.Thread(target=lambda: [line.advance(100) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    text = sys.stderr.getvalue()
    assert text.count("\n") == 1 and "left" in text
    assert text.rsplit("\r", 1)[1].startswith("train: 20.0k/20.0k samples, ")


def test_drawing_is_rate_limited(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10_000, "fast") as line:
        for _ in range(10_000):
            line.advance()
    assert sys.stderr.getvalue().count("\r") < 10


def test_nobody_watches_nothing_is_said(capsys, monkeypatch):
    with Progress(2, "quick") as line:
        line.advance(2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "LONG", 0)
    with Progress(2, "long") as line:
        line.advance(2)
    assert capsys.readouterr().err.startswith("long: 2/2, ")


def test_work_within_work_shares_the_outer_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "INTERVAL", 0)
    for _ in track(["a", "b"], "runs"):
        with Progress(5, "inner") as line:
            line.advance(5)
    text = sys.stderr.getvalue()
    assert ", inner: 5/5" in text and text.count("\n") == 1
    assert text.rsplit("\r", 1)[1].startswith("runs: 2/2, ")
    assert progress._open == []


def test_an_error_leaves_no_line_open():
    with pytest.raises(ValueError), Progress(1):
        raise ValueError
    assert progress._open == []


def test_what_a_killed_process_left_goes_with_the_next_scratch_and_nothing_else(tmp_path):
    script = """
import sys, time
from pathlib import Path
from lib import paths
with paths.temporary_folder(Path(sys.argv[1]), "stage") as place:
    (place / "half").write_text("written")
    print(place, flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", script, tmp_path]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    dead, alive = (Path(other.stdout.readline().strip()) for other in others)
    others[0].kill()
    others[0].communicate()
    with paths.temporary_folder(tmp_path, "stage") as mine:
        assert not dead.exists()
        assert (alive / "half").exists() and mine.is_dir()
    assert [*tmp_path.iterdir()] == [alive]
    others[1].kill()
    others[1].communicate()


def test_of_three_who_ask_for_a_name_one_has_it_at_a_time(reports):
    inside, most = [], []

    def work():
        for _ in range(20):
            with paths.exclusive_lock("a-run"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) == 60
