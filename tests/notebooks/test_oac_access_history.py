"""Histories as files: ours come back as they were, and a stranger's is judged or told what is wrong with it."""

import pandas as pd
import pytest

import lib
from lib.command_line import main
from lib.drivers.record import END
from lib.errors import BadOption
from lib.results.outcome import row_access_table
from lib.results.run import Run
from notebooks.oac import access_history as history
from notebooks.oac.anomalies import anomalies, check, check_run
from tests.toys import Letters

STRANGER = """kind,batch,table,id,version,stamp,value,made
read,0,t,1,-1,,70,
read,1,t,1,-1,,70,
compute,0,t,1,-1,0,70,80
write,0,t,1,0,,80,
compute,1,t,1,-1,1,70,90
write,1,t,1,1,,90,
"""


@pytest.fixture
def written(tmp_path):
    """A file with that text."""

    def write(text, name="stranger.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize("protocol", ["oac", "pipelined"])
def test_a_run_keeps_its_history(protocol, tmp_path, reports):
    run = lib.train(Letters(), protocol, "virtual", accesses=True, save=False)
    run.save(tmp_path / "kept")
    assert Run.load(tmp_path / "kept").accesses.equals(run.accesses)
    run.accesses.to_csv(tmp_path / "kept.csv", index=False)
    for path in (tmp_path / "kept" / "accesses.parquet", tmp_path / "kept.csv"):
        legs = history.load(path)
        pd.testing.assert_frame_equal(row_access_table(list(legs.values())), run.accesses, check_dtype=False)
        assert check(legs[0]) == check_run(run)[0]
        assert main(["check", str(path)]) == (protocol == "pipelined")
    last = run.accesses[run.accesses["batch"] == END]
    assert {*last["kind"]} == {"read"} and {*run.accesses["kind"]} == {"read", "compute", "write"}


def test_a_run_without_one_has_none(tmp_path):
    run = lib.train(Letters(), "oac", "virtual", save=False)
    run.save(tmp_path / "kept")
    assert run.accesses is None and Run.load(tmp_path / "kept").accesses is None


def test_each_leg_is_judged_by_itself(tmp_path):
    phases = [{"protocol": {"name": "oac"}, "steps": 1}, {"protocol": {"name": "pipelined"}}]
    run = lib.train(Letters(samples=5), lib.Schedule(phases=phases), "virtual", accesses=True, save=False)
    run.accesses.to_parquet(tmp_path / "both.parquet")
    legs = history.load(tmp_path / "both.parquet")
    assert [*legs] == [0, 1] and [bool(anomalies(leg)) for leg in legs.values()] == [
        bool(leg["anomalies"]) for leg in check_run(run).values()
    ]


def test_a_strangers_history(written, capsys):
    """Lines stand in order, and what is said of computations alone is empty elsewhere."""
    assert main(["check", str(written(STRANGER))]) == 1
    told = capsys.readouterr().out
    assert "1 x stale read: batch 1 had version -1 of t 1, and not 0 by batch 0" in told
    assert "batch 0 -> batch 1 (is computed later) -> batch 0 (batch 1 lacks the update of t 1)" in told
    serial = STRANGER.replace("compute,1,t,1,-1,1,70,90", "compute,1,t,1,0,1,80,90")
    assert main(["check", str(written(serial))]) == 0
    assert capsys.readouterr().out == "no anomaly\n"


def test_without_values_versions_are_believed(written):
    lines = pd.read_csv(written(STRANGER), dtype=str).drop(columns=["value", "made"])
    (leg,) = history.load(written(lines.to_csv(index=False), "short.csv")).values()
    assert [each.kind for each in anomalies(leg)] == ["stale read"]


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("read,1,t", "raed,1,t", r"stranger.csv: row 2, column 'kind': 'raed' is none of read, compute, write"),
        ("compute,0,t,1,-1,0", "compute,0,t,1,-1,", "row 3, column 'stamp': '' is no whole number of 64 bits"),
        ("write,0,t,1,0", "write,zero,t,1,0", "row 4, column 'batch': 'zero' is no whole number"),
        (",70,\nread", f",{2**63},\nread", f"row 1, column 'value': '{2**63}' is no whole number"),
        (",version,", ",verison,", r"column 'version' is missing; there may be batch, began, "),
        (",made", ",makes", "column 'made' is missing"),
        ("id,version", "ids,version", "column 'id' is missing"),
        ("value,made\n", "value,made,more\n", "column 'more' is none that a history has"),
        ("kind,batch", '"kind,batch', "is no history that can be read"),
    ],
)
def test_what_is_wrong_is_named_with_its_row_and_column(old, new, why, written, capsys):
    path = written(STRANGER.replace(old, new))
    with pytest.raises(BadOption, match=why):
        history.load(path)
    assert main(["check", str(path)]) == 2 and str(path) in capsys.readouterr().err


def test_a_header_alone_is_no_history_without_anomalies(written, capsys):
    path = written(STRANGER.partition("\n")[0] + "\n")
    assert main(["check", str(path)]) == 2
    assert "a header, and no access after it; there is nothing to judge" in capsys.readouterr().err


def test_two_accesses_of_a_row_cannot_have_one_place(written):
    lines = pd.read_csv(written(STRANGER), dtype=str, keep_default_na=False).assign(order=list("010213"))
    with pytest.raises(BadOption, match="row 6, column 'order': '2' is another access's to this row, too"):
        history.load(written(lines.assign(order=list("010222")).to_csv(index=False)))
    assert len(history.load(written(lines.to_csv(index=False)))[0]) == 6


def test_other_files_are_no_histories(written, tmp_path):
    with pytest.raises(BadOption, match=r"ends in .csv or .parquet"):
        history.load(written("", "history.txt"))
    with pytest.raises(BadOption, match="no history that can be read"):
        history.load(tmp_path / "nowhere.csv")
    pd.DataFrame({"kind": ["read"], "batch": [0.5]}).assign(
        **dict.fromkeys(("table", "id", "version", "stamp"), 0)
    ).to_parquet(tmp_path / "half.parquet")
    with pytest.raises(BadOption, match=r"row 1, column 'batch': np.float64\(0.5\) is no whole number"):
        history.load(tmp_path / "half.parquet")
