"""The runner: what it refuses before a kernel starts, and what it leaves behind when a cell fails."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.provisioning import KernelProvisionerFactory

from lib import paths
from lib.errors import BadOption, LockstepError, UnknownName, UnknownOption
from reports import runner
from reports.claims import dependencies
from tests.reports.test_claims import GOOD

PARAMETERS = 'profile: str = "smoke"  # how long\nseeds: int = 3  # how many\nrate: float = 0.5\nnames: list = ["a"]\n'


@pytest.fixture
def known(house):
    house.notebook("00_start", "# Title of it\n\ntext", "x = seeds", parameters=PARAMETERS)
    house.notebook("gba/figure_6_switching", "# Six", 'PROFILES = {"smoke": 1, "laptop": {"a": 2}}\nprint(1)')
    house.notebook("gba/table_5", "# Five")
    house.notebook("oac/table_5", "# Other")
    return house


def test_what_is_known_without_running(known):
    first, six, *_ = runner.experiments()
    assert (first.name, first.paper, first.title) == ("00_start", "", "Title of it")
    assert six.paper == "gba"
    declared = runner.parameters(first.path)
    assert (declared["seeds"].type, declared["seeds"].default, declared["seeds"].help) == ("int", 3, "how many")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("00_start", ["00_start"]),
        ("gba/table_5", ["gba/table_5"]),
        ("notebooks/gba/table_5.ipynb", ["gba/table_5"]),
        ("figure_6_switching", ["gba/figure_6_switching"]),
        ("gba", ["gba/figure_6_switching", "gba/table_5"]),
        ("all", ["00_start", "gba/figure_6_switching", "gba/table_5", "oac/table_5"]),
    ],
)
def test_names(known, name, found):
    assert [e.name for e in runner.resolve(name)] == found


def test_a_name_that_is_none_or_several(known):
    with pytest.raises(UnknownName, match="did you mean 'gba/figure_6_switching'"):
        runner.resolve("gba/figure_6")
    with pytest.raises(UnknownName, match="ambiguous: gba/table_5, oac/table_5"):
        runner.resolve("table_5")
    with pytest.raises(BadOption, match="stands for 2 notebooks"):
        runner.run("gba")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"seed": 3}, UnknownOption, "notebook 00_start has no option 'seed'; did you mean 'seeds'"),
        ({"seeds": "3"}, BadOption, "parameter 'seeds' must be a whole number, not '3'; how many"),
        ({"seeds": True}, BadOption, "must be a whole number, not True"),
        ({"seeds": 3.0}, BadOption, "must be a whole number, not 3.0"),
        ({"seeds": 0}, BadOption, "parameter 'seeds' must be at least 1, not 0"),
        ({"rate": "x"}, BadOption, "must be a number"),
        ({"profile": "laptop"}, BadOption, "differ; give one of them"),
    ],
)
def test_wrong_parameters_are_refused_before_a_kernel_starts(known, monkeypatch, given, error, message):
    monkeypatch.setattr(runner.execution, "_execute", lambda *_: pytest.fail("a kernel was started"))
    with pytest.raises(error, match=message):
        runner.run("00_start", parameters=given)
    assert not known.reports.exists()


def test_no_process_compiles_a_grammar_at_its_start():
    """lark, which compiles one, comes with later versions of jsonschema, which Ray's processes import, too."""
    script = "import sys, ray, papermill, nbconvert, jsonschema; sys.exit('lark' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_an_unknown_profile(known):
    with pytest.raises(UnknownName, match="did you mean 'smoke'"):
        runner.run("00_start", profile="smok")


def test_parameters_from_a_command_line(known):
    (start,) = runner.resolve("00_start")
    given = runner.parse_parameters(start, ["seeds=5", "rate=1e-3", "names=[b, c]", "profile=laptop"])
    assert given == {"seeds": 5, "rate": 0.001, "names": ["b", "c"], "profile": "laptop"}
    for pair, message in (("seeds", "name=value"), ("seeds=[", "cannot read"), ("sed=1", "did you mean 'seeds'")):
        with pytest.raises(LockstepError, match=message):
            runner.parse_parameters(start, [pair])


@pytest.mark.parametrize("text", ["a = 1 + b", "import os", "a, b = 1, 2", "a: int", "a ="])
def test_a_parameters_cell_is_literals_only(house, text):
    path = house.notebook("n", parameters=text)
    with pytest.raises(LockstepError, match=r"n\.ipynb, cell 1: .*(no literal|not Python)"):
        runner.parameters(path)


def test_a_file_that_is_no_notebook(house):
    (house.notebooks / "x.ipynb").write_text("{}")
    with pytest.raises(LockstepError, match=r"x\.ipynb: not a notebook"):
        runner.experiments()


WRITES = """from lib import paths
paths.write_text_atomic(paths.results() / "n" / "a.csv", "1")
_ = paths.write_text_atomic(paths.results() / "claims" / "c.json", "{}")"""


def test_a_run_leaves_everything_in_its_place(house):
    """Also: the kernel stands where the command is given and imports from beside the notebook, as Jupyter's does, and progress
    in a kernel ends as one line."""
    thread = """import threading
from lib.progress import Progress
line = Progress(4, "thread").__enter__()
thread = threading.Thread(target=line.advance, args=[3]); thread.start(); thread.join()
line.close()"""
    whole = """from lib.progress import _open, track
_open.clear()
for _ in track(range(4), "whole"): pass"""
    (house.notebooks / "beside.py").write_text("told = 'beside'")
    where = "import os, beside\nprint(os.getcwd(), beside.told, seeds, rate)"
    house.notebook("n", "# N", where, WRITES, thread, whole, parameters=PARAMETERS)
    (house.reports / "n").mkdir(parents=True)
    (house.reports / "n" / "of_an_older_run.csv").touch()
    path = runner.run("n", parameters={"seeds": 4, "rate": 2})
    nb = json.loads(path.read_text())
    outputs = [output for cell in nb["cells"] for output in cell.get("outputs", [])]
    assert "".join(outputs[0]["text"]) == f"{os.getcwd()} beside 4 2.0\n"
    lines = ["".join(output["data"]["text/plain"]) for output in outputs[1:]]
    assert len(lines) == 2 and lines[0].startswith("thread: 3/4, ") and lines[1].startswith("whole: 4/4, ")
    assert [p.name for p in (house.reports / "n").iterdir()] == ["a.csv"]
    assert (house.reports / "claims" / "c.json").exists()
    facts = nb["metadata"]["lockstep"]
    assert facts["command"] == "lockstep run n --profile smoke -p seeds=4 -p rate=2.0"
    assert house.left_behind() == [] and paths.STAGE not in os.environ


def test_a_terminal_sees_how_far_a_long_cell_is(house, monkeypatch):
    """Cells are counted without a time left, which they cannot tell; the kernel's own work tells it."""

    class Terminal(io.StringIO):
        isatty = staticmethod(lambda: True)

    sweep = """import time
from lib.progress import Progress
with Progress(4, "sweep", "samples") as line:
    line.reach(1); time.sleep(2.5)"""
    house.notebook("n", "# N", sweep, "1", parameters=PARAMETERS)
    monkeypatch.setattr(sys, "stderr", Terminal())
    runner.run("n")
    shown = sys.stderr.getvalue().split("\r")
    assert any(line.startswith("n: 1 of 3 cells, ") and ", sweep: 25 %, " in line for line in shown)
    assert "left" not in shown[-1] and "sweep" not in shown[-1]


def test_a_failing_cell_is_named_and_changes_nothing(house):
    house.notebook("n", "# N", "seeds", WRITES, 'raise ValueError("no such thing")', "1", parameters=PARAMETERS)
    house.reports.mkdir()
    (house.reports / "n.ipynb").write_text("of an older run")
    message = r"notebook n, cell 5: ValueError: no such thing\n.*n\.failed\.ipynb"
    with pytest.raises(runner.NotebookFailed, match=message):
        runner.run("n")
    assert (house.reports / "n.ipynb").read_text() == "of an older run"
    assert {p.name for p in house.reports.iterdir()} == {"n.ipynb", "n.failed.ipynb"}
    assert "no such thing" in (house.reports / "n.failed.ipynb").read_text()


def test_a_copied_page_cannot_write_into_another_pages_folder(house):
    cell = "from lib import paths\npaths.write_text_atomic(paths.results() / 'other' / 'a.png', '')"
    house.notebook("n", "# N", cell, parameters=PARAMETERS)
    with pytest.raises(runner.NotebookFailed, match=r"n: a figure's name begins with other/.*begin it with n/"):
        runner.run("n")
    assert not (house.reports / "n.ipynb").exists() and house.left_behind() == []


def test_a_dead_kernel_is_named(house):
    house.notebook("n", "# N", "import os; os._exit(1)", parameters=PARAMETERS)
    with pytest.raises(runner.NotebookFailed, match="notebook n: the kernel died"):
        runner.run("n")
    assert not (house.reports / "n.ipynb").exists() and house.left_behind() == []


def test_side_by_side_all_go_on_after_one_fails(house, capfd, monkeypatch):
    monkeypatch.setattr("reports.runner.parallel.cpu_count", lambda: 2)
    printed = "import os; from lib.results import key; print(os.environ['LOCKSTEP_PROCESSES'], key.engine.cache_info().currsize)"
    for name, cell in {"a": "1", "b": "1 / 0", "c": printed}.items():
        house.notebook(name, "# N", cell, parameters=PARAMETERS)
    finished = []
    (failure,) = runner.run_together(runner.experiments(), "smoke", {"seeds": 4}, after=finished.append)
    assert failure.startswith("notebook b, cell 3: ZeroDivisionError")
    assert sorted(each.name for each in finished) == ["a", "c"] and all(each.executed.exists() for each in finished)
    nb = json.loads((house.reports / "c.ipynb").read_text())
    shown = "".join(nb["cells"][-1]["outputs"][0]["text"])
    assert shown == "1 1\n", "one process; and lib was parsed before the kernel was forked"
    assert nb["metadata"]["lockstep"]["parameters"] == {"seeds": 4}
    # Not of all errors: on a busy machine tornado may tell of a callback while a kernel ends.
    assert "[IPKernelApp]" not in capfd.readouterr().err, "a good run says nothing of its kernels"


@pytest.fixture
def warm():
    """Jupyter reads once in a process of what kind kernels are: here and after it anew."""
    KernelProvisionerFactory.clear_instance()
    yield
    KernelProvisionerFactory.clear_instance()


def test_a_kernel_that_waits_for_ever_says_where_and_the_notebook_runs_once_more(house, warm, capfd, monkeypatch):
    monkeypatch.setattr("reports.runner.parallel.cpu_count", lambda: 1)
    monkeypatch.setattr("reports.runner.warm_kernel.LIMIT", 8.0)  # enough for the second try on a busy machine
    waiting = "import threading\ndef wait_for_nothing(): threading.Event().wait()"
    begun = str(house.root / "begun")
    at_first = f"import os\nif not os.path.exists({begun!r}):\n    os.mkdir({begun!r})\n    wait_for_nothing()"
    house.notebook("n", "# N", waiting, at_first, parameters=PARAMETERS)
    assert runner.run_together(runner.experiments(), "smoke") == []
    said = capfd.readouterr().err
    assert "in wait_for_nothing" in said and "n: the kernel died (out of memory, or stuck?)" in said


def test_what_measures_the_machine_runs_alone_and_last(house, monkeypatch):
    alone = house.notebook("a", "# N")
    alone.write_text(json.dumps({**json.loads(alone.read_text()), "metadata": {"alone": True}}))
    house.notebook("b", "# N")
    house.notebook("c", "# N")
    runs = []

    class Recorder:
        def __init__(self, n_jobs, **_):
            self.jobs = n_jobs

        def __call__(self, tasks):
            for _, (variables, name, *_), _ in tasks:
                runs.append((name, self.jobs, "LOCKSTEP_PROCESSES" in variables))
                yield name, None, ""

    monkeypatch.setattr("reports.runner.parallel.Parallel", Recorder)
    monkeypatch.setattr("reports.runner.parallel.cpu_count", lambda: 2)
    assert runner.run_together(runner.experiments(), "smoke") == []
    assert runs == [("b", 2, True), ("c", 2, True), ("a", 1, False)]


COUNTED = """from lib import paths
from reports import claims
import pandas as pd
with open(paths.root() / "executions", "a") as file:
    file.write("x")
claims.record(pd.DataFrame({"subject": ["gba", "sync"], "seed": 0, "auc": [0.7, 0.5]}), "n", profile=profile)"""


def test_what_is_complete_is_left_as_it_is(house, capsys):
    """Each change that a result follows from is a reason to run again, and nothing else is."""

    def executions(**options):
        before = count.stat().st_size if count.exists() else 0
        runner.run("n", resume=True, **options)
        return count.stat().st_size - before

    count = house.root / "executions"
    path = house.notebook("n", "# N", COUNTED, parameters=PARAMETERS)
    house.claims(GOOD.replace("notebook: one", "notebook: n"))
    (experiment,) = runner.resolve("n")
    assert not runner.is_complete(experiment, "smoke")
    assert executions() == 1 and runner.is_complete(experiment, "smoke")
    assert executions() == 0 and capsys.readouterr().err.endswith("n: complete, left as it is\n")
    nb = json.loads(path.read_text())
    nb["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "1"}]
    path.write_text(json.dumps(nb))
    assert executions() == 0, "an output is no source"
    for options in ({"profile": "laptop"}, {"parameters": {"seeds": 4}}):
        assert not runner.is_complete(experiment, **{"profile": "smoke", **options})
    runner.run("n")
    assert count.stat().st_size == 2, "without resume it runs anew"


def test_what_a_result_follows_from(house, monkeypatch):
    """Planted: each of these changes must show."""

    def now(**values):
        return runner.execution.fingerprint(experiment, {"profile": "smoke", **values})

    path = house.notebook("n", "# N", "1", parameters=PARAMETERS)
    house.claims(GOOD.replace("notebook: one", "notebook: n"))
    (experiment,) = runner.resolve("n")
    seen = [now(), now(profile="laptop"), now(seeds=4)]
    house.claims(GOOD.replace("notebook: one", "notebook: n").replace("0.2", "0.3"))
    seen.append(now())
    path.write_text(path.read_text().replace('"source": "1"', '"source": "2"'))
    seen.append(now())
    monkeypatch.setattr(runner.execution, "hash_of_lib", lambda: "other code")
    seen.append(now())
    monkeypatch.setattr(dependencies, "metrics_code", lambda path: [("notebooks.gba.tasks", "other code beside it")])
    seen.append(now())
    assert len(set(seen)) == 7 and now() == seen[-1]


def test_data_beside_a_notebook_makes_its_results(house):
    path = house.notebook("gba/n", "# N", "1", parameters=PARAMETERS)
    (experiment,) = runner.resolve("gba/n")
    seen = []
    for name, text in (("tasks.yaml", "a: 1"), ("tasks.yaml", "a: 2"), ("claims.yaml", "")):
        path.with_name(name).write_text(text)
        seen.append(runner.execution.fingerprint(experiment, {"profile": "smoke"}))
    assert seen[0] != seen[1] == seen[2], "what judges is in the claims' own hashes"


def test_a_run_that_lost_a_verdict_or_failed_since_is_not_complete(house):
    house.notebook("n", "# N", COUNTED, parameters=PARAMETERS)
    house.claims(GOOD.replace("notebook: one", "notebook: n"))
    (experiment,) = runner.resolve("n")
    runner.run("n")
    assert runner.is_complete(experiment, "smoke")
    experiment.failed.touch()
    assert not runner.is_complete(experiment, "smoke")
    experiment.failed.unlink()
    (house.reports / "claims" / "a.b.json").write_text("{")
    assert not runner.is_complete(experiment, "smoke")
    (house.reports / "claims" / "a.b.json").unlink()
    assert not runner.is_complete(experiment, "smoke")


def test_an_interrupt_leaves_no_kernel_and_no_half(house):
    names = ("n", "o")  # side by side
    for name in names:
        cell = f'import os, time\nopen("{house.notebooks / name}.pid", "w").write(str(os.getpid()))\ntime.sleep(3600)'
        house.notebook(name, "# N", cell, parameters=PARAMETERS)
    environment = {**os.environ, "PYTHONPATH": str(Path(runner.__file__).parents[2]), "LOKY_MAX_CPU_COUNT": "2"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lib", "run", "all"], env=environment, stderr=subprocess.PIPE, text=True
    )
    markers = [house.notebooks / f"{name}.pid" for name in names]
    deadline = time.monotonic() + 300
    while not all(marker.exists() and marker.read_text() for marker in markers) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=300)
    assert text.endswith("interrupted; everything that was saved before is whole\n") and process.returncode == 130
    kernels = [int(marker.read_text()) for marker in markers]
    while any(map(_alive, kernels)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_alive, kernels))
    assert list(house.reports.iterdir()) == []


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


ROOT = Path(runner.__file__).parents[2]
COMMITTED = sorted(path for path in (ROOT / "notebooks").rglob("[!.]*.ipynb") if path.parent.name[0] != ".")


def _staged(path):
    """The notebook as git would commit it: JupyterLab saves outputs in the working tree, which is no fault."""
    shown = subprocess.run(["git", "-C", ROOT, "show", f":{path.relative_to(ROOT)}"], capture_output=True, check=False)
    return json.loads(shown.stdout) if shown.returncode == 0 else runner.read(path)


def _profiles(text):
    """The statements of a cell that assign PROFILES."""
    nodes = ast.parse(text).body if "PROFILES =" in text else []
    return [node for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROFILES"]


def _lost(text):
    """Calls of what makes tables and figures whose value nobody takes, before a cell's last statement."""
    tree = ast.parse(text)
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Expr) and node is not tree.body[-1]]
    return [call for call in calls if call.startswith("plots.")]


def test_a_figure_that_is_made_and_not_shown_is_found():
    kept = "plots.show(a)"
    assert _lost(f"for a in b:\n    {kept}") == _lost(f"{kept}\n1") == [kept]
    assert not _lost(f"display({kept})\nfig = {kept}\n{kept}")


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
class TestCommitted:
    """What STYLE.md asks of every notebook of the repository."""

    def test_stripped(self, path):
        nb = _staged(path)
        code = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert "papermill" not in nb["metadata"] and not any("papermill" in c["metadata"] for c in nb["cells"])
        ids = [cell["id"] for cell in nb["cells"]]
        assert len(set(ids)) == len(ids) and not any(re.fullmatch(r"[0-9a-f]{8}", i) for i in ids), "ids are words"

    def test_kernel(self, path):
        spec = runner.read(path)["metadata"]["kernelspec"]
        assert (spec["name"], spec["language"]) == ("python3", "python")

    def test_short(self, path):
        """The paper, its algorithm, one run, the sweep, what to look for, what was found, an exercise."""
        cells = runner.read(path)["cells"]
        assert len(cells) <= 20
        assert max(len(runner.source(cell).splitlines()) for cell in cells) <= 15

    def test_what_is_made_for_the_page_is_shown(self, path):
        """Only a cell's last value is shown by itself."""
        code = [c for c in runner.read(path)["cells"] if c["cell_type"] == "code"]
        assert not [lost for cell in code for lost in _lost(runner.source(cell))]

    def test_parameters(self, path):
        declared = runner.parameters(path)
        (cell,) = [c for c in runner.read(path)["cells"] if "parameters" in c["metadata"].get("tags", [])]
        assert all(isinstance(node, ast.AnnAssign) for node in ast.parse(runner.source(cell)).body)
        assert declared["profile"].default == "smoke" and all(p.help for p in declared.values())

    def test_all_profiles(self, path):
        texts = [runner.source(cell) for cell in runner.read(path)["cells"]]
        (assigned,) = [node for text in texts for node in _profiles(text)]
        assert [key.value for key in assigned.value.keys] == list(runner.PROFILES)

    def test_no_mathematics_that_needs_a_script(self, path):
        markdown = [runner.source(c) for c in runner.read(path)["cells"] if c["cell_type"] == "markdown"]
        assert not any("$" in text or "\\(" in text for text in markdown)
