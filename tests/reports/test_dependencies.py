"""What a verdict rests on: each part's change shows as that part's, and git says whether the rule was there before the run."""

import json

from reports import claims
from reports.claims import dependencies
from tests.reports.conftest import CELLS, PARAMETERS
from tests.reports.test_claims import GOOD, results_of


def remarks(house, commits=()):
    """Of the verdict, when the notebook's runs are of these commits."""
    house.record(results_of(0.2), "gba/one", "smoke", commits)
    (found,) = claims.verdicts()
    return "; ".join(each for each in found.remarks if each != "its seeds were not sealed, so that it is not counted")


AFTER, UNKNOWN = "its rule was committed after its run", "git cannot say"


def test_a_rule_that_was_there_before_the_run_is_not_remarked_on(repository):
    before = repository.commit(GOOD)
    assert remarks(repository) == "" == remarks(repository, [before]), "a notebook without runs is its own"
    assert remarks(repository, [before + "+"]) == "", "other files may have had changes"
    kept = json.loads((repository.reports / "claims" / "a.b.json").read_text())
    assert kept["commits"] == [before]
    (found,) = claims.verdicts(repository.reports)
    assert found.again == "" and found.changed == ()


def test_a_rule_that_came_after_a_run_is_found(repository):
    empty = repository.commit("")
    first = repository.commit(GOOD)
    told_better = repository.commit(GOOD.replace("reason: because", "reason: as before"))
    looser = repository.commit(GOOD.replace("0.2", "0.25"))
    assert AFTER in remarks(repository, [empty])
    assert AFTER in remarks(repository, [first]), "made by another rule's commit, judged by today's"
    assert AFTER in remarks(repository, [looser, told_better]), "one run of before is enough"
    assert remarks(repository, [looser]) == ""
    repository.claims(GOOD.replace("0.2", "0.15"), "gba")
    assert AFTER in remarks(repository, [looser]), "not committed at all"
    repository.commit(GOOD.replace("0.2", "0.25").replace("because", "for clarity"))
    assert remarks(repository, [looser]) == "", "a reason is no rule"


def test_a_kit_inside_another_repository_is_asked_too(repository, monkeypatch):
    kit = repository.root / "kit"
    kit.mkdir()
    repository.notebooks = repository.notebooks.rename(kit / "notebooks")
    monkeypatch.setenv("LOCKSTEP_ROOT", str(kit))
    before = repository.commit("")
    assert remarks(repository, [repository.commit(GOOD)]) == ""
    assert AFTER in remarks(repository, [before])


def test_a_claim_of_other_fields_or_a_broken_file_held_no_such_rule(repository):
    older = repository.commit("- id: a.b\n  kind: order\n")
    broken = repository.commit("- id: [\n")
    repository.commit(GOOD)
    assert AFTER in remarks(repository, [older]) and AFTER in remarks(repository, [broken])


def test_outside_a_checkout_nobody_can_know(repository, house, monkeypatch):
    repository.commit(GOOD)
    assert UNKNOWN in remarks(repository, ["0" * 40]), "no such commit"
    assert UNKNOWN in remarks(repository, [None]), "the run knew none"
    (house.root / ".git").rename(house.root / "git")
    dependencies._file_at.cache_clear()
    assert UNKNOWN in remarks(repository)


def test_each_part_that_changed_is_named(repository):
    """Planted one after another: rule, settings, the notebook's code, a module; comments and prose are no code."""
    repository.commit(GOOD)

    def changed():
        (found,) = claims.verdicts()
        return found.changed

    remarks(repository)
    kept = json.loads((repository.reports / "claims" / "a.b.json").read_text())
    assert changed() == ()
    code = kept["parts"]["code"]
    assert {"the notebook", "notebooks.gba.switching", "notebooks.gba.tasks", "lib.tasks.metrics"} <= code.keys()
    assert not any(name.startswith(("lib.drivers", "lib.training")) for name in code)

    repository.claims(GOOD.replace("0.2", "0.3"), "gba")
    assert changed() == ("the rule",)
    repository.claims(GOOD, "gba")
    repository.notebook("gba/one", *CELLS, parameters=PARAMETERS.replace("0.5", "0.6"))
    assert changed() == ("the settings (rate)", "the metrics' code (the notebook)")
    repository.notebook("gba/one", "# Another title", CELLS[1] + "  # a comment", CELLS[2], parameters=PARAMETERS)
    assert changed() == ()
    repository.notebook("gba/one", *CELLS[:2], "print(2)", parameters=PARAMETERS)
    assert changed() == ("the metrics' code (the notebook)",)
    repository.notebook("gba/one", *CELLS, parameters=PARAMETERS)
    assert changed() == ()
    code["notebooks.gba.tasks"] = "other"
    (repository.reports / "claims" / "a.b.json").write_text(json.dumps(kept))
    (found,) = claims.verdicts()
    assert found.changed == ("the metrics' code (notebooks.gba.tasks)",)
    assert found.remarks[0].startswith(f"changed since its run of commit {kept['commits'][0][:10]}: the metrics' code")
