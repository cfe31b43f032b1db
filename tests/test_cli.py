"""The command line as a new user meets it."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import lib
from lib import Node, Run, paths, protocols, workloads
from lib import cluster as clusters
from lib.cluster.slowdowns import get
from lib.command_line import main
from lib.store.optim import SGD, Adam

TRAIN = ["train", "quadratic", "gba", "virtual", "--samples", "320", "-o", "workers=2"]


def test_list_names_everything_that_is_registered(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in [*workloads.ALL, *protocols.ALL, *clusters.ALL, "00_quickstart", "92_your_own_protocol"]:
        assert f"  {name} " in printed


def test_train_prints_the_summary(capsys):
    assert main(TRAIN) == 0
    printed = capsys.readouterr().out
    assert "issued                  10" in printed
    assert "virtual_seconds" in printed
    assert "wall_seconds" not in printed  # a virtual run has none


def test_train_as_json_finds_the_saved_run_again(capsys):
    assert main([*TRAIN, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*TRAIN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert first["issued"] == 10


ADVISE = ["advise", "--workers=4"]
MISTAKES = [
    (["train", "quadratc", "gba", "virtual"], "unknown workload 'quadratc'; did you mean 'quadratic'"),
    (["train", "quadratic", "gba", "vitual"], "or a file: machine.yaml, as `calibrate` writes it, or mine.py:Mine"),
    ([*TRAIN, "-o", "iotta=3"], "no option 'iotta'; did you mean 'iota'"),
    ([*TRAIN, "-o", "iota"], "'iota' is no NAME=VALUE"),
    ([*TRAIN, "-o", "seed=3"], "seed has a flag of its own: --seed"),
    ([*TRAIN, "-o", "iota=abc"], "gba: iota must be a number, not 'abc'"),
    ([*TRAIN[:-2], "-o", "workers=many"], "virtual cluster: workers must be a whole number, not 'many'"),
    ([*TRAIN, "-o", "worker=32"], "worker must be Node's fields, such as {flops: ..., launch: ...}, not 32; did you"),
    ([*TRAIN, "-o", "worker.cors=2"], "worker has no option 'cors'; did you mean 'cores'"),
    ([*TRAIN, "-o", "worker.cores=two"], "node: cores must be a whole number, not 'two'"),
    ([*TRAIN, "-o", "slowdown=abc"], "virtual cluster: slowdown is 'abc'; expected a number, a slowdown's name"),
    ([*TRAIN, "-o", "speeds=[1, 2, 3]"], "virtual cluster: 3 speeds for 2 workers"),
    ([*TRAIN, "-o", "save=maybe"], "train: save must be true or false, not 'maybe'"),
    ([*TRAIN, "-o", "dense_optimizer=adm"], "dense_optimizer.name: no optimiser is called 'adm'; did you mean 'adam'"),
    ([*TRAIN, "-o", "lr=0"], "lr must be positive, not 0"),
    ([*TRAIN, "-o", "noise=["], "cannot read '['"),
    ([*TRAIN, "--seed", "-1"], "train: seed must be 0 or more, not -1"),
    (["train", "quadratic", "gba+allreduce", "virtual"], "unknown protocol 'allreduce'; did you mean 'all-reduce'"),
    (["train", "quadratic", "mine.py:Mine", "virtual"], "mine.py: there is no such file"),
    ([*TRAIN, "-o", "batch-size=8", "-o", "batch_size=9"], "batch_size is given twice, as 8 and as 9"),
    ([*TRAIN, "-o", "iota=010"], "iota must be a number, not '010'"),
    ([*TRAIN, "-o", "samples=1:30"], "samples has a flag of its own"),
    (["train", "quadratic", "gba", "machine.yaml"], "machine.yaml: cannot be read as text"),
    (["run", "92_your_own_protocol", "-p", "seeds=0"], "parameter 'seeds' must be at least 1, not 0"),
    (["run", "00_quickstrat"], "did you mean '00_quickstart'"),
    (["run", "00_quickstart", "-p", "seds=3"], "seeds"),
    (["help", "gbaa"], "did you mean 'gba'"),
    (["claims", "gbaa"], "unknown paper, page or claim 'gbaa'; did you mean 'gba'"),
    (["claims", "gba.f6-iotta"], "unknown paper, page or claim 'gba.f6-iotta'; did you mean 'gba.f6-iota'"),
    (["claims", "persia/figure_8_scale"], "did you mean 'persia/figure_8_scalability'"),
    (["compare", "sync", "async", "--figure", "a.txt"], "'a.txt'; expected a file that ends with .png, .svg or .pdf"),
    (["explain"], "give a workload and a protocol"),
    (["explain", "clicks-light", "sync", "local"], "cannot be timed without a cause"),
    (["advise", "--slow=4@2x"], "--slow is '4@2x', of how many? Give --workers too"),
    ([*ADVISE, "--slow=4"], "--slow is '4'; expected as 4@2x: 4 of the --workers take twice as long"),
    ([*ADVISE, "--slow=0@2x"], "--slow is '0@2x'; expected as 4@2x"),
    ([*ADVISE, "--slow=2@0x"], "--slow is '2@0x'; expected as 4@2x"),
    ([*ADVISE, "--slow=x@2"], "--slow is 'x@2'; expected as 4@2x"),
    ([*ADVISE, "--slow=5@2x"], "--slow is '5@2x', but there are 4 --workers"),
    ([*ADVISE, "--network=10Gbits"], "'10Gbits'; expected bytes a second, such as 10Gbit/s or 25 GB/s"),
    ([*ADVISE, "--step=5"], "--step is '5'; expected seconds, such as 50us or 2 ms"),
    ([*ADVISE, "--step=fast"], "--step is 'fast'; expected seconds"),
    ([*ADVISE, "--step=-2ms"], "--step is '-2ms'; expected seconds"),
    ([*ADVISE, "--step=5GB"], "--step is '5GB'; expected seconds"),
]


@pytest.mark.parametrize("arguments, sentence", MISTAKES)
def test_errors_are_one_sentence_that_helps(arguments, sentence, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and sentence in printed.err and "Traceback" not in printed.err
    assert arguments[0] != "claims" or "dssync/" not in printed.err, "it lists no names of other papers"


def summary(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_arguments_that_a_command_does_not_take_are_named_with_its_help(capsys):
    with pytest.raises(SystemExit):
        main(["advise", "criteo-dlrm", "--workers", "4"])
    assert "advise does not take criteo-dlrm; `lockstep advise --help` shows what it takes" in capsys.readouterr().err


def test_what_the_command_line_sets_is_what_train_is_given(capsys):
    """Optimisers, their rates, a pair, a preset, a part of an option: the same run as from Python."""
    options = ["lr=0.05", "dense_optimizer={name: adam, beta1: 0.8}", "slowdown=alibaba-shared-2018", "server.cores=2"]
    said = summary(capsys, *TRAIN, *(word for option in options for word in ("-o", option)), "-o", "row_optimizer=sgd")
    own = {"dense_optimizer": Adam(lr=0.05, beta1=0.8), "row_optimizer": SGD(lr=0.05)}
    workload = workloads.get("quadratic", samples=320, **own)
    server = Node(cores=2, bandwidth=3.125e9)
    cluster = lib.VirtualCluster(workers=2, slowdown=get("alibaba-shared-2018"), server=server)
    assert lib.train(workload, "gba", cluster, save=False).digest == said["digest"]


def test_a_pair_is_two_names(capsys):
    said = summary(capsys, "train", "ctr-synthetic", "async+gba", "virtual", "--samples", "1280", "-o", "iota=1")
    pair = lib.protocols.Pair(sparse="async", dense=lib.protocols.get("gba", iota=1))
    assert lib.train("ctr-synthetic", pair, "virtual", samples=1280, save=False).digest == said["digest"]


MINE = """
from dataclasses import dataclass
from typing import ClassVar
from lib import Phase, Schedule
from lib.protocols.baselines import BSP, Async
from lib.tasks.quadratic import QuadraticBowl

@dataclass(frozen=True, kw_only=True)
class Halves(BSP):
    name: ClassVar = "halves"
    share: float = 0.5

@dataclass(frozen=True, kw_only=True)
class Bowl(QuadraticBowl):
    name: ClassVar = "bowl"
    dim: int = 4

SWITCH = Schedule(phases=[Phase(protocol="sync", steps=2), Phase(protocol="gba")])
"""


UNFINISHED = """
from lib import ServerRule

class Unfinished(ServerRule):
    name = "unfinished"
"""


FILES = {
    "unfinished": (UNFINISHED, "Unfinished has no on_push, as ServerRule demands"),
    "exits": ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
    "divides": ("1 / 0", "ZeroDivisionError: division by zero"),
    "json": ("", "another module called 'json'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_ones_own_that_makes_no_rule_is_named(name, tmp_path, capsys):
    text, words = FILES[name]
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    assert main(["train", "quadratic", str(path), "virtual"]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and words in said


def test_a_run_that_cannot_be_saved_is_shown_and_kept_elsewhere(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("LOCKSTEP_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    replaced = paths.replace_folder
    monkeypatch.setattr(paths, "replace_folder", lambda new, to: (full if "reports" in str(to) else replaced)(new, to))
    assert main([*TRAIN, "--json"]) == 2
    printed = capsys.readouterr()
    assert "No space left on device" in printed.err and "reports" in printed.err
    [folder] = tmp_path.glob("lockstep-*")
    assert f"kept in {folder / 'run'}" in printed.err
    assert Run.load(folder / "run").digest == json.loads(printed.out)["digest"]


@pytest.mark.parametrize("text", ["DefaultCPUAllocator: can't allocate memory", "another"])
def test_a_model_that_is_too_large_is_an_error_in_a_sentence(text, monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError(text)

    monkeypatch.setattr(lib, "train", fails)
    if text == "another":
        with pytest.raises(RuntimeError):
            main(TRAIN)
    else:
        assert main(TRAIN) == 2 and "error: RuntimeError: DefaultCPUAllocator" in capsys.readouterr().err


def test_a_name_that_is_too_long_is_an_error_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setenv("LOCKSTEP_REPORTS", "/tmp/" + "x" * 300)
    assert main(TRAIN) == 2
    assert "File name too long" in capsys.readouterr().err


def test_rules_workloads_and_schedules_of_ones_own_file(capsys, tmp_path):
    path = tmp_path / "mine_on_the_command_line.py"
    path.write_text(MINE)
    only, rest = str(path), ("virtual", "--samples", "320", "-o", "workers=2")
    said = summary(capsys, "train", "quadratic", f"{only}:Halves", *rest, "-o", "share=0.25", "-o", "size=3")
    assert lib.train("quadratic", "bsp", "virtual", samples=320, size=3, workers=2, save=False).digest == said["digest"]
    mine = lib.train("quadratic", only, "virtual", samples=320, size=3, workers=2, save=False)  # the only rule there
    assert mine.digest == said["digest"]
    said = summary(capsys, "train", f"{only}:Bowl", f"{only}:SWITCH", *rest, "-o", "dim=3")
    assert [stage["protocol"] for stage in said["stages"]] == ["sync", "gba"]
    for arguments, sentence in (
        (("quadratic", f"{only}:Halfs"), "unknown protocol of"),
        (("quadratic", f"{only}:Bowl"), "Bowl is no protocol"),
        (("quadratic", f"{only}:Halves", "-o", "share=much"), "halves: share must be a number, not 'much'"),
        (("quadratic", f"{only}:SWITCH", "-o", "restart=1"), "'restart' is an option of 'sync > gba', which was given"),
    ):
        assert main(["train", *arguments[:2], *rest, *arguments[2:]]) == 2
        assert sentence in capsys.readouterr().err


def test_a_cluster_from_a_file(capsys, tmp_path):
    (tmp_path / "four.yaml").write_text("speeds: [1, 1, 0.5, 1]\nmeasured: {cores: 2}\n")
    said = summary(capsys, "train", "quadratic", "gba", str(tmp_path / "four.yaml"), "--samples", "640")
    run = lib.train("quadratic", "gba", "virtual", samples=640, speeds=(1, 1, 0.5, 1), save=False)
    assert run.digest == said["digest"]
    assert main(["train", "quadratic", "gba", str(tmp_path / "four.yaml"), "-o", "workers=3"]) == 2
    assert "4 speeds for 3 workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["train", "quadratc", "gba", "virtual"], ["run", "00_quickstrat"], ["--help"], ["train", "--help"]],
)
def test_names_are_told_without_importing_what_trains(arguments):
    program = f"import sys; from lib.command_line import main; main({arguments!r})"
    heavy = "print(*sorted({'torch', 'ray', 'numba', 'pandas'} & sys.modules.keys()), file=sys.stderr)"
    program = f"import atexit, sys; atexit.register(lambda: {heavy})\n{program}"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.stderr.splitlines()[-1] == "" and "Traceback" not in said.stderr


def test_claims_as_json(capsys):
    assert main(["claims", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert {claim["id"] for claim in claims} >= {"quickstart.gba-auc"}
    assert all("verdict" in claim for claim in claims)
    assert any(claim["word, published"] == "reproduced" for claim in claims), "what was published stands beside"
    assert main(["claims"]) == 0
    last = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()[-4:]]
    assert last == ["paper", "estimate", "target", "check"], "kinds are counted apart"


@pytest.mark.parametrize("of, first", [("gba", "gba."), ("oac/checker", "oac."), ("gba.f6-iota", "gba.f6-iota ")])
def test_claims_of_a_paper_a_page_or_one(of, first, capsys):
    assert main(["claims", of]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.strip().startswith(first) for line in lines)


def test_claims_say_how_many_seeds_find_what_they_seek(capsys):
    """By the spread of what is published: the formula has its own tests."""
    assert main(["claims", "gba", "--plan"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "case", "seeds", "needed"] and len(lines) > 20
    assert all(line.split()[0].startswith("gba.") and int(line.split()[-1]) >= 2 for line in lines)
    assert main(["claims", "oac.example", "--plan"]) == 0
    assert capsys.readouterr().out == "no stored run says what spread there is: run a pilot\n"


def test_claims_that_did_not_hold(capsys):
    assert main(["claims", "--failed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bad = {"contradicted", "not comparable", "missed", "failed"}
    assert found and all({each["word"], each["word, published"]} & bad for each in found)


@pytest.mark.parametrize("name", [*protocols.ALL, *workloads.ALL, *clusters.ALL])
def test_help_names_every_option(name, capsys):
    assert main(["help", name]) == 0
    told = capsys.readouterr().out
    registry = next(each for each in (protocols.ALL, workloads.ALL, clusters.ALL) if name in each)
    for field in dataclasses.fields(registry[name]):
        assert not field.init or f"\n  {field.name} = " in told
    assert told.splitlines()[0].strip()


def test_help_says_what_an_option_does_and_what_it_is_unless_told(capsys):
    assert main(["help", "gba"]) == 0
    told = capsys.readouterr().out
    words = "Threshold of tolerance: a gradient more than this many steps old has weight 0."
    assert f"  iota = 3.0\n      {words}\n" in told


def test_several_seeds_are_a_line_each_and_the_mean_with_its_interval(capsys):
    options = ["clicks-light", "sync", "virtual", "--samples", "2000", "--seeds", "3", "-o", "workers=2", "--json"]
    assert main(["train", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    found = [run["auc"] for run in told["runs"]]
    assert [run["seed"] for run in told["runs"]] == [0, 1, 2] and len(set(found)) == 3
    auc, half = told["figures"]["auc"], 4.3027 * np.std(found, ddof=1) / 3**0.5
    assert auc["mean"] == pytest.approx(sum(found) / 3)
    assert (auc["low"], auc["high"]) == pytest.approx((auc["mean"] - half, auc["mean"] + half), rel=1e-4)
