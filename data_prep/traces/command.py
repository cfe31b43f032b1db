"""python -m data_prep trace: a slowdown fitted to a trace, as YAML that `lib`'s clusters take."""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from data_prep.traces.fitting import fit, fit_shared
from data_prep.traces.formats import FORMATS, Trace, read_trace, recognised
from data_prep.traces.quality import better, quality
from lib.cluster.slowdowns import Slowdown, presets
from lib.errors import BadOption
from lib.options.checked import to_plain
from lib.paths import write_text_atomic

PLAYED = 200_000
"""Samples that the slowdown is played for, about, to see how near it is."""

EXAMPLES = """examples:
  python -m data_prep trace batch_times.csv slowdown.yaml
  python -m data_prep trace steps.csv slowdown.yaml --columns worker=rank,took=step_seconds
  lockstep train ctr-synthetic gba virtual -o slowdown=slowdown.yaml
  python -m data_prep trace machine_usage.csv --gap 27000 --shared
  python -m data_prep trace --list

A file of your own job: comma-separated values with a header; worker, time (seconds, when the step began) and took (how long it
was: seconds, unless the column's name ends with _ms, _us or _ns). With another header, --columns says which of its columns these
are, and in which unit: took=duration:ms.
"""


def pairs(text: str) -> dict[str, str]:
    """`--columns` as a mapping."""
    if not all(part.count("=") == 1 for part in text.split(",")):
        raise BadOption(f"--columns is {text!r}; expected worker=A,time=B,took=C with the names of the file's columns")
    return dict(pair.split("=", 1) for pair in text.split(","))


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{name}: {each.source}\n  carries: {each.carries}" for name, each in presets().items()))
        return 0
    if options.file is None:
        raise BadOption("which trace? `python -m data_prep trace --help` has examples")
    _, text = fitted(options.file, options.gap, options.columns, options.shared)
    if options.out is None:
        print(text, end="")
    else:
        write_text_atomic(options.out, text)
        print("".join(line + "\n" for line in text.splitlines() if line.startswith("#")), end="")
    return 0


def fitted(
    path: Path, gap: float | None = None, columns: Mapping[str, str] | None = None, shared: bool = False
) -> tuple[Trace, str]:
    """The trace in a file, and the document of the slowdown that is fitted to it."""
    trace = read_trace(path, gap, columns)
    slowdown, remarks = (fit_shared(trace), ()) if shared else fit(trace)
    slowdown, doubts = (slowdown, ()) if trace.daily else better(slowdown, trace)  # no lognormal knows the hours
    return trace, document(slowdown, doubts or remarks, trace, recognised(path, columns))


def document(slowdown: Slowdown, remarks: Sequence[str], trace: Trace, format: str) -> str:
    """The slowdown as YAML, with what it was fitted to and how near it is as comments."""
    found = quality(slowdown, trace, seeds=max(1, min(10, PLAYED // len(trace.table))))
    said = [
        f"fitted to {trace.name} ({format}): {found['samples']:,} samples of {found['workers']} workers, "
        f"one in {trace.step:.4g} s",
        *([f"a step takes {trace.took:.4g} s (median)"] if trace.took else []),
        f"distance of the factors' distributions (KS): {found['ks']:.3f}; of one lognormal: {found['ks_lognormal']:.3f}",
        f"99 % quantile: {found['q99']:.3f} in the trace, {found['q99_played']:.3f} played",
        *(
            [
                f"the slowest worker of a step: {found['pace']:+.1%} off; with one lognormal {found['pace_lognormal']:+.1%}"
            ]
            if math.isfinite(found["pace"])
            else []
        ),
        *(
            f"autocorrelation at {lag} steps: {found[f'correlation_{lag}']:.2f} in the trace, "
            f"{found[f'correlation_{lag}_played']:.2f} played"
            for lag in (1, 5, 20)
            if math.isfinite(found[f"correlation_{lag}"])
        ),
        *remarks,
        "how far it carries to other jobs, this trace cannot tell; between two jobs of one cluster a KS of 0.3 has been seen",
    ]
    body = yaml.safe_dump(to_plain(slowdown), sort_keys=False, default_flow_style=None, width=120)
    return "".join(f"# {line}\n" for line in said) + body


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m data_prep trace",
        description="Fit a slowdown to a trace of a real cluster. Formats, told from the file: "
        + ", ".join(FORMATS)
        + ".",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", nargs="?", type=Path, metavar="FILE", help="the trace")
    add("out", nargs="?", type=Path, metavar="OUT.yaml", help="the file to write (default: print it)")
    add("--gap", type=float, metavar="SECONDS", help="the longest silence of a worker that is accepted")
    add("--columns", type=pairs, metavar="worker=A,time=B,took=C", help="where these stand, whatever they are called")
    add("--shared", action="store_true", help="machines that others use too: their shares in use through the day")
    add("--list", action="store_true", help="the presets: what they were fitted to, and how far they carry")
    return parser
