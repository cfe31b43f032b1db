"""Sealed seeds: a block for each state of a paper's rules, drawn by nobody else, and whoever draws them again shows."""

import json

import pandas as pd
import pytest

import lib
from lib import paths, seeds
from lib.command_line import main
from lib.errors import BadOption
from lib.seeds import BLOCK, JUDGING, SEALED
from reports import claims, runner
from reports.claims import sealed_runs
from tests.reports.conftest import CELLS, JUDGED, PARAMETERS
from tests.reports.test_claims import GOOD, results_of


def test_each_state_of_a_papers_rules_has_seeds_that_no_other_has(repository):
    first = repository.commit(GOOD)
    assert sealed_runs.draw("gba") == SEALED.start
    assert sealed_runs.draw("gba") == SEALED.start, "the same rules, the same seeds"
    second = repository.commit(GOOD.replace("0.2", "0.25"))
    assert sealed_runs.draw("gba") == SEALED.start + BLOCK
    repository.commit(GOOD)
    assert sealed_runs.draw("gba") == SEALED.start, "the rules of before are no new ones"
    repository.notebook("gba/one", *CELLS, parameters=PARAMETERS.replace("0.5", "0.6"))
    third = repository.commit(GOOD)
    assert sealed_runs.draw("gba") == SEALED.start + 2 * BLOCK, "a setting is judged too"
    kept = [json.loads((paths.reference() / "sealed" / f"gba-{n}.json").read_text()) for n in (1, 2, 3, 4, 5)]
    assert [each["time"] for each in kept] == [1, 2, 1, 3, 1]
    assert [kept[n]["commit"] for n in (0, 2, 4)] == [first, second, third]
    assert len({each["rules"] for each in kept}) == 3


def test_a_run_that_goes_on_draws_nothing_anew(repository):
    repository.commit(GOOD)
    assert sealed_runs.draw("gba", again=True) == sealed_runs.draw("gba", again=True) == SEALED.start
    assert len(sealed_runs.records("gba")) == 1


def test_one_page_goes_on_with_what_its_paper_drew(repository):
    repository.commit(GOOD)
    with pytest.raises(BadOption, match="no seeds were drawn for today's rules of gba"):
        sealed_runs.draw("gba/one", again=True)
    assert sealed_runs.records("gba") == []
    assert sealed_runs.draw("gba") == sealed_runs.draw("gba/one", again=True) == SEALED.start
    assert len(sealed_runs.records("gba")) == 1


def test_what_is_not_committed_is_not_sealed(repository):
    repository.commit(GOOD)
    repository.claims(GOOD.replace("0.2", "0.25"), "gba")
    with pytest.raises(BadOption, match="a sealed run is of committed rules, settings and metrics: commit what"):
        sealed_runs.draw("gba")
    assert sealed_runs.records("gba") == []


def test_a_sealed_run_is_of_a_whole_paper_as_it_is_published(repository, capsys):
    repository.commit(GOOD)
    for words in (["gba/one", "--profile", "laptop"], ["gba"], ["gba", "--profile", "laptop", "-p", "rate=0.1"]):
        assert main(["run", *words, "--sealed"]) == 2
    said = capsys.readouterr().err.splitlines()
    whole = "error: 'gba/one' is no paper with claims; a sealed run is of all of a paper's: gba"
    assert said[0] == f"{whole}; with --resume one page goes on with its paper's"
    assert (
        said[1:] == ["error: a sealed run is what is published: at laptop or full, without parameters of its own"] * 2
    )
    assert sealed_runs.records("gba") == []


def test_the_command_line_draws_them_and_tells_the_notebooks(repository, monkeypatch):
    """The kernel inherits the block, and its verdict is counted."""
    repository.notebook("gba/one", "# One", JUDGED, parameters=PARAMETERS)
    repository.commit(GOOD)
    monkeypatch.setenv(seeds.DRAWN, str(SEALED.stop))  # restored after the test
    assert main(["run", "gba", "--profile", "laptop", "--sealed"]) == 0
    monkeypatch.setenv(seeds.DRAWN, str(SEALED.stop))
    (found,) = claims.verdicts()
    assert (found.word, found.counts, found.sealed) == ("reproduced", True, SEALED.start)
    assert found.remarks == ("of the sealed run",)
    assert found.command == "lockstep run gba --profile laptop --sealed"
    (experiment,) = runner.resolve("gba")
    assert not runner.is_complete(experiment, "laptop"), "what was sealed is no ordinary run"
    results = pd.DataFrame(json.loads(claims.verdict_file("a.b", repository.reports).read_text())["results"])
    assert sorted(set(results["seed"])) == [*SEALED[:5]]
    sealed_runs.draw("gba")
    (found,) = claims.verdicts()
    assert found.remarks == ("its sealed seeds were drawn 2 times",), "a second run says that it is one"


def test_a_rule_that_came_after_its_sealed_run_is_marked(repository):
    before, after = repository.commit(""), repository.commit(GOOD)
    for commit, late in ((before, True), (after, False)):
        (found,) = repository.record(results_of(0.2, SEALED[:5]), "gba/one", "laptop", [commit])
        assert ("its rule was committed after its run" in found.remarks) == late


def test_what_a_formula_gives_is_foreseen_and_not_counted(repository):
    commit = repository.commit(GOOD.replace("  kind: paper\n", "  kind: paper\n  foreseen: true\n"))
    (found,) = repository.record(results_of(0.2, SEALED[:5]), "gba/one", "laptop", [commit])
    assert (found.word, found.counts, found.sealed) == ("reproduced", False, SEALED.start)
    assert "foreseen by a formula, and not counted" in found.remarks and claims.counts(claims.verdicts()) == {}


def trained(seed):
    return lib.train("ctr-synthetic", "sync", "virtual", workers=2, samples=64, seed=seed, save=False)


def test_nothing_else_draws_a_sealed_seed(monkeypatch):
    monkeypatch.delenv(seeds.DRAWN, raising=False)
    assert [*seeds.judging(3)] == [*JUDGING[:3]] and not seeds.sealed_run_seeds()
    with pytest.raises(BadOption, match="seed 7000003 is sealed: `lockstep run PAPER --sealed` alone draws"):
        trained(SEALED[3])
    with pytest.raises(BadOption, match="rates are tried: seed 7000000"):
        seeds.not_judging(SEALED[:1], "rates are tried")
    monkeypatch.setenv(seeds.DRAWN, str(SEALED[BLOCK]))
    assert [*seeds.judging(2)] == [*SEALED[BLOCK : BLOCK + 2]] and len(seeds.judging(BLOCK + 1)) == BLOCK
    trained(SEALED[BLOCK])
    for seed in (SEALED[0], SEALED[2 * BLOCK]):
        with pytest.raises(BadOption, match="is sealed"):
            trained(seed)
