"""Every claim of every paper is tried with the spread that its published runs have, or a pilot's."""

import json
from pathlib import Path

from lib import paths
from lib.options.yaml_source import load
from reports import claims
from tests.reports import trial

UNTRIED = load(Path(__file__).with_name("untried.yaml"))


def pilot(claim):
    """What published runs gave for the claim, or a pilot's; None where neither has its metrics."""
    for folder in (paths.reference(), paths.reference() / "pilots"):
        if (path := claims.verdict_file(claim.id, folder)).exists():
            results = json.loads(path.read_text(encoding="utf-8"))["results"]
            if results and {each.metric for each in claim.comparisons} <= results[0].keys():
                return results
    return None


def trials(claim):
    """The trials that a claim fails, each with its cases' reasons."""
    if (results := pilot(claim)) is None:
        return {"pilot": ["no results are kept that would say what spread there is"]}
    fitted = [record for record in claims.calibrations() if claim.notebook in record.notebooks]
    failed = trial.tried(claim, results, fitted)
    return {name: [f"{each.case}: {each.why}" for each in failed if each.trial == name] for name in trial.TRIALS}


def test_every_claim_of_a_paper_stands_its_trial_or_is_listed():
    """A new claim that fails is told here, and so is a listed one that has been mended."""
    found = {claim.id: trials(claim) for claim in claims.load().values() if claim.kind == "paper"}
    found = {name: {trial: why for trial, why in failed.items() if why} for name, failed in found.items()}
    for name, failed in found.items():
        for which, why in failed.items():
            print(f"{name}: {which}: {'; '.join(why)}")
    listed = {name: set(each["fails"]) for name, each in UNTRIED.items()}
    assert {name: set(failed) for name, failed in found.items() if failed} == listed
    assert all(each["mend"].strip() for each in UNTRIED.values())
    assert not any("broken" in fails for fails in listed.values()), "a rule that a broken mode passes is none"
