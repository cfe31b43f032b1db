"""What the repository promises about itself: pins, layering, size of files, a package that works without its extras."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from html import unescape
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PINS = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))


def test_there_is_one_set_of_pins():
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "torch==2.13.0"
    assert len(PINS) == len(lines), "every requirement is pinned with =="
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["dependencies"]["file"] == ["requirements.txt"]
    assert "dependencies" in project["project"]["dynamic"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    kit = "-e .[text]"
    assert conda["dependencies"][-1] == {"pip": ["-r requirements.txt", kit]}


def test_torch_is_the_first_thing_that_pip_is_asked_for():
    recipe = (ROOT / "Makefile").read_text()
    asked = re.findall(r"pip install (.*)", recipe)
    assert "grep '^torch==' requirements.txt" in asked[0]
    assert "-r requirements.txt" in asked[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("profile", "resumes"), [("smoke", False), ("laptop", True), ("full", True)])
def test_long_profiles_resume_and_smoke_runs_anew(profile, resumes):
    command = ["make", "--dry-run", "reproduce", f"PROFILE={profile}"]
    recipe = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    (run,) = [line for line in recipe.splitlines() if "lockstep run all" in line]
    assert f"--profile {profile}" in run and ("--resume" in run) == resumes
    assert ("reports.publish" in recipe) == (profile == "laptop")


def test_what_runs_here_is_what_is_pinned():
    from importlib.metadata import version

    assert {name: version(name).split("+")[0] for name in PINS} == PINS


EXTRAS = {"fbgemm_gpu": "fbgemm-gpu-cpu"}
PACKAGES = {"PIL": "pillow", "yaml": "pyyaml", "IPython": "ipython", **EXTRAS}


def test_a_files_tests_stay_in_one_process(request):
    """pytest and xdist must fit each other: where they do not, groups are lost without a word, and each process starts Ray."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("only with --dist loadgroup, as `make test` has it")
    assert request.node.nodeid.endswith("@test_repository.py")


def test_what_is_imported_is_pinned():
    """Nothing hangs on what another package happens to bring along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    pinned = {name.lower() for name in (*PINS, *(re.match(r"[\w-]+", line)[0] for line in extras))}
    ours = ("lib", "data_prep", "notebooks", "tests")
    texts = [*_cells(), *(path.read_text() for folder in ours for path in (ROOT / folder).rglob("*.py"))]
    wanted = {module.partition(".")[0] for text in texts for module in imported(text)}
    wanted -= {*sys.stdlib_module_names, *ours, *(path.stem for path in (ROOT / "tests").rglob("*"))}
    missing = {name for name in wanted if PACKAGES.get(name, name).replace("_", "-").lower() not in pinned}
    assert not missing, "name them in requirements.txt"


def test_imports_point_down():
    """protocols know nothing but their contracts, the store no protocol, clusters no model."""
    allowed = {
        "options": {"options", "errors"},
        "protocols": {"protocols", "options", "errors"},
        # paths know where files lie and how one is replaced, and nothing else
        "store": {"store", "options", "errors", "paths", "device_array"},
        "cluster": {"cluster", "options", "errors", "streams", "device_array"},
        "tasks": {"tasks", "options", "store", "errors", "streams", "cluster", "device_array"},
    }
    for package, friends in allowed.items():
        for path in (ROOT / "lib" / package).rglob("*.py"):
            for module in imported(path):
                if module.startswith("lib."):
                    assert module.split(".")[1] in friends, f"{path.relative_to(ROOT)} imports {module}"


def test_the_rooms_of_lib_form_no_circle():
    """Whoever imports from a room is imported by none that it needs; what is imported for types alone does not count."""
    needs: dict[str, set[str]] = {}
    for path in (ROOT / "lib").rglob("*.py"):
        room = path.relative_to(ROOT / "lib").parts[0].removesuffix(".py")
        modules = (module.split(".") for module in imported(path, types=False) if module.startswith("lib."))
        needs.setdefault(room, set()).update(parts[1] for parts in modules if parts[1] != room)
    rooms = {room: wanted & needs.keys() for room, wanted in needs.items()}
    assert set(TopologicalSorter(rooms).static_order()) == rooms.keys()


def test_the_modules_of_lib_form_no_circle():
    """Neither where they import each other, nor for types alone; what a function imports when it is called does not count, nor
    the package that a module is in."""
    paths = {_module(path): path for path in (ROOT / "lib").rglob("*.py")}
    needs = {name: imported(path, inner=False) & paths.keys() for name, path in paths.items()}
    needs = {name: {each for each in those if not f"{name}.".startswith(f"{each}.")} for name, those in needs.items()}
    assert {*TopologicalSorter(needs).static_order()} == paths.keys()


def test_the_stations_of_a_gradient_s_way_stand():
    told = (ROOT / "CONTRIBUTING.md").read_text().partition("in ten steps")[2].partition("\n## ")[0]
    stations = re.findall(r"`(lib/[\w/]+\.py):([\w.]+)`", told)
    assert len(re.findall(r"^\d+\. ", told, re.MULTILINE)) == 10 and len(stations) >= 10
    for path, name in stations:
        body = ast.parse((ROOT / path).read_text()).body
        for part in name.split("."):
            named = [node for node in body if getattr(node, "name", None) == part]
            assert named, f"{path} has no {name}"
            body = getattr(named[0], "body", [])


def test_few_files_lie_at_the_top_of_lib():
    assert len(list((ROOT / "lib").glob("*.py"))) <= 10


def test_drivers_and_protocols_name_no_cluster():
    for package in ("drivers", "protocols"):
        for path in (ROOT / "lib" / package).rglob("*.py"):
            text = path.read_text()
            assert not re.search(r"\b(VirtualCluster|LocalCluster|RayCluster|ray)\b", text), path
            assert not any(re.match(r"lib\.cluster\.(virtual|local|ray)", module) for module in imported(path)), path


@pytest.mark.parametrize(
    "folder, barred, but",
    [
        ("lib", {"reports", "data_prep", "notebooks", "tests"}, ()),
        # the page 90_compare has the figure and figures of the front page and README
        ("reports", {"data_prep", "notebooks", "tests"}, ("publish.py", "readme.py")),
    ],
)
def test_a_folder_knows_none_that_stands_on_it(folder, barred, but):
    for path in [each for each in (ROOT / folder).rglob("*.py") if each.name not in but]:
        assert not {module.split(".")[0] for module in imported(path)} & barred, path


def test_notebooks_import_what_lib_offers():
    """From lib, or from a module at most two levels deep."""
    texts = [*_cells(), *(path.read_text() for path in (ROOT / "notebooks").rglob("*.py"))]
    modules = {_module(path) for path in (ROOT / "lib").rglob("*.py")}
    deep = {name for text in texts for name in imported(text) & modules if name.count(".") > 2}
    assert not deep, "import it from lib or lib.x.y"


def test_what_a_readme_names_is_there():
    """Paths in backticks, of all Markdown but what is made."""
    for page in ROOT.rglob("*.md"):
        if not {"reference", "output", ".venv"} & {*page.relative_to(ROOT).parts}:
            named = re.findall(r"`((?:lib|notebooks|tests|data_prep)/[\w/.]+?)(?::[\w.]+)?`", page.read_text())
            lacking = [each for each in named if not (ROOT / each).exists()]
            assert not lacking, f"{page} names {lacking}"


def test_experiments_lie_beside_their_notebooks():
    """A paper's notebooks lead to each module of its folder, or what explains a verdict names its command; and no paper needs
    another's."""
    papers = {path.parent for path in (ROOT / "notebooks").glob("[!.]*/*.ipynb")} - {ROOT / "notebooks" / "skeletons"}
    names = {folder.name for folder in papers}
    for folder in papers:
        texts = [*_cells(folder), *(path.read_text() for path in folder.glob("*.py"))]
        wanted = {module for text in texts for module in imported(text) if module.startswith("notebooks.")}
        wanted |= {*re.findall(r"`python -m (notebooks\.[\w.]+)`", (folder / "claims.yaml").read_text())}
        others = {module.split(".")[1] for module in wanted} & names - {folder.name}
        assert not others, f"{folder.name} needs {others}"
        modules = {_module(path) for path in folder.glob("*.py") if path.stem != "__init__"}
        assert modules <= wanted, f"nothing leads to {modules - wanted}"


def test_every_module_of_lib_is_reached():
    """From a command, a public name, a notebook or the preparation of data, by imports and by what registries name."""
    paths = {_module(path): path for path in (ROOT / "lib").rglob("*.py")}
    roots = [ROOT / "lib/__main__.py", ROOT / "lib/__init__.py"]
    roots += [path for folder in ("data_prep", "notebooks") for path in (ROOT / folder).rglob("*.py")]
    texts = [*_cells(), *(path.read_text() for path in roots)]
    reached = {"lib", "lib.__main__"}
    while texts:
        text = texts.pop()
        named = imported(text) | set(re.findall(r"[\"'](lib(?:\.\w+)+)[:\"']", text))
        for package in re.findall(r"f\"(lib\.[\w.]+)\.\{", text):
            named |= {module for module in paths if module.rpartition(".")[0] == package}
        above = {".".join(name.split(".")[:end]) for name in named for end in range(2, name.count(".") + 2)}
        new = above & paths.keys() - reached
        texts += [paths[name].read_text() for name in new]
        reached |= new
    assert paths.keys() <= reached


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _cells(folder: Path = ROOT / "notebooks") -> Iterator[str]:
    """The code of every notebook's cells."""
    for path in folder.rglob("*.ipynb"):
        if path.parent.name == ".ipynb_checkpoints":  # JupyterLab's
            continue
        cells = json.loads(path.read_text())["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_files_stay_short():
    folders = ("lib", "data_prep", "notebooks", "reports", "tests")
    for path in [path for folder in folders for path in (ROOT / folder).rglob("*.py")]:
        lines = len(path.read_text().splitlines())
        most = 600 if path.parent == ROOT / "lib" / "tasks" else 450  # a task is one file: model, stream and workload
        assert lines <= most, f"{path.relative_to(ROOT)} has {lines} lines: it holds more than one idea"


def test_lib_imports_without_ray_papermill_and_jupyter():
    blocked = ("ray", "papermill", "nbconvert", "nbformat", "jupyterlab", "IPython", "jupyter_client")
    program = f"""
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import lib
run = lib.train("ctr-synthetic", "gba", "local", workers=2, samples=500, evaluation_samples=200, save=False)
print(run.summary["issued"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4"]


def imported(path: Path | str, types: bool = True, inner: bool = True) -> set[str]:
    """What a file imports, `from lib import x` as lib.x, `from a import b` as a and a.b; without `types`, not what stands
    under TYPE_CHECKING, without `inner`, not what a function imports."""
    tree = ast.parse(path if isinstance(path, str) else path.read_text())
    guards = (
        [] if types else [n for n in ast.walk(tree) if getattr(getattr(n, "test", None), "id", "") == "TYPE_CHECKING"]
    )
    guards += [] if inner else [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    left_out = {node for guard in guards for node in ast.walk(guard)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in left_out:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module} - {"lib"}
        elif isinstance(node, ast.Import) and node not in left_out:
            names |= {alias.name for alias in node.names}
    return names


def test_every_link_of_a_published_page_leads_to_a_file_and_a_place_in_it():
    pages = {page: page.read_text(encoding="utf-8") for page in (ROOT / "reports" / "reference").rglob("*.html")}
    places = {page: {*re.findall(r'\sid="([^"]+)"', text)} for page, text in pages.items()}
    lost = set()
    for page, text in pages.items():
        for link in map(unescape, re.findall(r'<a [^>]*href="([^":]*)"', text)):
            file, _, place = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if not target.exists() or (place and target in places and place not in places[target]):
                lost.add(f"{page.relative_to(ROOT)}: {link}")
    assert not lost


def test_a_folder_with_another_lib_is_named_where_it_hides_ours(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").touch()
    done = subprocess.run([sys.executable, "-c", "import lockstep"], cwd=tmp_path, capture_output=True, text=True)
    assert f"{tmp_path / 'lib/__init__.py'} is another package called lib" in done.stderr
