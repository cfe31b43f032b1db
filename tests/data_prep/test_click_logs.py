"""Click logs: every row is written or set aside, days are kept, and a stopped run goes on."""

import gzip

import numpy as np
import pytest

from data_prep import manifest, partitions, reading
from data_prep.avazu import FIRST, LAYOUT, Avazu
from data_prep.criteo import WITH_ID
from data_prep.criteo_1tb import Criteo1TB
from data_prep.criteo_kaggle import CriteoKaggle
from data_prep.job import Options
from data_prep.rejects import TooManyRejects
from lib.errors import BadOption
from lib.tasks.prepared_datasets import PreparedClicks
from tests.data_prep.prepared_folders import finished_parts, rejected, whole


def criteo(label=0, first="", value="", end="\n"):
    """A row with one count and one category."""
    return f"{label}\t{first}{chr(9) * 13}{value}{chr(9) * 25}{end}"


def avazu(day=0, click=0, site="1fbe01fe", end="\n"):
    fields = ["1", str(click), f"{FIRST + day}00", "1005", "0", site, *["f3845767"] * 8, *["1"] * 10]
    return ",".join(fields) + end


def test_values_and_days_by_hand(raw, tmp_path):
    rows = (criteo(at % 2, at, f"{at:x}", "\r\n" if at == 3 else "\n") for at in range(14))
    folder = raw("train.txt", "".join(rows)[:-1])
    made = CriteoKaggle.prepare(folder, tmp_path / "out", Options())
    assert made["counts"] == {"read": 14, "written": 14, "rejected": 0}
    assert made["positives"] == 7
    clicks = PreparedClicks(tmp_path / "out")
    assert clicks.names == list(range(7)) and all(clicks.rows(day) == 2 for day in range(7))
    assert clicks.take(3, "dense")[:, 0].tolist() == [6, 7]
    assert clicks.take(3, "dense")[0, 1] == -(2**31)
    assert clicks.take(3, "ids")[:, :2].tolist() == [[8, 0], [9, 0]]


FAULTS = {
    2: ("label is neither 0 nor 1", "Label", criteo(2)),
    4: ("not at most eight hex digits", "C1", criteo(value="xyz")),
    5: ("wrong column count", "C26", criteo(end="\t\n")),
    7: ("not UTF-8", "C1", criteo(value="@")),
    9: ("not a whole number of 32 bits", "I1", criteo(first="1e3")),
    10: ("label is neither 0 nor 1", "Label", "\n"),
}


def test_bad_rows_are_set_aside_with_their_place(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "STRETCH", 100)
    text = "".join(FAULTS[line][2] if line in FAULTS else criteo(1) for line in range(1, 12)).replace("@", "\udcff")
    folder = raw("train.txt", text.encode("utf-8", "surrogateescape"))
    made = CriteoKaggle.prepare(folder, tmp_path / "out", Options())
    assert made["counts"] == {"read": 11, "written": 5, "rejected": 6}
    found = {(row["file"], row["line"], row["reason"], row["column"]) for row in rejected(tmp_path / "out")}
    assert found == {("train.txt", line, *fault[:2]) for line, fault in FAULTS.items()}
    assert made["rejects"]["label is neither 0 nor 1"] == 2


def test_too_many_bad_rows_stop_the_run(raw, tmp_path):
    folder = raw("train.txt", criteo() + criteo(2) * 5)
    with pytest.raises(TooManyRejects, match=r"more than 3 bad rows; the last one: train.txt, line 5, column Label"):
        CriteoKaggle.prepare(folder, tmp_path / "out", Options(max_rejects=3))
    assert CriteoKaggle.prepare(folder, tmp_path / "out", Options(max_rejects=5))["counts"]["rejected"] == 5


def test_headers_again_and_days_beyond(raw, tmp_path):
    header = LAYOUT.header.decode() + "\n"
    folder = raw("train.csv", header + avazu(0) + header + avazu(9, 1) + avazu(10) + avazu(0, site="") + avazu(0, 1))
    made = Avazu.prepare(folder, tmp_path / "out", Options())
    assert made["counts"] == {"read": 6, "written": 4, "rejected": 2}
    found = [(row["line"], row["reason"]) for row in rejected(tmp_path / "out")]
    assert found == [(3, "a second header"), (5, "outside the data set's days")]
    assert [(part["day"], part["rows"]) for part in made["partitions"]] == [(0, 3), (9, 1)]
    with pytest.raises(BadOption, match=r"line 1: .*expected the header"):
        Avazu.prepare(raw("train.csv", avazu()), tmp_path / "other", Options())


def test_a_truncated_day_keeps_its_whole_rows(raw, tmp_path):
    whole = gzip.compress("".join(criteo(1, at, f"{at * 7919:x}") for at in range(5000)).encode())
    raw("day_3.gz", whole[:-500])
    folder = raw("day_7", criteo(0) * 2)
    made = Criteo1TB.prepare(folder, tmp_path / "out", Options())
    (row,) = rejected(tmp_path / "out")
    assert (row["file"], row["reason"]) == ("day_3.gz", "truncated gzip")
    sizes = {part["day"]: part["rows"] for part in made["partitions"]}
    assert sizes[7] == 2 and row["line"] == sizes[3] + 1 > 4000
    assert made["counts"]["read"] == made["counts"]["written"] + 1
    assert row["text"] in criteo(1, sizes[3], f"{sizes[3] * 7919:x}")


def test_stretches_and_threads_change_nothing(raw, tmp_path, monkeypatch):
    CriteoKaggle.twin(tmp_path / "raw", 700, 0)
    results = []
    for place, (stretch, workers) in enumerate([(1 << 30, 1), (20_000, 3)]):
        monkeypatch.setattr(reading, "STRETCH", stretch)
        CriteoKaggle.prepare(tmp_path / "raw", tmp_path / str(place), Options(workers=workers, min_count=2))
        clicks = PreparedClicks(tmp_path / str(place))
        results.append([clicks.read(day, slice(None)) for day in clicks.names])
    assert len(list((tmp_path / "1").glob("day=*/part-*"))) > len(list((tmp_path / "0").glob("day=*/part-*")))
    for one, other in zip(*results, strict=True):
        for a, b in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_stopped_run_goes_on_where_it_stopped(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "STRETCH", 2000)
    folder = raw("train.txt", "".join(criteo(at % 2, at) for at in range(300)))
    with monkeypatch.context() as patch:
        finished = finished_parts(patch, most=2)
        with pytest.raises(KeyboardInterrupt):
            CriteoKaggle.prepare(folder, tmp_path / "out", Options(workers=1))
    assert not (tmp_path / "out" / "manifest.json").exists()
    again = finished_parts(monkeypatch)
    made = CriteoKaggle.prepare(folder, tmp_path / "out", Options(workers=1))
    assert made["counts"]["written"] == 300
    assert len(again) > 2 and not set(finished) & set(again)
    assert whole(PreparedClicks(tmp_path / "out"), "dense")[:, 0].tolist() == list(range(300))
    assert not (tmp_path / "out" / partitions.WORK).exists()
    assert manifest.check(tmp_path / "out") == []
    again.clear()
    assert CriteoKaggle.prepare(folder, tmp_path / "out", Options(workers=1)) == made
    assert again == []


def test_another_plan_is_not_mixed_in(raw, tmp_path):
    folder = raw("train.txt", criteo() * 9)
    CriteoKaggle.prepare(folder, tmp_path / "out", Options())
    with pytest.raises(BadOption, match=r"other options: buckets 0, now 7; give another folder"):
        CriteoKaggle.prepare(folder, tmp_path / "out", Options(buckets=7))
    with pytest.raises(BadOption, match=r"other files: train.txt was another file of that name"):
        CriteoKaggle.prepare(raw("train.txt", criteo() * 8), tmp_path / "out", Options())


def test_check_finds_what_was_altered(raw, tmp_path):
    out = tmp_path / "out"
    CriteoKaggle.prepare(raw("train.txt", criteo() * 14), out, Options())
    assert manifest.check(out) == []
    paths = sorted(out.glob("day=*/part-*/ids.npy"))
    data = bytearray(paths[0].read_bytes())
    data[-1] ^= 1
    paths[0].write_bytes(data)
    paths[1].write_bytes(data[:-1])
    paths[2].unlink()
    (paths[3].parent / "more.npy").touch()
    faults = manifest.check(out)
    for path, fault in zip(paths, ("its bytes", "written", "missing"), strict=False):
        assert any(f"{path}: " in line and fault in line for line in faults)
    assert faults[-1].endswith("more.npy: of no partition") and len(faults) == 4


def test_frequencies_are_those_of_the_training_days(raw, tmp_path):
    header = LAYOUT.header.decode() + "\n"
    sites = [(0, "aa"), (1, "aa"), (2, "bb"), *[(8, "cc")] * 2, *[(9, "bb")] * 5, (9, "cc"), (9, ""), (9, "dd")]
    folder = raw("train.csv", header + "".join(avazu(day, site=site) for day, site in sites))
    made = Avazu.prepare(folder, tmp_path / "out", Options(min_count=2))
    site = made["fields"].index("site_id")
    clicks = PreparedClicks(tmp_path / "out")
    kept = {value: int(value, 16) + 2 for value in ("aa", "cc")}
    assert clicks.take(1, "ids")[:, site].tolist() == [kept["aa"]]
    # bb is frequent only on the day of the test, dd stands nowhere else; an empty field is no value.
    assert clicks.take(9, "ids")[:, site].tolist() == [1] * 5 + [kept["cc"], 0, 1]
    assert made["threshold"]["false_keep"] < 1e-12
    Avazu.prepare(folder, tmp_path / "earlier", Options(min_count=2, train_days=3))
    assert PreparedClicks(tmp_path / "earlier").take(8, "ids")[:, site].tolist() == [1, 1]


def test_a_sample_is_the_beginning_of_each_file(raw, tmp_path):
    raw("day_0", "".join(criteo(0, at) for at in range(50)))
    folder = raw("day_1.gz", gzip.compress("".join(criteo(1, at) for at in range(50)).encode()))
    made = Criteo1TB.prepare(folder, tmp_path / "out", Options(sample=7))
    assert made["counts"]["read"] == 14 and made["positives"] == 7
    assert PreparedClicks(tmp_path / "out").take(1, "dense")[:, 0].tolist() == list(range(7))


def test_kaggle_with_ids_and_commas(raw, tmp_path):
    row = ",".join(["10000083", "1", *["3"] * 13, *["05db9164"] * 26])
    made = CriteoKaggle.prepare(raw("train.txt", WITH_ID.header + f"\n{row}\n".encode()), tmp_path / "out", Options())
    assert made["counts"]["written"] == made["positives"] == 1


@pytest.mark.parametrize(
    ("text", "sentence"), [("", "no rows"), ("a,b\n", "line 1: 'a,b'; expected 40 fields between tabs")]
)
def test_the_wrong_file_is_named(raw, tmp_path, text, sentence):
    with pytest.raises(BadOption, match=sentence):
        CriteoKaggle.prepare(raw("train.txt", text), tmp_path / "out", Options())


def test_the_real_criteo_sample(samples, tmp_path):
    made = CriteoKaggle.prepare(samples / "criteo_kaggle" / "head10k.train.txt", tmp_path / "out", Options())
    assert made["counts"] == {"read": 10_000, "written": 10_000, "rejected": 0}
    assert made["positives"] / made["counts"]["written"] == pytest.approx(0.2182)
    lines = (samples / "criteo_kaggle" / "head10k.train.txt").read_text().splitlines()
    expected = [[int(field, 16) + 2 if field else 0 for field in line.split("\t")[14:]] for line in lines]
    np.testing.assert_array_equal(whole(PreparedClicks(tmp_path / "out"), "ids"), expected)


@pytest.mark.parametrize(
    "kind, name, rows", [(CriteoKaggle, "criteo_kaggle/tr_rx1999.csv", 1999), (Avazu, "avazu/train_head8999.csv", 8999)]
)
def test_other_real_samples(samples, tmp_path, kind, name, rows):
    made = kind.prepare(samples / name, tmp_path / "out", Options())
    assert made["counts"] == {"read": rows, "written": rows, "rejected": 0}
    if kind is Avazu:
        assert made["positives"] / rows == pytest.approx(0.174, abs=0.0005)
        assert {part["day"] for part in made["partitions"]} == {0}
