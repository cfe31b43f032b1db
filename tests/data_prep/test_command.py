"""The command line, from the twin to the check; and what a run costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.__main__ import main
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.datasets import ALL

ROOT = Path(__file__).parents[2]


def test_list_says_where_to_get_everything(capsys):
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in ALL:
        assert f"{name}: " in printed
    assert printed.count("  get it: ") == printed.count("  licence: ") == len(ALL)
    assert "train.txt  (21,277,292 bytes; sha256 6e4c2782169af21e" in printed
    assert "day_23.gz  (size not published; checksum not published)" in printed


def test_from_the_twin_to_the_check(tmp_path, capsys):
    raw, out = str(tmp_path / "raw"), tmp_path / "out"
    assert main(["avazu", raw, "--twin", "--rows", "500"]) == 0
    assert "auc_ceiling: 0." in capsys.readouterr().out
    assert main(["avazu", raw, str(out), "--buckets", "1000", "--min-count", "2", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "500 rows read, 500 written, 0 set aside" in printed and "of 500 samples" in printed
    assert "train.csv: checksum not published" in printed
    assert main(["avazu", raw, str(out), "--check"]) == 0
    assert capsys.readouterr().out == "all is as it should be\n"
    part = next(out.glob("day=*/part-*/labels.npy"))
    part.write_bytes(b"")
    assert main(["avazu", raw, str(out), "--check"]) == 1
    assert "labels.npy: 0 bytes, written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["criteo-kagle", "raw", "out"], "unknown data set 'criteo-kagle'; did you mean 'criteo-kaggle'"),
        (["squad", "raw", "out", "--buckets", "5"], "data set 'squad' has no option '--buckets'"),
        (["avazu", "nowhere", "out"], "there is no file nowhere"),
        (["avazu"], "where are its raw files"),
        (["avazu", "raw"], "where to? python -m data_prep avazu raw OUT"),
        (["avazu", "raw", "out", "--sample", "0"], "--sample is 0; expected 1 to"),
    ],
)
def test_errors_are_one_sentence_that_helps(arguments, sentence, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and sentence in printed.err


@pytest.mark.parametrize("option", [["--min-count", "256"], ["--train-days", "11"], ["--buckets", "3000000000"]])
def test_options_out_of_range(option, tmp_path, capsys):
    main(["avazu", str(tmp_path / "raw"), "--twin", "--rows", "50"])
    assert main(["avazu", str(tmp_path / "raw"), str(tmp_path / "out"), *option]) == 2
    assert f"{option[0]} is {option[1]}; expected" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_stays_below_a_gigabyte(tmp_path):
    """The file has more bytes than the limit, once its rows are spread out; the counting table is on top."""
    CriteoKaggle.twin(tmp_path, 20_000, 0)
    text = (tmp_path / "train.txt").read_bytes()
    with (tmp_path / "train.txt").open("ab") as file:
        for _ in range(89):
            file.write(text)
    program = """
import json, re, sys
from pathlib import Path
from data_prep.__main__ import main
status = main(["criteo-kaggle", sys.argv[1], sys.argv[2], "--min-count", "3", "--workers", "4"])
# getrusage would count what the process that started this one held: the peak outlives exec.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(json.dumps([status, peak / 1024]))
"""
    arguments = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    status, peak = json.loads(done.stdout.splitlines()[-1])
    assert status == 0 and "1,800,000 rows read, 1,800,000 written" in done.stdout
    assert peak < 1000, f"{peak:.0f} MB"
