"""Taobao's join: nothing of a sample's own time or later, nothing lost, whatever the buckets."""

import csv
from collections import defaultdict

import numpy as np
import pytest

from data_prep import history, partitions
from data_prep.job import Options
from data_prep.taobao import ADS, BEHAVIOURS, CATE, FIELDS, MIDNIGHT, PROFILES, SAMPLES, Taobao
from data_prep.taobao_twin import PULL, SEEN
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.prepared_datasets import PreparedClicks
from tests.data_prep.prepared_folders import finished_parts, whole

DAY = 86_400


def write(raw, samples, ads=((7, 70, 1, 2, "NULL", "3.9"),), profiles=(), behaviours=()):
    tables = {"raw_sample": SAMPLES, "ad_feature": ADS, "user_profile": PROFILES, "behavior_log": BEHAVIOURS}
    for (name, layout), rows in zip(tables.items(), (samples, ads, profiles, behaviours), strict=True):
        text = layout.header.decode() + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
        folder = raw(f"{name}.csv", text)
    return folder


def sample(user, time, ad=7, click=0, nonclick=None):
    return user, MIDNIGHT + time, ad, "430548_1007", 1 - click if nonclick is None else nonclick, click


def behaviour(user, time, cate, what="pv", brand=5):
    return user, MIDNIGHT + time, what, cate, brand


def test_the_join_by_hand(raw, tmp_path):
    profile = (1, 0, 3, 2, 3, "", 3, 0, "")
    folder = write(
        raw,
        [sample(1, 100, click=1), sample(2, 50), sample(1, DAY, ad=8)],
        profiles=[profile],
        behaviours=[behaviour(*of) for of in ((1, 100, 11), (1, 99, 12, "buy"), (1, 5, 13, "cart"), (2, 60, 14))],
    )
    made = Taobao.prepare(folder, tmp_path / "out", Options(history=2))
    clicks = PreparedClicks(tmp_path / "out")
    assert clicks.names == [0, 1] and clicks.fields == FIELDS
    # Day 0 in the order of time: user 2 at 50, then user 1 at 100.
    assert clicks.take(0, "times").tolist() == [50, 100]
    assert clicks.take(0, "labels").tolist() == [0, 1]
    ids = dict(zip(FIELDS, clicks.take(0, "ids")[1].tolist(), strict=True))
    assert (ids["user"], ids["adgroup_id"], ids["cate_id"], ids["brand"]) == (3, 9, 72, 0)
    assert (ids["cms_segid"], ids["age_level"], ids["pvalue_level"]) == (2, 5, 0)
    assert clicks.take(0, "dense").tolist() == [[390], [390]]
    # User 2 has no past, user 1 what is before second 100: the oldest first; at second 100 itself is too late.
    assert clicks.take(0, "history").tolist() == [[[0, 0], [0, 0]], [[15, 7], [14, 7]]]
    assert clicks.take(0, "history_kinds").tolist() == [[0, 0], [2, 4]]
    assert clicks.take(0, "history_length").tolist() == [0, 2]
    # A day later the same user's latest two are others; the ad is nowhere described.
    assert clicks.take(1, "history").tolist() == [[[14, 7], [13, 7]]]
    assert clicks.take(1, "ids")[0, FIELDS.index("cate_id")] == 0
    assert made["without"] == {"ad": 1, "profile": 1}
    assert made["counts_of_files"]["behavior_log.csv"] == {"read": 4, "written": 4, "rejected": 0}
    read = clicks.read(0, slice(None))
    assert read.history[1, :, 0].tolist() == [(CATE << FIELD_SHIFT) | 15, (CATE << FIELD_SHIFT) | 14]
    np.testing.assert_allclose(read.dense[:, 0], np.log1p(390), rtol=1e-6)


def test_bad_rows_of_every_file(raw, tmp_path):
    folder = write(
        raw,
        [sample(1, 5), sample(1, 5, nonclick=0), sample(1, 8 * DAY), sample("", 5), sample(1, 6)],
        ads=[(7, 70, 1, 2, "NULL", "3.9"), (8, 1)],
        profiles=[("x", *range(8))],
        behaviours=[behaviour(1, 4, 11), behaviour(1, 4, 11, "look"), behaviour("", 4, 11)],
    )
    made = Taobao.prepare(folder, tmp_path / "out", Options())
    assert made["rejects"] == {
        "btag is none of pv, cart, fav, buy": 1,
        "no user or ad": 1,
        "no user or time": 1,
        "nonclk is not 1 - clk": 1,
        "not a whole number of 32 bits": 1,
        "outside the data set's days": 1,
        "wrong column count": 1,
    }
    assert made["counts_of_files"]["raw_sample.csv"] == {"read": 5, "written": 2, "rejected": 3}
    assert made["counts"]["read"] == made["counts"]["written"] + made["counts"]["rejected"] == 11


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taobao")
    return folder, Taobao.twin(folder, 1500, 0)


@pytest.mark.parametrize("crowded", [False, True])
def test_histories_are_those_of_a_plain_search(twin, tmp_path, monkeypatch, crowded):
    """Also where there are many buckets, and runs of a few rows."""
    if crowded:
        monkeypatch.setattr(history, "BUCKET", 1 << 11)
        monkeypatch.setattr(history, "RUN", 1 << 7)
    folder, _ = twin
    Taobao.prepare(folder, tmp_path / "out", Options(history=7, workers=2))
    past = defaultdict(list)
    with (folder / "behavior_log.csv").open() as file:
        for row in csv.DictReader(file):
            past[int(row["user"])].append((int(row["time_stamp"]), int(row["cate"]) + 2, int(row["brand"]) + 2))
    for each in past.values():
        each.sort(key=lambda event: event[0])
    with (folder / "raw_sample.csv").open() as file:
        rows = [(int(row["time_stamp"]), at, int(row["user"])) for at, row in enumerate(csv.DictReader(file))]
    rows.sort()
    expected = [[list(e[1:]) for e in past[user] if e[0] < time][-7:] for time, _, user in rows]
    clicks = PreparedClicks(tmp_path / "out")
    got = zip(whole(clicks, "history"), whole(clicks, "history_length"), strict=True)
    assert [each[:size].tolist() for each, size in got] == expected
    assert whole(clicks, "times").tolist() == [time - MIDNIGHT for time, _, _ in rows]


def test_a_stopped_join_goes_on(twin, tmp_path, monkeypatch):
    folder, _ = twin
    made = Taobao.prepare(folder, tmp_path / "whole", Options(min_count=2))
    with monkeypatch.context() as patch:
        finished_parts(patch, most=3)
        with pytest.raises(KeyboardInterrupt):
            Taobao.prepare(folder, tmp_path / "out", Options(min_count=2, workers=1))
    # What was finished is not made again: neither the parts of the raw files nor the joined buckets.
    for name in ("_spill", "_gather"):
        monkeypatch.delattr(history.Joined, name)
    assert Taobao.prepare(folder, tmp_path / "out", Options(min_count=2, workers=3)) == made
    assert not (tmp_path / "out" / partitions.WORK).exists()


def test_the_planted_pull_is_in_what_was_prepared(twin, tmp_path):
    folder, facts = twin
    Taobao.prepare(folder, tmp_path / "out", Options(history=SEEN))
    clicks = PreparedClicks(tmp_path / "out")
    read = [clicks.read(day, slice(None)) for day in clicks.names]
    cate, past = (np.concatenate([each[place] for each in read]) for place in (0, 5))
    size, labels = (np.concatenate([each[place] for each in read]) for place in (4, 2))
    share = (past[:, :, 0] == cate[:, CATE, None]).sum(1) / np.maximum(size, 1)
    assert labels[share > 0.3].mean() > labels[share == 0].mean() + 0.1
    assert PULL > 0 and 0.7 < facts["auc_ceiling"] < 0.95


def test_codes_of_the_history_are_those_of_the_ads(twin, tmp_path):
    folder, _ = twin
    made = Taobao.prepare(folder, tmp_path / "out", Options(buckets=50, min_count=3))
    clicks = PreparedClicks(tmp_path / "out")
    codes, past = whole(clicks, "ids")[:, CATE], whole(clicks, "history")[:, :, 0]
    assert max(codes.max(), past.max()) <= 51
    assert set(past[past > 1].tolist()) <= set(codes.tolist())  # what no training sample has is rare in histories too
    assert made["threshold"]["least"] == 3


def test_the_real_sample_split_into_its_four_files(samples, raw, tmp_path):
    """The joined sample's own values, in the official files' form; its click sequences as behaviours of the day before."""
    with (samples / "taobao" / "fuxictr_taobaoad_train100.csv").open() as file:
        rows = list(csv.DictReader(file))
    ads = {row["adgroup_id"]: [row[name] or "NULL" for name in ADS.names] for row in rows}
    profiles = {row["userid"]: [row[name] for name in PROFILES.names] for row in rows}
    behaviours = [
        behaviour(row["userid"], at - DAY, number)
        for row in {row["userid"]: row for row in rows}.values()
        for at, number in enumerate(filter(None, row["click_sequence"].split("^")))
    ]
    shown = [(r["userid"], MIDNIGHT, r["adgroup_id"], r["pid"], 1 - int(r["clk"]), r["clk"]) for r in rows]
    folder = write(raw, shown, ads.values(), profiles.values(), behaviours)
    made = Taobao.prepare(folder, tmp_path / "out", Options())
    assert made["counts_of_files"]["raw_sample.csv"] == {"read": 100, "written": 100, "rejected": 0}
    assert made["positives"] == sum(row["clk"] == "1" for row in rows)
    assert made["without"] == {"ad": 0, "profile": 0}
    clicks = PreparedClicks(tmp_path / "out")
    codes = clicks.take(0, "ids")
    for layout, table, key in ((ADS, ads, "adgroup_id"), (PROFILES, profiles, "userid")):
        for place, name in enumerate(layout.names):
            if name in FIELDS:
                texts = [str(table[row[key]][place]) for row in rows]
                expected = [int(text) + 2 if text.isdigit() else 0 for text in texts]
                assert codes[:, FIELDS.index(name)].tolist() == expected
    most = max(sum(event[0] == row["userid"] for event in behaviours) for row in rows)
    assert clicks.take(0, "history_length").max() == most
