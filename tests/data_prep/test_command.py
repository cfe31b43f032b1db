"""The command line, from the twin to the check; and what a run costs."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.__main__ import main
from data_prep.avazu import Avazu
from data_prep.cifar import Cifar10
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.datasets import ALL
from data_prep.fb15k237 import FB15k237
from data_prep.job import Options
from data_prep.squad import Squad
from lib.tasks import prepared_datasets
from lib.tasks.prepared_datasets import Partitions
from tests.data_prep.prepared_folders import pack

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
        (["avazu", "nowhere", "out"], "there is no nowhere; "),
        (["avazu"], "where are its raw files"),
        (["avazu", "raw"], "where to? python -m data_prep avazu raw OUT"),
        (["avazu", "raw", "out", "--sample", "0"], "--sample is 0; expected 1 to"),
        (["avazu", "raw", "--twin", "--rows", "0"], "--rows is 0; expected 1 or more"),
        (["triples", __file__, __file__], "is a file; the last name is the folder to write to"),
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


@pytest.mark.parametrize("name", ["train.txt", "dac.tar.gz", "train.gz"])
@pytest.mark.parametrize("packing", ["tar.gz", "zip", "bzip2", "gzip"])
def test_what_is_packed_is_not_read_as_text(packing, name, tmp_path, capsys):
    CriteoKaggle.twin(tmp_path, 60, 0)
    folder = tmp_path / "raw"
    folder.mkdir()
    pack(folder / name, packing, {"train.txt": tmp_path / "train.txt"})
    assert main(["criteo-kaggle", str(folder / name), str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert f"{name} is a {packing}" in printed and "unpack it, and give the folder with train.txt" in printed
    assert not (tmp_path / "out").exists()


def test_a_gzip_file_is_read_where_it_is_called_so(tmp_path, capsys):
    Avazu.twin(tmp_path, 60, 0)
    packed = gzip.compress((tmp_path / "train.csv").read_bytes())
    (tmp_path / "some.gz").write_bytes(packed)
    assert main(["avazu", str(tmp_path / "some.gz"), str(tmp_path / "out")]) == 0
    (tmp_path / "empty.gz").write_bytes(gzip.compress((tmp_path / "train.csv").read_bytes().splitlines()[0]))
    assert main(["avazu", str(tmp_path / "empty.gz"), str(tmp_path / "other")]) == 2
    assert "none of the 0 rows is one of avazu" in capsys.readouterr().err
    (tmp_path / "some.csv").write_bytes(packed)
    assert main(["avazu", str(tmp_path / "some.csv"), str(tmp_path / "other")]) == 2
    assert "some.csv is a gzip file under another name; call it some.csv.gz, or unpack it" in capsys.readouterr().err


def test_what_was_refused_does_not_stand_in_the_way(tmp_path, capsys):
    CriteoKaggle.twin(tmp_path / "raw", 60, 0)
    out, wrong = tmp_path / "out", tmp_path / "wrong.txt"
    wrong.write_text("Id,Label\n1,0\n")
    assert main(["criteo-kaggle", str(wrong), str(out)]) == 2
    assert not out.exists()  # nothing was finished, and nothing is left
    wrong.write_bytes(b"\t" * 39 + b"\n")
    assert main(["criteo-kaggle", str(wrong), str(out)]) == 2
    assert "none of the 1 rows is one of criteo-kaggle; the first one: wrong.txt, line 1" in capsys.readouterr().err
    assert not out.exists()
    with (tmp_path / "raw" / "train.txt").open("a") as file:
        file.write("bad\n" * 3)
    assert main(["criteo-kaggle", str(tmp_path / "raw"), str(out), "--max-rejects", "2"]) == 2
    assert main(["criteo-kaggle", str(tmp_path / "raw"), str(out), "--buckets", "9"]) == 0
    assert main(["criteo-kaggle", str(tmp_path / "raw"), str(out), "--buckets", "8"]) == 2  # what is whole does
    assert "holds a preparation with other options: buckets 9, now 8; give another folder" in capsys.readouterr().err


def test_of_a_refused_set_of_files_what_was_finished_gives_way(tmp_path, capsys):
    FB15k237.twin(tmp_path / "raw", 300, 0)
    broken = (tmp_path / "raw" / "valid.txt").read_bytes()
    (tmp_path / "raw" / "valid.txt").write_text("no triple\n" * 3)
    arguments = ["fb15k-237", str(tmp_path / "raw"), str(tmp_path / "out")]
    assert main([*arguments, "--max-rejects", "2"]) == 2
    assert (tmp_path / "out" / "split=train").is_dir()
    (tmp_path / "raw" / "valid.txt").write_bytes(broken)
    assert main([*arguments, "--sample", "100"]) == 0
    assert Partitions(tmp_path / "out", "triples").rows("train") == 100


def test_what_was_interrupted_does_not_give_way(tmp_path, monkeypatch, capsys):
    CriteoKaggle.twin(tmp_path / "raw", 60, 0)
    arguments = ["criteo-kaggle", str(tmp_path / "raw"), str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(CriteoKaggle, "work", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
        assert main(arguments) == 130
    assert main([*arguments, "--buckets", "9"]) == 2
    assert "holds a preparation with other options: buckets 0, now 9" in capsys.readouterr().err
    assert main(arguments) == 0


@pytest.mark.parametrize("name", ["criteo-kaggle", "avazu"])
def test_a_file_to_be_judged_by_can_be_given(name, tmp_path, capsys):
    for place, folder in enumerate(("a", "b")):
        assert main([name, str(tmp_path / folder), "--twin", "--rows", "200", "--seed", str(place)]) == 0
    train, test = (next(path for path in (tmp_path / f).iterdir() if "train" in path.name) for f in "ab")
    assert main([name, str(train), str(tmp_path / "out"), "--test", str(test), "--min-count", "2"]) == 0
    log = prepared_datasets.read_clicks(str(tmp_path / "out"), behaviours=False)
    assert (log.samples, len(log.held_out(1_000).labels)) == (200, 200)
    assert main([name, str(train), str(tmp_path / "other"), "--test", str(train)]) == 2
    assert main([name, str(train), str(tmp_path / "other"), "--test", "nowhere"]) == 2
    assert main([name, str(train), str(tmp_path / "other"), "--valid", str(test)]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert "is given twice" in printed[0] and "there is no test file nowhere" in printed[1]
    assert "has no option '--valid'; valid: --test" in printed[2]


@pytest.mark.parametrize("kind", [Cifar10, Squad])
def test_so_it_can_of_images_and_questions(kind, tmp_path):
    kind.twin(tmp_path, 240, 0)
    train, *_, test = (tmp_path / file.name for file in kind.files)
    (tmp_path / "mine").write_bytes(train.read_bytes())
    (tmp_path / "later").write_bytes(test.read_bytes())
    made = kind.prepare(tmp_path / "mine", tmp_path / "out", Options(), {"test": tmp_path / "later"})
    assert {part["split"] for part in made["partitions"]} == {"train", "test" if kind is Cifar10 else "dev"}
    assert prepared_datasets.training_samples(str(tmp_path / "out")) == (40 if kind is Cifar10 else 216)


@pytest.mark.nightly
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
