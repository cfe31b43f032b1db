"""Lockstep: how training workers keep in step, compared under one interface.

examples:
  lockstep list
  lockstep help gba
  lockstep train ctr-synthetic gba virtual -o workers=32 -o slowdown=0.6 -o iota=4
  lockstep train criteo-deepfm gba+all-reduce virtual -o lr=0.003 -o speeds=[1,1,0.5,2] -o store.max_rows=10000
  lockstep train ctr-synthetic mine.py:MyRule virtual -o 'row_optimizer={name: adagrad, lr: 0.1}'
  lockstep train fb15k-237-distmult sync local --profile full --data FB15k-237 -o workers=1
  lockstep compare sync gba s-easgd -o workers=16 -o slowdown=alibaba-shared-2018
  lockstep advise --workers 16 --slow 4@2x --network 10Gbit/s --model dlrm
  lockstep advise --data FOLDER --workers 16 --step 5ms --trace steps.csv --columns worker=rank,took=seconds
  lockstep explain ctr-synthetic sync -o workers=8 -o slowdown=0.6   # where its time goes
  lockstep explain --trace steps.csv --columns worker=rank,took=step_ms   # where the time of your job goes
  lockstep train kg-synthetic oac local -o accesses=true   # its history, judged
  lockstep check HISTORY   # anybody's, or a run's accesses.parquet
  lockstep run 00_quickstart --profile laptop -p seeds=5
  lockstep run all --profile laptop --resume
  lockstep claims gba --failed
  lockstep traces gba   # what it does in twenty steps, made again and compared with the stored reference trace
  lockstep calibrate --out this_machine.yaml
  lockstep train ctr-synthetic sync machine.yaml   # as calibrate writes it
  lockstep train criteo-deepfm gba virtual --profile laptop --data FOLDER   # synthetic data without --data
  lockstep train criteo-deepfm gba virtual -o slowdown=alibaba-shared-2018   # or a file of yours: data_prep trace
  python -m data_prep --list   # real data: where raw files are; then RAW -> prepared files
  python -m data_prep trace FILE
"""

import argparse
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib.errors import BadOption, LockstepError, NotSaved, unknown
from lib.workloads import PROFILES

if TYPE_CHECKING:
    from lib.results.run import Run

COMMANDS = ("notebooks.commands", "reports.commands")
"""Modules that add commands of their own: `add_to(add)`, and `lists()` of what `list` shows besides."""
PAIRS = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
OPTION = (
    "an option of whatever has it, or of a part of it; repeatable. Quantities may have units: "
    "network=10Gbit/s worker.latency=50us 'worker.launch=2 ms' server.memory=25GB/s"
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest:
        command = next(each for each in arguments or sys.argv[1:] if not each.startswith("-"))
        parser.error(f"{command} does not take {' '.join(rest)}; `lockstep {command} --help` shows what it takes")
    return run_command(options)


def run_command(options: argparse.Namespace) -> int:
    """Carry out a command, print what is wrong in a line, and return the exit code."""
    try:
        return options.command(options) or 0
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; everything that was saved before is whole", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
    except (
        OSError,
        MemoryError,
        RuntimeError,
    ) as error:  # a full disk, a name that is too long, a model that is too large
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # as torch says it
            raise
        print(f"error: {type(error).__name__.strip('_')}: {str(error)[:400]}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="lockstep", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name, command, help):
        """The command's `add_argument`."""
        sub = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        sub.set_defaults(command=command)
        return sub.add_argument

    add("list", _list, "show the workloads, protocols, clusters and notebooks that there are")
    add("help", _help, "show what a name of `list` is, and its options")("name", help="a protocol, workload or cluster")

    train = add("train", _train, "train once and print the summary")
    train("workload", help="a registered name, see `list`; or mine.py:Mine, a class of a file of yours")
    train("protocol", help="a registered name; or two, ROWS+DENSE; or mine.py:Mine")
    train("cluster", help="virtual, local or ray; or machine.yaml, as `calibrate` writes it; or mine.py:Mine")
    train("--seed", type=int, default=0, help="seed of the run (default 0)")
    train("--seeds", type=int, help="so many runs, from --seed on: a line each, and the mean with its 95 %% interval")
    train("--samples", type=int, help="samples of the pass (default: the workload's)")
    train("--profile", choices=PROFILES, help="the workload's size (default smoke)")
    train("--data", metavar="FOLDER", help="real data instead of synthetic, passed once at most; --samples for more")
    train("--force", action="store_true", help="train anew even if the run is saved already")
    train("--json", action="store_true", help="print the summary as JSON")
    train("-o", "--option", help=OPTION, **PAIRS)

    for commands_of in COMMANDS:
        importlib.import_module(commands_of).add_to(add)
    return parser


def _registries() -> dict[str, Mapping[str, type]]:
    from lib import cluster, protocols, workloads

    return {"workloads": workloads.ALL, "protocols": protocols.ALL, "clusters": cluster.ALL}


def _list(options: argparse.Namespace) -> None:
    lists = {}
    for title, registry in _registries().items():
        family = {name: f"{registry[name].family:10}" for name in registry} if title == "protocols" else {}
        lists[title] = {name: family.get(name, "") + registry.sentence(name) for name in registry}
    for commands in COMMANDS:
        lists |= importlib.import_module(commands).lists()
    for title, lines in lists.items():
        print(f"{title}:")
        width = 2 + max(map(len, lines))
        for name, sentence in lines.items():
            print(f"  {name:{width}}{sentence}")


def _help(options: argparse.Namespace) -> None:
    from lib import workloads
    from lib.options.registry import help_text

    registries = _registries().values()
    for registry in registries:
        if options.name in registry:
            make = workloads.get if registry is workloads.ALL else registry.make
            print(help_text(make(options.name)))
            return
    raise unknown("name", options.name, [name for registry in registries for name in registry])


def _train(options: argparse.Namespace) -> None:
    check_names(options.workload, options.protocol, options.cluster)
    import lib

    pairs = parse_options(options.option)
    flags = ("seed", "samples", "force", "profile", "data")
    for name in pairs.keys() & set(flags):
        raise BadOption(f"{name} has a flag of its own: --{name}")
    values = {name: value for name in flags if (value := getattr(options, name)) is not None}
    if options.seeds is not None:
        _train_seeds(options, values, pairs)
        return
    try:
        _print_summary(lib.train(options.workload, options.protocol, options.cluster, **values, **pairs), options.json)
    except NotSaved as error:
        _print_summary(error.run, options.json)
        folder = Path(tempfile.mkdtemp(prefix="lockstep-")) / "run"
        error.run.save(folder)
        raise LockstepError(f"{error.problem}. The run is kept in {folder} and may be moved there") from error


def _print_summary(run: "Run", as_json: bool) -> None:
    """Print a run's summary."""
    summary = {**run.summary, "digest": run.digest}
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    for name, value in summary.items():
        if value is not None and not isinstance(value, (dict, list)):
            print(f"{name:24}{value:,.5g}" if isinstance(value, float) else f"{name:24}{value}")


def _train_seeds(options: argparse.Namespace, values: dict[str, Any], pairs: dict[str, Any]) -> None:
    """A line for each seed, then the mean of each figure with its 95 % interval."""
    import pandas as pd
    from scipy import stats

    import lib

    if options.seeds < 2:
        raise BadOption(f"--seeds is {options.seeds}; expected 2 or more")
    job = {name: getattr(options, name) for name in ("workload", "protocol", "cluster")}
    first = values.pop("seed")
    runs = lib.sweep([{**job, **values, **pairs, "seed": seed} for seed in range(first, first + options.seeds)])
    table = pd.DataFrame([{k: v for k, v in run.summary.items() if type(v) in (int, float)} for run in runs])
    table = table.loc[:, table.nunique() > 1]  # what no seed changes is not a result
    table.index = pd.RangeIndex(first, first + options.seeds, name="seed")
    half = table.sem() * stats.t.ppf(0.975, len(table) - 1)
    ends = pd.DataFrame({"mean": table.mean(), "low": table.mean() - half, "high": table.mean() + half}).T.to_dict()
    if options.json:
        print(json.dumps({"runs": table.reset_index().to_dict("records"), "figures": ends}, indent=1))
        return
    print(table.to_string(float_format="{:,.5g}".format))
    for name, found in ends.items():
        print(f"{name:24}{found['mean']:,.5g} [{found['low']:,.5g}, {found['high']:,.5g}]")


def check_names(workload: str, protocol: str, cluster: str) -> None:
    """Refuse a misspelt name before anything that trains is imported."""
    for registry, names in zip(_registries().values(), ([workload], protocol.split("+"), [cluster]), strict=True):
        for name in names:
            if name not in registry and not re.search(r"\.py(:|$)|\.ya?ml$", name):
                raise unknown(registry.what, name, registry)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """The options of a command line, each of which stands there once."""
    found: dict[str, Any] = {}
    for name, value in map(parse_option, texts):
        if name in found:
            raise BadOption(f"{name} is given twice, as {found[name]!r} and as {value!r}; leave one of them out")
        found[name] = value
    return found


def parse_option(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE and read the value as YAML: 32 is a number, [64, 32] a list, true a truth value."""
    from lib.options import yaml_source

    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadOption(f"{text!r} is no NAME=VALUE")
    return name.strip().replace("-", "_"), yaml_source.value(value)
