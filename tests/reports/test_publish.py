"""The published results: whole, the same bytes each time, of one profile, without a trace of the machine's paths."""

import json
import re
import subprocess
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from lib import paths
from lib.protocols import ALL
from lib.seeds import DRAWN, SEALED
from notebooks import compare_figure
from notebooks.skeletons import server_rule
from reports import claims, publish, runner
from reports.headlines import BadHeadline, Headline, headline, headlines
from reports.index import write_index
from reports.page import check_offline
from reports.publish import NotPublished, machine_path
from reports.readme import GENERATED, NONE_YET, NoPlace, papers, readme
from tests.reports.conftest import FIGURE, JUDGED, House
from tests.reports.test_claims import GOOD, results_of

ROOT = Path(__file__).parents[2]
README = "# Kit\n\nbefore\n" + "".join(
    f"\n<!-- {name}: {GENERATED} -->\n\nold\n\n<!-- end of the {name} -->\n\nafter\n"
    for name in ("findings", "protocols", "papers")
)
PARAMETERS = 'profile: str = "smoke"  # how long\nseeds: int = 3  # how many'


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What running one notebook at the laptop profile leaves."""
    house = House(tmp_path_factory.mktemp("executed"))
    house.notebook("gba/one", "# One", FIGURE, JUDGED, parameters=PARAMETERS)
    house.claims(GOOD, "gba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_ROOT", str(house.root))
        patch.setenv("LOCKSTEP_REPORTS", str(house.reports))
        patch.setenv(DRAWN, str(SEALED.start))
        runner.run("gba/one", "laptop")
    return contents(house.root)


@pytest.fixture
def ran(house, executed):
    """A house of the test's own with it, and with a notebook that was not run."""
    for name, data in executed.items():
        (house.root / name).parent.mkdir(parents=True, exist_ok=True)
        (house.root / name).write_bytes(data)
    house.notebook("gba/two", "# Not run")
    (house.root / "README.md").write_text(README)
    return house


def change(path, **facts):
    nb = json.loads(path.read_text())
    nb["metadata"]["lockstep"] |= facts
    path.write_text(json.dumps(nb))


def test_what_is_published(ran):
    index = publish.publish()
    found = contents(paths.reference())
    assert index == paths.reference() / "index.html"
    fronts = {"index.html", "gba/index.html", "rules.html"}
    assert found.keys() == fronts | {"gba/one.html", "gba/one/auc.csv", "claims/a.b.json"}
    page, front = found["gba/one.html"].decode(), found["index.html"].decode()
    assert 'href="one/auc.csv"' in page and 'href="../index.html"' in page
    assert found["gba/one/auc.csv"].startswith(b"protocol,time,auc\nsync,1,0.5\n")
    assert 'href="gba/one.html"' in front and "gba/two" not in front
    assert "profile laptop" in found["gba/index.html"].decode()
    foot = page[page.index("<footer") :]
    for told in ("python -m lib run gba --profile laptop --sealed", "cores", "torch 2.", "python 3."):
        assert told in foot, "how, where and with what each page was made"
    for html in (page, front):
        check_offline(html)
    assert not any(str(ran.root).encode() in data for data in found.values())
    assert ran.left_behind() == []


def test_a_second_time_changes_no_byte(ran):
    first = (contents(publish.publish().parent), (ran.root / "README.md").read_bytes())
    assert (contents(publish.publish().parent), (ran.root / "README.md").read_bytes()) == first
    (paths.reference() / "of_an_older_time.html").touch()
    assert contents(publish.publish().parent) == first[0]


def test_what_no_notebook_makes_stays(ran):
    publish.publish()
    by_hand = {"soak.json": b"{}", "gpu/speed.csv": b"a,b"}
    for name, data in by_hand.items():
        (paths.reference() / name).parent.mkdir(exist_ok=True)
        (paths.reference() / name).write_bytes(data)
    publish.publish()
    found = contents(paths.reference())
    assert {name: found[name] for name in by_hand} == by_hand


def test_pages_that_were_not_run_here_stay(ran):
    """A paper is published alone: the others' pages, data and verdicts are as they were, to the byte but for a link to the page
    beside them, and the index has all."""
    publish.publish()
    before = contents(paths.reference())
    (ran.reports / "gba" / "one.ipynb").unlink()
    (ran.reports / "claims" / "a.b.json").unlink()
    ran.notebook("oac/three", "# Three", parameters=PARAMETERS)
    runner.run("oac/three", "laptop")
    publish.publish()
    after = contents(paths.reference())
    stayed = ["gba/one.html", "gba/one/auc.csv", "claims/a.b.json"]
    link = b'<a class="next" href="../oac/three.html">Three \xe2\x86\x92</a>'
    assert {name: after[name].replace(link, b"") for name in stayed} == {name: before[name] for name in stayed}
    assert after.keys() == before.keys() | {"oac/three.html", "oac/index.html"}
    index = after["index.html"].decode()
    assert 'href="gba/one.html"' in index and 'href="oac/three.html"' in index
    assert "1 reproduced" in (ran.root / "README.md").read_text()


def test_a_page_leads_to_those_beside_it_that_are_published(ran):
    """Wherever it was run, and whatever is published or withdrawn after it."""
    ran.notebook("oac/three", "# Three & more", parameters=PARAMETERS)
    link = re.compile(r'<a class="(next|previous)" href="([^"]+)"')

    def beside():
        publish.publish()
        pages = [place for place in paths.reference().glob("*/*.html") if place.stem != "index"]
        return {place.stem: link.findall(place.read_text()) for place in pages}

    assert beside() == {"one": []}
    runner.run("oac/three", "laptop")
    (ran.reports / "gba" / "one.ipynb").rename(ran.reports / "kept.ipynb")  # not run where the third was
    assert beside() == {"one": [("next", "../oac/three.html")], "three": [("previous", "../gba/one.html")]}
    assert "Three &amp; more →" in (paths.reference() / "gba" / "one.html").read_text()
    (ran.root / "notebooks" / "oac" / "three.ipynb").unlink()
    (ran.reports / "kept.ipynb").rename(ran.reports / "gba" / "one.ipynb")
    assert beside() == {"one": []}


def published_readme():
    return readme(paths.reference(), claims.verdicts(paths.reference()))


def test_the_readme_has_the_findings(ran):
    publish.publish()
    text = (ran.root / "README.md").read_text()
    assert text.startswith("# Kit\n\nbefore\n\n<!-- findings") and text.count("\n\nafter\n") == 3
    assert (
        "\nold\n" not in text
        and "- We judged 1 of the papers' claims by pre-registered rules: 1 are reproduced." in text
    )
    assert "| **Fixed-size global batch** `gba`, `bsp`, `admission` | An update averages" in text
    assert "](https://arxiv.org/abs/2205.11048) |" in text and "| 1: 1 reproduced |" in text
