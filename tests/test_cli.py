"""The command line as a new user meets it."""

from __future__ import annotations

import json

import pytest

from lib.__main__ import main

TRAIN = ["train", "quadratic", "gba", "virtual", "--samples", "320", "-o", "workers=2"]


def test_list_names_everything_that_is_registered(capsys):
    from lib import cluster, protocols, workloads

    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in [*workloads.ALL, *protocols.ALL, *cluster.ALL, "00_quickstart", "92_your_own_protocol"]:
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "quadratc", "gba", "virtual"], "unknown workload 'quadratc'; did you mean 'quadratic'"),
        (["train", "quadratic", "gbba", "virtual"], "unknown protocol 'gbba'; did you mean 'gba'"),
        (["train", "quadratic", "gba", "vitual"], "unknown cluster 'vitual'; did you mean 'virtual'"),
        ([*TRAIN, "-o", "iotta=3"], "no option 'iotta'; did you mean 'iota'"),
        ([*TRAIN, "-o", "iota"], "'iota' is no NAME=VALUE"),
        ([*TRAIN, "-o", "seed=3"], "seed has a flag of its own: --seed"),
        ([*TRAIN, "-o", "iota=-1"], "gba: iota must be 0 or more"),
        (["run", "00_quickstrat"], "did you mean '00_quickstart'"),
        (["run", "00_quickstart", "-p", "seds=3"], "seeds"),
        (["bench", "sore"], "unknown benchmark 'sore'"),
    ],
)
def test_errors_are_one_sentence_that_helps(arguments, sentence, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert sentence in printed.err
    assert "Traceback" not in printed.err


def test_numbers_may_be_written_as_people_write_them(capsys):
    assert main([*TRAIN, "-o", "iota=1e1", "--json"]) == 0
    assert main([*TRAIN, "-o", "iota=10", "--json"]) == 0


def test_claims_as_json(capsys):
    assert main(["claims", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert {claim["id"] for claim in claims} >= {"quickstart.gba-auc"}
    assert all("verdict" in claim for claim in claims)


def test_doctor_says_what_there_is(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for word in ("cores", "memory", "gpu", "torch", "ray", "kernel python3", "reports"):
        assert word in printed


def test_help_reads_well(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for command in ("list", "train", "run", "report", "claims", "bench", "doctor", "examples"):
        assert command in printed
