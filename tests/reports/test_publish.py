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
from reports import claims, explorer, families, index, publish, runner, timelines
from reports.headlines import NUMBER, BadHeadline, Headline, headline, headlines
from reports.index import write_index
from reports.markup import words
from reports.page import check_offline
from reports.publish import NotPublished, machine_path
from reports.readme import GENERATED, NoPlace, papers, readme
from reports.summary_text import NONE_YET
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
    with house.environment(**{DRAWN: SEALED.start}):
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


def forget_the_run(house):
    """As on a machine where it was not made."""
    (house.reports / "gba" / "one.ipynb").unlink()
    (house.reports / "claims" / "a.b.json").unlink()


def change(house, **facts):
    path = house.reports / "gba" / "one.ipynb"
    nb = json.loads(path.read_text())
    nb["metadata"]["lockstep"] |= facts
    path.write_text(json.dumps(nb))


def test_what_is_published(ran):
    index = publish.publish()
    found = contents(paths.reference())
    assert index == paths.reference() / "index.html"
    fronts = {"index.html", "gba/index.html", "rules.html", "README.md", "gba/README.md", "gba/effects.svg"}
    assert found.keys() == fronts | {"gba/one.html", "gba/one/auc.csv", "claims/a.b.json"}
    page, front = found["gba/one.html"].decode(), found["index.html"].decode()
    assert 'href="one/auc.csv"' in page and 'href="../index.html"' in page
    links = {*re.findall(r'href="([^"]+)"', page[: page.index("</header>")])}
    assert links >= {"../../../notebooks/gba/one.ipynb", "https://arxiv.org/abs/2205.11048"}
    assert links >= {"../gba/index.html", "../rules.html"}
    text = found["gba/README.md"].decode()
    assert "| Better. | 0.200 AUC (100 % [100, 100] of the paper's effect) | 0.200 AUC | reproduced |" in text
    assert "[data: auc](one/auc.csv)" in text and "(effects.svg)" in text
    assert found["gba/one/auc.csv"].startswith(b"protocol,time,auc\nsync,1,0.5\n")
    assert 'href="gba/one.html"' in front and "gba/two" not in front
    assert "profile laptop" in found["gba/index.html"].decode()
    foot = page[page.index("<footer") :]
    for told in ("lockstep run gba --profile laptop --sealed", "cores", "torch 2.", "python 3."):
        assert told in foot, "how, where and with what each page was made"
    for html in (page, front):
        check_offline(html)
    assert not any(str(ran.root).encode() in data for data in found.values())
    assert ran.left_behind() == []


def test_a_second_time_changes_no_byte_and_leaves_what_no_notebook_makes(ran):
    first = (contents(publish.publish().parent), (ran.root / "README.md").read_bytes())
    assert (contents(publish.publish().parent), (ran.root / "README.md").read_bytes()) == first
    (paths.reference() / "of_an_older_time.html").touch()
    by_hand = {"soak.json": b"{}", "gpu/speed.csv": b"a,b"}
    (paths.reference() / "gpu").mkdir()
    for name, data in by_hand.items():
        (paths.reference() / name).write_bytes(data)
    assert contents(publish.publish().parent) == first[0] | by_hand


def test_pages_that_were_not_run_here_stay(ran):
    """A paper is published alone: the others' pages, data and verdicts are as they were, to the byte but for a link to the page
    beside them, and the index has all."""
    publish.publish()
    before = contents(paths.reference())
    forget_the_run(ran)
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
    assert "\nold\n" not in text
    assert "- We judged 1 of the papers' claims by pre-registered rules: 1 are reproduced." in text
    assert "| **Fixed-size global batch** `gba`, `bsp`, `admission` | An update averages" in text
    assert "](https://arxiv.org/abs/2205.11048) |" in text and "| 1: 1 reproduced |" in text
    assert published_readme() == text


def test_the_picture_is_drawn_from_what_is_published(ran, monkeypatch):
    """Its page's data goes to the reference; index and README say what it shows, with the same bytes each time."""
    rows = [
        (name, seed, auc, qps)
        for seed in (1, 2)
        for name, auc, qps in (("sync", 0.8, 1), ("gba", 0.797 + seed / 1000, 2), ("frozen", 0.5, 3))
    ]
    data = pd.DataFrame(rows, columns=["protocol", "seed", "auc", "qps"])
    place = paths.reference() / f"{compare_figure.NAME}.csv"
    place.parent.mkdir(parents=True)
    data.to_csv(place, index=False)
    conditions = data.assign(condition="equal workers").rename(columns={"auc": "metric", "qps": "samples/s"})
    conditions.to_csv(paths.reference() / f"{compare_figure.CONDITIONS}.csv", index=False)
    (paths.reference() / "90_compare.html").touch()
    text = " ".join(published_readme().split())
    answer = "use gba: training is 2.00 ± 0.00× as fast as with sync, and AUC is the same within noise ("
    assert answer in text and f"We measured 2 of {len(ALL) - 1} protocols" in text
    assert "| equal workers (2.0×) | none | −0.0015 |" in text
    assert "[Six more simulated clusters](reports/reference/README.md#90_compare)" in text
    assert "trace (accuracy)" in text, "no link without its page"
    monkeypatch.setattr(timelines, "WATCHED", ("sync",))
    monkeypatch.setattr(timelines, "ALL", {"sync": ALL["sync"]})
    publish._write_front(paths.reference(), [])
    html = write_index().read_text()
    assert "follow Alibaba's public 2018 trace (accuracy)" in unescape(html), "that page was not run here"
    assert answer in html and 'data-name="gba"' in html and "protocols/gba.html" in html
    assert "| equal workers | gba: 2.00× | none |" in (paths.reference() / "README.md").read_text()
    first, second = (compare_figure.svg(compare_figure.figure(data)) for _ in range(2))
    assert first == second and "<dc:date>" not in first


def test_simulated_time_is_described_by_its_worst_case_too(tmp_path):
    assert compare_figure.fidelity(tmp_path) == ""
    rows = "cluster,workers,protocol,error\nlocal,2,sync,0.01\nlocal,3,gba,-0.02\nray,4,async,-0.123\n"
    (tmp_path / "94_fidelity").mkdir()
    (tmp_path / "94_fidelity" / "throughput.csv").write_text(rows)
    text = compare_figure.fidelity(tmp_path)
    assert "was 2.0 % from" in text and text.endswith("12.3 % at worst (Ray, 4 workers, async).")


def test_a_headline_has_its_numbers_until_a_verdict_changes(house):
    for paper in ("oac", "gba"):
        house.claims(GOOD.replace("a.b", f"{paper}.x"), paper)
    judged = house.record(results_of(0.05, range(SEALED.start, SEALED.start + 5)), "gba/one", "laptop")
    text = "gba: {text: 'Ours {gba.x}, the paper {gba.x:paper}, {gba.x:share} of it.', verdicts: {gba.x: other size}}"
    (house.notebooks / "headlines.yaml").write_text(text)
    assert headline("gba", judged) == "Ours 0.0500, the paper 0.2, 25 % of it." and headline("oac", judged) == ""
    assert "| Ours 0.0500, the paper 0.2, 25 % of it. | 1: 1 other size |" in papers(paths.reference(), judged)
    (house.notebooks / "headlines.yaml").write_text(text.replace("other size", "reproduced"))
    outdated = headlines()["gba"].outdated({each.claim.id: each for each in judged})
    assert outdated == ["gba.x: reproduced then, other size now"]
    assert headline("gba", judged) == "" and "wait for their next run" in papers(paths.reference(), judged)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{gba.y}", "gba.y has a number there, but no place in its verdicts"),
        ("{gba.x@none}", "stands for no number; cases are 'value'"),
    ],
)
def test_a_headline_without_its_number_is_an_error(house, text, message):
    house.claims(GOOD.replace("a.b", "gba.x"), "gba")
    [judged] = house.record(results_of(0.05), "gba/one", "laptop")
    with pytest.raises(BadHeadline, match=message):
        Headline(text=text, verdicts={"gba.x": "other size"}).filled({"gba.x": judged})


def test_the_comparisons_headline_fits_its_table():
    """Its page has no verdicts, on which it could rest."""
    first = {place: sound for place, sound, *_ in explorer.winners(index.front(paths.reference())["measured"])}
    assert first.pop("equal workers").startswith("sync, gba") and all(each.startswith("gba") for each in first.values())


def test_headlines_fit_what_is_published():
    """When this fails, a verdict has changed since the sentence about it was written: write the sentence anew."""
    found = {verdict.claim.id: verdict for verdict in claims.verdicts(paths.reference())}
    for name, each in headlines().items():
        known = {paper.folder for paper in runner.papers()} | {each.name for each in runner.experiments()}
        assert name in known and not each.outdated(found), each.outdated(found)
        assert len(each.filled(found).split()) <= 36 and "{" not in each.filled(found)
        numbers = [found[number["claim"]].claim for number in NUMBER.finditer(each.text)]
        formula = any(claim.foreseen for claim in numbers)
        assert "foreseen" in each.text or not formula, f"{name}: say what a formula gave"


def test_every_page_of_a_paper_begins_with_its_finding():
    found = claims.verdicts(paths.reference())
    for each in runner.experiments():
        page = paths.reference() / f"{each.name}.html"
        if each.paper and page.exists():
            said = headline(each.name, [verdict for verdict in found if verdict.claim.notebook == each.name])
            text = unescape(page.read_text(encoding="utf-8"))
            assert said and f'</h1><p class="headline">{said}</p>' in text, each.name


def test_every_margin_has_its_reason():
    """And no reason is left of a margin that no claim has any more."""
    papers = {paper.folder: paper for paper in runner.papers()}
    rows = index.margins([*claims.load().values()], papers)
    assert all(why for _, _, why, _ in rows) and len(rows) == sum(map(len, words()["margin_reasons"].values()))


def test_the_index_tells_a_claim_that_waits_from_a_page_without_claims(ran):
    ran.notebook("gba/free", "# Without claims", parameters=PARAMETERS)
    runner.run("gba/free", "laptop")
    publish.publish()
    ran.claims(GOOD.replace("a.b", "a.c"), "gba")
    forget_the_run(ran)
    index = publish.publish().read_text()
    assert ">1 wait for a run<" in index
    rows = dict(re.findall(r'<a href="(gba/(?:one|free))\.html".*?class="marks">(.*?)</span>', index, re.DOTALL))
    assert 'class="mark not-run"' in rows["gba/one"] and rows["gba/free"] == ""
    paper = (paths.reference() / "gba" / "index.html").read_text()
    assert publish.WAITS in paper and 'id="a.c"' in paper, "its rule can be read before it runs"


def change_csv(house, text=None):
    path = house.reports / "gba" / "one" / "auc.csv"
    path.write_text(text) if text else path.unlink()


def name_a_path(house):
    path = house.reports / "gba" / "one.ipynb"
    path.write_text(path.read_text().replace("What is seen.", f"Read from {house.root}/data/x."))


NOT_LAPTOP = r"`make reproduce PROFILE=laptop` makes them:\nnotebook gba/one was run at the profile smoke"
UNFIT = [
    (lambda house: change(house, profile="smoke"), NOT_LAPTOP),
    (lambda house: change(house, parameters={"seeds": 1}), "parameters of its own: seeds=1"),
    (lambda house: (house.reports / "gba" / "one.failed.ipynb").touch(), "gba/one failed when it was last run"),
    (lambda house: house.claims(GOOD.replace("0.2", "0.3"), "gba"), r"a\.b was changed since it was judged: the rule"),
    (lambda house: house.claims(GOOD + GOOD.replace("a.b", "a.c"), "gba"), r"claim a\.c was not judged by gba/one"),
    (change_csv, r"gba/one: its page leads to gba/one/auc\.csv, which cannot be read"),
    (name_a_path, r"one\.html names a path of this machine, /.*/data/x"),
    (lambda house: change_csv(house, "1" * 4_100_000), r"auc\.csv has 4\.1 MB, 4 is the most"),
]


@pytest.mark.parametrize(("plant", "message"), UNFIT)
def test_what_is_not_fit_is_refused_and_nothing_changes(ran, plant, message):
    publish.publish()
    plant(ran)
    before = (contents(paths.reference()), (ran.root / "README.md").read_bytes())
    with pytest.raises(NotPublished, match=message):
        publish.publish()
    assert (contents(paths.reference()), (ran.root / "README.md").read_bytes()) == before
    assert ran.left_behind() == []


def test_a_rule_that_changed_judges_the_published_runs_again(ran):
    """The page stays with its data and shows today's word, in short and in full; the record keeps that of its run."""
    publish.publish()
    forget_the_run(ran)
    ran.claims(GOOD.replace("value: 0.2", "value: 0.05") + GOOD.replace("a.b", "a.c").replace("auc", "qps"), "gba")
    before = contents(paths.reference())
    for _ in range(2):  # the second time nothing is left to change
        publish.publish()
        after = contents(paths.reference())
        page = (paths.reference() / "gba" / "one.html").read_text()
        assert page.count('class="verdict other-size"') == 2 and 'class="verdict reproduced"' not in page
        assert "judged again, by today&#39;s rule, from runs made by the code of" in page and "What is seen." in page
        assert '<a href="../claims/a.b.json">claims/a.b.json</a>' in page, "the word of its own day is a link"
        assert after["claims/a.b.json"] == before["claims/a.b.json"]
        assert b'"word": "reproduced"' in after["claims/a.b.json"]
        text = " ".join((ran.root / "README.md").read_text().split())
        assert "by today's rules, which are younger than the runs (GBA): 1 hold in direction but not in size." in text
        assert "| 2: 1 other size, 1 waiting for a run |" in text
    (paths.reference() / "claims" / "a.b.json").unlink()
    publish.publish()
    assert NONE_YET in " ".join((ran.root / "README.md").read_text().split())


def test_where_nothing_was_run_readme_is_made_again_from_what_is_published(ran, monkeypatch):
    """As after a new protocol, which README lists."""
    publish.publish()
    before = contents(paths.reference())
    forget_the_run(ran)
    monkeypatch.setattr(families, "ALL", {**ALL, "mine": ALL["sync"]})
    publish.publish()
    assert "`ssp`, `staleness-aware`, `dc-asgd`, `ringmaster`, `mine` |" in (ran.root / "README.md").read_text()
    assert contents(paths.reference()) == before


def test_nothing_to_publish_and_no_place_for_it(ran):
    (ran.root / "README.md").write_text("# Kit")
    with pytest.raises(NoPlace, match=r"README\.md has no place for the findings: a line <!-- findings"):
        publish.publish()
    assert not paths.reference().exists() and ran.left_behind() == []
    forget_the_run(ran)
    with pytest.raises(NotPublished, match="nothing has been run"):
        publish.publish()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("warning: /home/ann/kit/lib/x.py:3: bad", "/home/ann/kit/lib/x.py:3:"),
        ("'/Users/ann'", "/Users/ann"),
        (r"C:\Users\ann\kit", r"C:\Users\ann\kit"),
        ("the log is at https://example.org/home/ann", None),
        ("a home/work balance, reports/home/ann", None),
        ('<img src="data:image/png;base64,AA+/home/ann/AA==">', None),
    ],
)
def test_paths_of_a_machine(text, found):
    assert machine_path(text) == found


def test_a_new_protocol_joins_the_family_that_takes_its_contract(monkeypatch):
    """So that adding one is a file and a line in `ALL`."""
    monkeypatch.setattr(families, "ALL", {**dict(ALL.items()), "mine": server_rule.Mine})
    [family] = [each for each in families.families() if "mine" in each["members"]]
    assert family["takes"] == "server"
    assert sorted(families.members()) == sorted({*ALL, "mine"} - {"frozen"}), "each is of one family"


def test_the_repositorys_readme_says_what_its_reference_holds(monkeypatch):
    """When this fails, `python -m reports.publish` has not been run, or its table was edited by hand."""
    monkeypatch.delenv("LOCKSTEP_ROOT", raising=False)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert paths.root() == ROOT and published_readme() == text
    data = compare_figure.read(paths.reference())
    if data is not None:
        svg, words = (paths.reference() / f"{publish.FRONT}.{kind}" for kind in ("svg", "json"))
        assert svg.read_text(encoding="utf-8") == compare_figure.svg(compare_figure.figure(data))
        fidelity = compare_figure.fidelity(paths.reference())
        found = compare_figure.front(data, compare_figure.read_conditions(paths.reference()), fidelity)
        assert json.loads(words.read_text(encoding="utf-8")) == found
    if not list((paths.reference() / "claims").glob("*.json")):
        assert NONE_YET in text


def test_git_keeps_the_reference_and_nothing_else_of_the_reports():
    names = ["reports/reference/gba/one.html", "reports/reference/claims/a.b.json", "reports/reference/gba/one/auc.csv"]
    others = ["gba/one.html", "runs/x/run.json", "claims/a.b.json", ".reference-x/index.html"]
    others = [f"reports/output/{name}" for name in others]
    command = ["git", "check-ignore", *names, *others]
    ignored = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if ignored.returncode == 128:
        pytest.skip("no checkout of git")
    assert ignored.stdout.split() == others


def test_each_file_of_the_reference_is_made_by_publishing_or_kept_by_it():
    made = {"README.md", "across.html", "claims", "index.html", "protocols", "protocols.json", "rules.html"}
    made |= {f"{index.FRONT}.json", f"{index.FRONT}.svg", *publish.BY_HAND}
    first = {experiment.name.partition("/")[0] for experiment in runner.experiments()}
    assert {path.name for path in paths.reference().iterdir()} <= made | first | {f"{name}.html" for name in first}
