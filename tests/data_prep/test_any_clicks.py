"""Anybody's clicks: whatever form the file has, the same comes out; what cannot be read is told with its line and column."""

import gzip
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from data_prep.__main__ import main
from data_prep.parse import MISSING, RARE, RESERVED, code_of, text_value
from lib.command_line import main as lib_main
from lib.store import sealed
from lib.tasks import prepared_datasets
from lib.tasks.clicks_stream import FIELD_SHIFT
from lib.tasks.prepared_datasets import PreparedClicks
from tests.data_prep.prepared_folders import pack, rejected

HEADER = "click,who,what,price,tags,at"
ROWS = [
    f"{at % 2},u{at % 3},{at % 4},{'' if at == 5 else at + 0.5},{'a|b' if at % 2 else 'c'},{at}" for at in range(40)
]
TEXT = "\n".join([HEADER, *ROWS, ""])
CLICK = "--label click"
OPTIONS = f"{CLICK} --time at --bags tags:| --days 4"


@pytest.fixture
def prepare(raw, tmp_path):
    """`prepare(data, options, name=...)`: the manifest and the log of a file with those bytes."""
    made = iter(range(100))

    def run(data, options, name="mine.csv"):
        out = tmp_path / f"out{next(made)}"
        assert main(["clicks", str(raw(name, data) / name), str(out), *shlex.split(options)]) == 0
        return sealed.load(out / "manifest.json"), PreparedClicks(out)

    return run


@pytest.fixture
def refused(raw, tmp_path, capsys):
    """`refused(data, options, name=...)`: the error, without the folder."""

    def run(data, options, name="mine.csv"):
        out, folder = tmp_path / "refused", raw(name, data)
        assert main(["clicks", str(folder / name), str(out), *shlex.split(options)]) == 2
        assert not out.exists()  # what was refused leaves nothing behind
        return capsys.readouterr().err.replace(f"{folder}/", "").strip()

    return run


def table():
    who, what, price, tags = zip(*(row.split(",")[1:5] for row in ROWS), strict=True)
    return pa.table(
        {
            "click": pa.array([at % 2 == 1 for at in range(40)]),
            "who": pa.array(who).dictionary_encode(),
            "what": pa.array(map(int, what), pa.int32()),
            "price": pa.array([float(each) if each else None for each in price]),
            "tags": pa.array([each.split("|") for each in tags]),
            "at": pa.array(range(40), pa.timestamp("s")),
        }
    )


def parquet_bytes():
    sink = pa.BufferOutputStream()
    parquet.write_table(table(), sink)
    return sink.getvalue().to_pybytes()


FORMS = {
    "Windows line ends": (TEXT.replace("\n", "\r\n"), "mine.csv"),
    "a byte-order mark": ("\ufeff" + TEXT, "mine.csv"),
    "no newline at the end": (TEXT[:-1], "mine.csv"),
    "a header with spaces": (TEXT.replace(HEADER, " click , who,what ,price, tags,at "), "mine.csv"),
    "tabs": (TEXT.replace(",", "\t"), "mine.tsv"),
    "semicolons": (TEXT.replace(",", ";"), "mine.csv"),
    "quotes": ("\n".join(f'"{line.replace(",", chr(34) + "," + chr(34))}"' for line in [HEADER, *ROWS]), "mine.csv"),
    "gzip": (gzip.compress(TEXT.encode()), "mine.csv.gz"),
    "parquet": (parquet_bytes(), "mine.parquet"),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_log_in_many_forms(prepare, form):
    _, plain = prepare(TEXT, OPTIONS)
    data, name = FORMS[form]
    options = OPTIONS if form != "parquet" else OPTIONS.replace("--bags tags:|", "")  # its lists are bags by themselves
    _, other = prepare(data, options, name)
    assert other.names == plain.names == [0, 1, 2, 3]
    for day in plain.names:
        for array in ("labels", "ids", "dense"):
            assert np.array_equal(other.take(day, array), plain.take(day, array)), (day, array)


def test_values_by_hand(prepare):
    made, log = prepare(TEXT, OPTIONS)
    assert made["fields"] == ["who", "what", "tags"] and made["pooling"] == [1, 1, 2]
    assert made["dense"] == ["price", "no price"] and made["train_days"] == 3 and made["days"] == 4
    value = {text: text_value(text) + RESERVED for text in ("u1", "1", "a", "b", "c", "u2", "2")}
    assert log.take(0, "ids", slice(1, 3)).tolist() == [
        [value["u1"], value["1"], value["a"], value["b"]],
        [value["u2"], value["2"], value["c"], MISSING],
    ]
    price = np.log1p([at + 0.5 for at in range(30) if at != 5])  # of the training days
    dense = log.take(0, "dense")
    assert dense[1] == pytest.approx([(np.log1p(1.5) - price.mean()) / price.std(), 0], rel=1e-5)
    assert dense[5].tolist() == [0, 1]
    assert (log.read(0, slice(0, 2)).ids >> FIELD_SHIFT).tolist() == [[0, 1, 2, 2]] * 2
    assert log.read(3, slice(None)).dense.max() > 1.1  # beyond what was trained on


def test_without_a_time_days_are_drawn_and_with_a_test_file_all_train(prepare, tmp_path):
    many = "\n".join([HEADER, *ROWS * 250])
    made, log = prepare(many, CLICK)
    sizes = [log.rows(day) for day in range(10)]
    assert sum(sizes) == 10_000 and min(sizes) > 850 and max(sizes) < 1150
    assert made["train_days"] == 9
    (tmp_path / "later.csv").write_text(TEXT)
    made, log = prepare(many, f"{CLICK} --test {tmp_path / 'later.csv'}", "earlier.csv")
    assert (made["train_days"], made["days"], log.rows(10)) == (10, 11, 40)
    assert prepared_datasets.training_samples(str(log.folder)) == 10_000


def test_rare_values_share_a_code_and_buckets_hold_all(prepare):
    rare = TEXT.replace("u0,0,0.5", "once,0,0.5")
    made, log = prepare(rare, f"{OPTIONS} --min-count 2 --count-bits 16")
    assert log.take(0, "ids")[0, 0] == RARE and (log.take(0, "ids")[1:, 0] > RARE).all()
    assert made["threshold"]["least"] == 2
    _, log = prepare(TEXT, f"{OPTIONS} --buckets 100")
    assert log.take(0, "ids")[1, 0] == code_of(np.uint64(text_value("u1")), 0, 100)


def test_what_columns_are_is_found_and_told(prepare, capsys):
    header = "id,label,age,price,city,nothing,mixed"
    rows = [f"{at * 7},{at % 2},{at % 50},{at % 30}.25,Ünï{at % 5},,{'x' if at == 3 else at % 9}" for at in range(1200)]
    made, _ = prepare("\n".join([header, *rows]), "--label label")
    told = made["columns"]
    assert (made["fields"], made["dense"]) == (["age", "city", "mixed"], ["price"])
    assert told["id"].startswith("left out: it is different in every row")
    assert told["age"] == "ids; whole numbers, which --numbers takes as such"
    assert told["nothing"] == "left out: it is empty"
    assert told["mixed"] == "ids; all but 1 are numbers: --numbers takes it, and sets those rows aside"
    assert "  price    a number\n" in capsys.readouterr().out


def test_bad_rows_are_set_aside_with_their_line(prepare):
    bad = [HEADER, *ROWS, "1,u1,2,3.5,a", "maybe,u1,2,3.5,a,40", "1,u1,2,dear,a,41", '1,u1,2,"1.5",a,someday']
    made, log = prepare("\n".join(bad), f"{OPTIONS} --numbers price")
    found = [(row["line"], row["column"], row["reason"], row["text"]) for row in rejected(log.folder)]
    assert found == [
        (42, None, "wrong column count", "1,u1,2,3.5,a"),
        (43, "click", "label is neither 0 nor 1", "maybe"),
        (44, "price", "not a number", "dear"),
        (45, "at", "neither a number nor a date", "someday"),
    ]
    assert made["counts"] == {"read": 44, "written": 40, "rejected": 4}


NEGATIVE = "\n".join([HEADER, *(row.replace("0,u", "-1,u", 1) for row in ROWS)])
WHEN = ("2024-01-02 03:04:05", "02/01/2024", "Jan 2 2024", "2 January 2024", "yesterday")
TIMES = "\n".join(["click,who,at", *(f"{place % 2},u{place % 3},{WHEN[place % 5]}" for place in range(40)), ""])
REFUSED = [
    (TEXT, "--label klick", "mine.csv, line 1: no column 'klick' for --label; did you mean 'click'"),
    (TEXT, f"{OPTIONS} --numbers prise", "no column 'prise' for --numbers; did you mean 'price'?"),
    (TEXT, "", "mine.csv says whether there was a click? --label COLUMN, of click, who"),
    (TEXT, "--label who", "mine.csv, line 2, column 'who': 'u0'; expected 0 or 1"),
    (NEGATIVE, CLICK, "mine.csv, line 2, column 'click': '-1'; expected 0 or 1; or --positive N"),
    (TEXT.replace("\n1,", "\n0,"), CLICK, "rows that are trained on is a click; a model needs both"),
    (TEXT, f"{CLICK} --delimiter ;", "mine.csv, line 1: one field between ';'"),
    ("0,1,2,3.5,x,y\n" * 3, CLICK, "this looks like a row: --columns names the columns"),
    ("", CLICK, "mine.csv is empty; expected a header, then rows"),
    (HEADER, CLICK, "mine.csv: no rows after the header"),
    ("a,a,b\n1,2,3\n", "--label b", "mine.csv, line 1: two columns are called 'a'"),
    (TEXT.encode("utf-16"), CLICK, "mine.csv is UTF-16; save it as UTF-8"),
    (TEXT.replace("\n", "\r"), OPTIONS, "mine.csv, line 1: lines end with a carriage return alone"),
    (TEXT.replace("\n1,u1", '\n"1,u1', 1) + TEXT * 3, CLICK, "mine.csv, line 3: a quote that does not close"),
    (TEXT, f"{OPTIONS} --ids at", "column 'at' is given twice, as --time and as --ids"),
    (TEXT, f"{CLICK} --time who", "mine.csv, column 'who': no numbers and no dates"),
    (TEXT, f"{CLICK} --time what", "column 'what': 4 different times do not make --days 10"),
    (TIMES, f"{CLICK} --time at", "1 different times (32 of 40 rows have neither a number nor a date) do not make"),
    (TEXT, f"{CLICK} --bags tags", "--bags tags: expected COLUMN:SEPARATOR, as 'genres:|'"),
    (TEXT, f"{CLICK} --numbers who --max-rejects 5", "mine.csv, line 7, column who: not a number: 'u2'"),
    ("\n".join(ROWS), "--label a --columns a,b", "mine.csv, line 1: 6 fields, but --columns names 2"),
    (TEXT, "--lable click", "no option '--lable'; did you mean '--label'"),
]


@pytest.mark.parametrize("data, options, said", REFUSED, ids=[said for *_, said in REFUSED])
def test_what_is_wrong_is_told_with_its_place(data, options, said, refused):
    assert said in refused(data, options)


PACKED = gzip.compress(TEXT.encode() * 200)


@pytest.mark.parametrize(
    "data, name, said",
    [
        (TEXT, "mine.csv.gz", "mine.csv.gz: damaged gzip (Error -3 while decompressing data: incorrect header check)"),
        (PACKED[:500], "mine.csv.gz", "mine.csv.gz: Truncated compressed stream"),
        (PACKED[:40], "mine.csv.gz", "mine.csv.gz: truncated gzip"),
        (parquet_bytes()[:-50], "mine.parquet", "no whole parquet file"),
    ],
    ids=["no gzip", "cut off", "cut off at once", "parquet"],
)
def test_a_damaged_file_is_told(data, name, said, refused):
    assert said in refused(data, CLICK, name)


def test_files_that_are_not_there_or_differ(tmp_path, capsys):
    (tmp_path / "clicks.csv").write_text(TEXT)
    (tmp_path / "other.csv").write_text(TEXT.replace("price", "cost"))
    out = str(tmp_path / "out")
    assert main(["clicks", str(tmp_path / "click.csv"), out, "--label", "click"]) == 2
    assert "click.csv; did you mean 'clicks.csv'" in capsys.readouterr().err
    assert main(["clicks", str(tmp_path / "clicks.csv"), str(tmp_path / "other.csv"), out, "--label", "click"]) == 2
    assert "other.csv, line 1: no column 'price' for a column of" in capsys.readouterr().err
    assert main(["clicks", str(tmp_path / "clicks.csv"), "--label", "click"]) == 2
    assert "where to? python -m data_prep clicks" in capsys.readouterr().err
    assert main(["clicks", str(tmp_path / "clicks.csv"), str(tmp_path / "other.csv"), "--label", "click"]) == 2
    assert "other.csv is a file; the last name is the folder to write to" in capsys.readouterr().err


def test_movielens_as_it_comes_is_one_log(tmp_path):
    rated = [(at % 7, at % 5 + 1, at % 5 + 1, 900 + at) for at in range(60)]
    files = {
        "u.data": "".join("\t".join(map(str, row)) + "\n" for row in rated),
        "ratings.dat": "".join("::".join(map(str, row)) + "\n" for row in rated),
        "ratings.csv": "userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},{r}.0,{t}\n" for u, i, r, t in rated),
    }
    logs = []
    for name, text in files.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text(text)
        (readme := tmp_path / "README").write_text("licence")
        pack(tmp_path / f"{name}.zip", "zip", {f"ml/{name}": folder / name, "ml/README": readme})
        for raw in (folder, folder / name, tmp_path / f"{name}.zip"):
            out = tmp_path / f"out{len(logs)}"
            assert main(["ratings", str(raw), str(out)]) == 0
            logs.append(PreparedClicks(out))
    for log in logs:
        assert len(log.fields) == 2 and log.manifest["positives"] == 24  # four stars and five
        for day in logs[0].names:
            assert np.array_equal(log.take(day, "ids"), logs[0].take(day, "ids"))
            assert np.array_equal(log.take(day, "labels"), logs[0].take(day, "labels"))


def written_for_the_guides(folder):
    """What a reader has: clicks, a ratings file, triples, step times."""
    with zipfile.ZipFile(folder / "ml-100k.zip", "w") as archive:
        rated = "".join(f"{at % 37}\t{at % 53}\t{at % 5 + 1}\t{900 + at}\n" for at in range(2_000))
        archive.writestr("ml-100k/u.data", rated)
    triples = dict.fromkeys(f"{at * 7 % 41}\t{at % 3}\t{at * 11 % 43}\n" for at in range(500))
    (folder / "train.txt").write_text("".join(triples))
    took = np.random.default_rng(0).lognormal(-3, 0.2, (200, 16)) * ([1] * 12 + [2] * 4)
    steps = [f"{rank},{step},{seconds:.6f}" for step, row in enumerate(took) for rank, seconds in enumerate(row)]
    (folder / "steps.csv").write_text("\n".join(["rank,step,seconds", *steps]))


def carried_out(commands):
    programs = {"data_prep": main, "lib": lib_main}
    for command in commands:
        if "RUN" in command:  # a name that nobody knows before
            (kept,) = Path("reports/runs").glob("*/accesses.parquet")
            command = command.replace("RUN", kept.parent.name)
        words = shlex.split(command)
        program, arguments = ("lib", words[1:]) if words[0] == "lockstep" else (words[2], words[3:])
        assert programs[program](arguments) == 0, command


@pytest.mark.nightly
def test_the_guides_commands_do_what_it_says(tmp_path, monkeypatch):
    guide = Path(__file__).parents[2] / "data_prep" / "README.md"
    commands = [line for block in guide.read_text().split("```")[1::2] for line in block.strip().splitlines()]
    commands = [line.replace("laptop", "smoke") for line in commands]  # an hour
    assert len(commands) == 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path / "reports"))
    written_for_the_guides(tmp_path)
    carried_out(commands)
    assert sealed.load(tmp_path / "mine" / "manifest.json")["counts"]["written"] == 20_000


@pytest.mark.nightly
def test_the_readmes_commands_do_what_it_says(tmp_path, monkeypatch, capsys):
    """On a log of 1,000 rows, a twentieth of the guide's."""
    text = (Path(__file__).parents[2] / "README.md").read_text()
    own = text.partition("## Use your own data and cluster")[2].partition("\n## ")[0]
    commands = [line.strip() for line in own.splitlines() if line.startswith("    ")]
    names = [re.search(r"(?:data_prep|lockstep) (\w+)", command)[1] for command in commands]
    assert names == ["clicks", "compare", "advise", "advise"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path / "reports"))
    written_for_the_guides(tmp_path)
    carried_out(["python -m data_prep clicks raw --twin --rows 1000"])
    shutil.copy(tmp_path / "raw" / "clicks.csv", tmp_path / "clicks.csv")
    carried_out(commands)
    printed = capsys.readouterr().out
    assert printed.count("Fastest at any price") == 3 and printed.count("Doubt: A run is only") == 2


def test_a_number_or_a_day_that_is_none_is_set_aside(prepare):
    """1e400 became infinity, and its column NaN; 2024-02-31 became the second of March."""
    rows = [f"2024-02-{1 + place % 28:02},u{place % 7},{place}.5,{place % 2}" for place in range(60)]
    rows += ["2024-03-01,u1,1e400,1", "2024-02-31,u1,1.5,0", "1e400,u2,1.5,0", "2024-2-29,u2,1.5,1"]
    data = "\n".join(["when,user,price,click", *rows, ""])
    about, made = prepare(data, f"{CLICK} --numbers price --time when --days 3")
    assert about["rejects"] == {"neither a number nor a date": 2, "not a number": 1}
    assert all(np.isfinite(made.take(day, "dense")).all() for day in made.names)


def test_a_nested_column_is_named_and_may_be_left_out(tmp_path, capsys):
    table = pa.table({"click": [0, 1] * 20, "who": [f"u{at % 3}" for at in range(40)], "deep": [{"a": 1}] * 40})
    parquet.write_table(table, raw := tmp_path / "mine.parquet")
    command = ["clicks", str(raw), str(tmp_path / "out"), "--label", "click"]
    assert main(command) == 2
    assert "'deep': its values are nested (struct<a: int64>); --skip deep leaves it out" in capsys.readouterr().err
    assert main([*command, "--skip", "deep"]) == 0
