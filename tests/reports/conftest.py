import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from reports.runner import notebook_parameters
from tests.devtools import Browser

CELLS = ("# One", "from notebooks.gba import switching\nx = switching", "print(1)")
PARAMETERS = 'profile: str = "smoke"  # how long\nrate: float = 0.5  # how fast'
FIGURE = """import pandas as pd
from reports import claims
from reports import plots
data = pd.DataFrame({"protocol": ["sync", "gba"], "time": [1, 2], "auc": [0.5, 0.7]})
plots.show(plots.curves(data), data, name="gba/one/auc", caption="What is seen.", alt="A curve.")"""
JUDGED = """import pandas as pd
from reports import claims, plots
rows = [(s, seed, value) for s, value in (("gba", 0.2), ("sync", 0.0)) for seed in claims.judging(5)]
results = pd.DataFrame(rows, columns=["subject", "seed", "auc"])
plots.verdicts(claims.record(results, "gba/one", profile=profile))"""
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


@contextmanager
def variables(**values):
    """Have these in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, str(value))
        yield


class House:
    """A repository in a temporary folder, with reports of its own."""

    def __init__(self, root):
        self.root, self.notebooks, self.reports = root, root / "notebooks", root / "out"
        self.notebooks.mkdir()
        for name in ("papers.yaml", "protocols.yaml"):
            shutil.copy(Path(__file__).parents[2] / "notebooks" / name, self.notebooks)

    def notebook(self, name, *cells, parameters=None):
        """Cells are code, or Markdown when they start with '#'."""
        made = []
        for i, text in enumerate([parameters, *cells]):
            if text is None:
                continue
            cell = {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": text}
            if text.startswith(("# ", "## ")):
                cell["cell_type"] = "markdown"
            else:
                cell |= {"execution_count": None, "outputs": []}
            if i == 0:
                cell["metadata"] = {"tags": ["parameters"]}
            made.append(cell)
        path = self.notebooks / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nb = {"cells": made, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
        path.write_text(json.dumps(nb), encoding="utf-8")
        return path

    def claims(self, text, paper=""):
        path = self.notebooks / paper / "claims.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def environment(self, **more):
        """Be in this repository, where no test's own fixture has it so."""
        return variables(LOCKSTEP_ROOT=self.root, LOCKSTEP_REPORTS=self.reports, **more)

    def record(self, table, notebook, profile="", commits=()):
        """The verdicts of a notebook whose runs are of these commits, as when the runner has put them in their place."""
        from reports import claims

        runs = [SimpleNamespace(provenance={"commit": commit}) for commit in commits]
        stage = os.environ.get("LOCKSTEP_STAGE", self.reports)
        with variables(LOCKSTEP_COMMAND=f"lockstep run {notebook}", LOCKSTEP_STAGE=stage):
            return claims.record(table, notebook, profile, runs)

    def left_behind(self):
        """Temporary files and stages that should be gone."""
        return [p for p in self.root.rglob(".*") if p.name != ".ipynb_checkpoints"]


def git_in(folder):
    """Runs git there, under a name."""

    def git(*words):
        command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return git


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path / "browser") as page:
        yield page


@pytest.fixture
def house(tmp_path, monkeypatch):
    made = House(tmp_path)
    monkeypatch.setenv("LOCKSTEP_ROOT", str(made.root))
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(made.reports))
    for name in ("LOCKSTEP_STAGE", "LOCKSTEP_COMMAND", "LOCKSTEP_SEALED", "LOCKSTEP_PROCESSES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(notebook_parameters, "_noted", {})  # what pages that other tests ran have set
    return made


@pytest.fixture
def repository(house, monkeypatch):
    """A checkout with one claim and its notebook, committed."""

    git = git_in(house.root)

    def commit(text):
        house.claims(text, "gba")
        git("add", "-A")
        git("commit", "--allow-empty", "-qm", "x")
        return git("rev-parse", "HEAD")

    house.notebook("gba/one", *CELLS, parameters=PARAMETERS)
    git("init", "-q")
    (house.root / ".gitignore").write_text("/out/\n")  # as the kit's own leaves out reports/output
    house.commit = commit
    return house


@pytest.fixture
def runs():
    """What lib.train leaves, with numbers that a reader can check."""

    def run(protocol, seed):
        time = [1.0, 2.0, 3.0]
        auc = [0.5, None, 0.7 + seed / 100]
        history = pd.DataFrame({"time": time, "step": [1, 2, 3], "samples": [8, 16, 24], "auc": auc})
        spans = [("worker0", "compute", 0.0, 1.0, 0), ("worker10", "compute", 0.0, 2.0, 1)]
        spans += [("worker2", "wait", 1.0, 3.0, 2), ("server0", "apply", 1.0, 1.1, 0)]
        trace = pd.DataFrame(spans, columns=["node", "kind", "start", "end", "batch"])
        summary = {"clock": "virtual", "auc": 0.7 + seed / 100, "qps": 8.0, "virtual_seconds": 3.0}
        provenance = {"seed": seed, "protocol": {"name": protocol}, "versions": {"torch": "2"}}
        provenance |= {"commit": "abc", "gpu": None}
        return SimpleNamespace(history=history, trace=trace, summary=summary, provenance=provenance, digest="d" * 64)

    return {name: [run(name, seed) for seed in range(2)] for name in ("sync", "gba")}
