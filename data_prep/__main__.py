"""The command line: python -m data_prep."""

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from data_prep import manifest
from data_prep.datasets import ALL, get
from data_prep.job import REJECTS
from lib.errors import BadOption, LockstepError, unknown_option

EXAMPLES = """examples:
  python -m data_prep clicks mine.csv prepared/mine --label click --time hour --bags 'tags:|'
  python -m data_prep clicks may.parquet june.csv.gz prepared/mine --label click --numbers price,age --test july.csv
  python -m data_prep ratings ml-100k.zip prepared/movielens
  python -m data_prep --list
  python -m data_prep criteo-kaggle raw/criteo prepared/criteo --min-count 10
  python -m data_prep criteo-1tb raw/days prepared/1tb --buckets 10000000 --train-days 12
  python -m data_prep avazu raw/twin --twin --rows 50000
  python -m data_prep avazu raw/twin prepared/twin
  python -m data_prep avazu raw/avazu prepared/avazu --check
  python -m data_prep criteo-kaggle train.txt prepared/mine --test later.txt
  python -m data_prep triples graph.csv prepared/graph --test held_out.csv
  python -m data_prep fb15k-237 FB15k-237.tar.gz prepared/fb15k-237
  python -m data_prep trace batch_times.csv slowdown.yaml
  python -m data_prep bench
"""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["trace"]:
            from data_prep.traces import command

            return command.main(arguments[1:])
        parser = _parser()
        options, strange = parser.parse_known_args(arguments)
        if strange:
            raise unknown_option("python -m data_prep", strange[0], parser._option_string_actions)
        return _run(options)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0
    except (LockstepError, OSError) as error:  # a disk that is full, a folder that may not be read
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command to go on", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    if options.list:
        print("\n\n".join(kind.describe() for kind in ALL.values()))
        return 0
    if options.dataset == "bench":
        from data_prep import bench

        print(bench.measure().to_string(index=False))
        return 0
    if options.dataset is None or not options.raw:
        raise BadOption("which data set, and where are its raw files? `python -m data_prep --help` has examples")
    kind = get(options.dataset)
    raw, *more = options.raw
    out = more.pop() if more else None
    if more and not kind.several:
        raise BadOption(f"{kind.name} takes RAW and OUT, not {', '.join(map(str, options.raw))}")
    names = {field.name for each in ALL.values() for field in fields(each.options)}
    chosen = {name: value for name in sorted(names) if (value := getattr(options, name, None)) is not None}
    for name in chosen:
        if name not in kind.takes:
            valid = [f"--{each.replace('_', '-')}" for each in kind.takes]
            raise unknown_option(f"data set {kind.name!r}", f"--{name.replace('_', '-')}", valid)
    held_out = {role: getattr(options, role) for role in ("valid", "test") if getattr(options, role) is not None}
    for role in held_out:
        if role not in kind.roles:
            valid = [f"--{each}" for each in kind.roles]
            raise unknown_option(f"data set {kind.name!r}", f"--{role}", valid)
    if options.twin and options.rows < 1:
        raise BadOption(f"--rows is {options.rows}; expected 1 or more")
    if options.twin:
        print(*(f"{name}: {value}" for name, value in kind.twin(raw, options.rows, options.seed).items()), sep="\n")
        return 0
    if options.check:
        return _check(kind, raw, out)
    if out is None:
        raise BadOption(f"where to? python -m data_prep {kind.name} {raw} OUT")
    if out.is_file():
        raise BadOption(f"{out} is a file; the last name is the folder to write to")
    made = kind.prepare(raw, out, kind.options(**chosen), held_out, more)
    print(manifest.summary(made, out / REJECTS))
    if made["kind"] == "clicks":
        print(f"now: lockstep train ctr-synthetic sync virtual --data {out}")
        print(f"or:  lockstep advise --data {out} --workers 16 --step 5ms")
    return 0


def _names(text: str) -> list[str]:
    """Names between commas; one that has a comma is quoted."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def _check(kind, raw: Path, out: Path | None) -> int:
    """Raw files against what was published, prepared ones against their manifest. 1 if anything is wrong."""
    faults = manifest.check_raw(kind, raw) + ([] if out is None else manifest.check(out))
    print("\n".join(faults) or "all is as it should be")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep",
        description="Official raw files to columnar files, with a manifest.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "dataset",
        nargs="?",
        help="a name of --list; trace: fit a slowdown, see `trace --help`; bench: speed against pyarrow",
    )
    add(
        "raw",
        nargs="*",
        type=Path,
        metavar="RAW OUT",
        help="the folder with the raw files, or the file where there is one (of clicks several); last the folder to write to",
    )
    add("--list", action="store_true", help="where each data set comes from, its licence, sizes and checksums")
    add("--check", action="store_true", help="compare RAW with the published checksums, and OUT with its manifest")
    add("--sample", type=int, metavar="N", help="only the first N rows of each file")
    add("--buckets", type=int, metavar="N", help="hash each field's values into N buckets (default: keep them)")
    add("--min-count", type=int, metavar="N", help="values seen less often on the training days share one code")
    add("--count-bits", type=int, metavar="N", help="2^(N+1) bytes count the values (default 26: 128 MiB)")
    add(
        "--train-days",
        type=int,
        metavar="N",
        help="the first N days, on which values are counted (default: all but one)",
    )
    add("--valid", type=Path, metavar="FILE", help="a file of its own for the validation split, where RAW has none")
    add("--test", type=Path, metavar="FILE", help="a file of its own to be judged by, where RAW has none")
    add("--order", metavar="LETTERS", help="triples: where head, relation and tail stand (default hrt)")
    add("--history", type=int, metavar="N", help="behaviours kept of each sample (default 50)")
    add("--max-rejects", type=int, metavar="N", help="bad rows to set aside before giving up (default 1000)")
    add("--workers", type=int, metavar="N", help="threads (default: one for each core)")
    own = parser.add_argument_group(
        "clicks and ratings", "what a column is that is not named here, is found and told"
    ).add_argument
    own("--label", "--rating", metavar="COLUMN", help="the column that says whether there was a click: 0 or 1")
    own("--positive", type=float, metavar="N", help="the label from which on it is a click (of ratings 4)")
    own("--numbers", type=_names, metavar="A,B", help="columns of numbers; empty fields have an input of their own")
    own("--ids", type=_names, metavar="A,B", help="columns of ids: words, or whole numbers that only tell apart")
    own("--bags", action="append", metavar="COLUMN:SEP", help="a column of several ids, as 'tags:|'; repeatable")
    own("--longest", type=int, metavar="N", help="ids of a bag that are kept, the first (default 20)")
    own("--skip", type=_names, metavar="A,B", help="columns to leave out")
    own("--time", metavar="COLUMN", help="cut the days by this column, numbers or dates; without it, at random")
    own("--days", type=int, metavar="N", help="days of equally many rows, the last to be judged by (default 10)")
    own("--columns", type=_names, metavar="A,B,...", help="the columns' names, where the file has no header")
    own("--delimiter", metavar="C", help="what stands between the columns (default: found in the first line)")
    add("--twin", action="store_true", help="write a synthetic twin to RAW, in the raw format, whose truth is known")
    add("--rows", type=int, default=20_000, metavar="N", help="rows of the twin (default 20000)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the twin (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
