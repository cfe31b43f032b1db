"""Pages: offline, readable, whole."""

import json
import re
import shutil

import pytest

from lib import paths
from reports import runner
from reports.index import build, write_index
from reports.page import PageError, check_offline, export, figure_first, render
from tests.reports.conftest import FIGURE, JUDGED, House
from tests.reports.test_claims import GOOD, results_of

PROFILE = 'profile: str = "smoke"'
HEADINGS = "# Title & all\n\n## Same\n\ntext with `code`, [a link](https://example.org)\n\n## Same\n\n### Below"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One small notebook executed and exported for all the tests below."""
    house = House(tmp_path_factory.mktemp("built"))
    cells = [HEADINGS, FIGURE, "plots.settings(a=1)", "data", 'print("a <b>")']
    house.notebook("gba/one", *cells, parameters=PROFILE)
    house.notebook("gba/two", "# Not run")
    house.claims(GOOD, "gba")
    with house.environment():
        house.index = build(name="gba/one")
    house.page = (house.reports / "gba" / "one.html").read_text()
    return house


def test_code_is_folded(built):
    outside = re.sub(r"<details.*?</details>", "", built.page, flags=re.DOTALL)
    assert "import pandas" not in re.sub(r"<[^>]+>", "", outside)
    assert "import" in built.page and "<details open" not in built.page


def test_the_contents_lead_somewhere(built):
    nav = re.search(r"<nav[^>]*contents.*?</nav>", built.page, re.DOTALL)[0]
    targets = re.findall(r'href="#([^"]+)"', nav)
    ids = re.findall(r'\sid="([^"]+)"', built.page)
    assert targets == ["same", "same-2", "below", "in-short", "settings"]
    assert set(targets) <= set(ids) and len(ids) == len(set(ids))


def test_figures_have_words_and_numbers(built):
    assert re.search(r'<img alt="A curve\." src="data:image/png|<img[^>]+alt="A curve\."', built.page)
    assert "What is seen." in re.search(r"<figcaption>.*?</figcaption>", built.page, re.DOTALL)[0]
    link = re.search(r'class="data" href="([^"]+)"', built.page)[1]
    assert (built.reports / "gba" / link).read_text().startswith("protocol,time,auc\nsync,1,0.5\n")


def test_text_is_escaped(built):
    assert "a &lt;b&gt;" in built.page and "<title>Title &amp; all · Lockstep</title>" in built.page


def test_the_index_has_every_experiment(built):
    html, paper = built.index.read_text(), (built.reports / "gba" / "index.html").read_text()
    assert 'href="gba/one.html"' in html and "not run yet" in html and 'href="gba/index.html#a.b"' in html
    assert 'href="../gba/one.html"' in paper and "lockstep run gba/two" in paper and "profile smoke" in paper
    assert 'id="a.b"' in paper and re.search(r">value</td>.*>0.2</td>", paper)


def test_the_index_shows_a_verdict_and_a_changed_claim(house):
    house.notebook("one", "# One")
    house.claims(GOOD)
    house.record(results_of(-1), "one")
    write_index()
    html = (house.reports / "across.html").read_text()
    assert '<span class="verdict contradicted">contradicted</span>' in html and "unexplained" in html
    assert "its seeds were not sealed" in html and "Our targets" not in html
    house.claims(GOOD.replace("value: 0.2", "value: -1").replace('">="', '"<="'))
    write_index()
    html = (house.reports / "across.html").read_text()
    assert "judged again, by today&#39;s rule, from runs made by the code of commit" in html
    assert '<span class="verdict reproduced">reproduced</span>' in html and "contradicted<" not in html


def test_a_page_shows_its_verdicts_as_they_stand(house):
    """With what was tested after the run, which its own output cannot know."""
    path = house.notebook("one", "# One", "1")
    house.claims(GOOD)
    house.record(results_of(-1), "one")
    nb = json.loads(path.read_text())
    shown = {"data": {"text/html": "<p>of the run</p>"}, "metadata": {"text/html": {"role": "verdicts"}}}
    nb["cells"][-1]["outputs"] = [{"output_type": "display_data", **shown}]
    (house.reports / "one.ipynb").write_text(json.dumps(nb))
    house.claims(GOOD.rstrip("\n") + "\n  explanations: [{changed: half the rate, found: the same}]\n")
    html = render(house.reports / "one.ipynb")
    assert "of the run" not in html
    assert html.count("Tested: half the rate. Found: the same.") == 2, "in short, and beside the verdict"


def test_the_index_shows_claims_whose_notebook_is_missing(house):
    house.claims(GOOD)
    write_index()
    assert "still to be made" in (house.reports / "across.html").read_text()


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<script>1</script>", "<script>"),
        ('<link rel="stylesheet" href="a.css">', "<link>"),
        ('<img src="https://x/y.png" alt="a">', "<img src="),
        ('<img src="y.png" alt="a">', "<img src="),
        ('<img src="data:image/png;base64,AA">', "without alternative text"),
        ("<style>@import 'x'</style>", "@import"),
        ('<div style="background: url(https://x)">', "url(https"),
        ('<a href="javascript:1">', "javascript"),
        ('<p onclick="1">', "onclick"),
        ('<meta http-equiv="refresh" content="0;url=x">', "meta refresh"),
        ('<svg><use xlink:href="https://x"/></svg>', "xlink:href"),
        ('<video poster="x">', "poster"),
    ],
)
def test_what_loads_or_runs_is_found(html, found):
    with pytest.raises(PageError, match=re.escape(found)):
        check_offline(html)
    check_offline('<a href="https://example.org">x</a><img src="data:image/png;base64,AA" alt="a">')


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"text/html": "<script src='https://cdn/x.js'></script>"}, "n: a report loads and runs nothing"),
        ({"image/png": "AAAA"}, "without alternative text"),
        ({"text/html": "x" * 2_100_000}, r"the page has 2\.1 MB, 2 is the most"),
    ],
)
def test_a_notebook_that_makes_no_offline_page_is_refused(house, output, message):
    path = house.notebook("n", "x")
    nb = json.loads(path.read_text())
    nb["cells"][0]["outputs"] = [{"output_type": "display_data", "data": output, "metadata": {}}]
    executed = paths.write_text_atomic(house.reports / "n.ipynb", json.dumps(nb))
    with pytest.raises(PageError, match=message):
        export(executed)
    assert not (house.reports / "n.html").exists()


def test_what_works_is_built_before_a_failure_is_told(house, monkeypatch):
    monkeypatch.setattr("reports.runner.parallel.cpu_count", lambda: 1)  # side by side: test_runner.py
    house.notebook("a", "# A", "1 / 0", parameters=PROFILE)
    house.notebook("b", "# B", parameters=PROFILE)
    with pytest.raises(runner.NotebookFailed, match=r"(?s)1 notebooks failed.*cell 3: ZeroDivisionError"):
        build()
    assert (house.reports / "b.html").exists() and not (house.reports / "a.html").exists()
    assert "its last run failed" in (house.reports / "index.html").read_text()


CARD = "from reports import plots\nplots.provenance_card([], 'gba/one')"
ORDER = ["# Question\n\nWhat is better?", "plots.settings(a=1)", "plots.claims('gba/one')"]


def test_a_page_answers_first_and_says_everything_once(house):
    """Question, in short, the finding, verdicts, settings, limits, provenance, whatever the order of the cells."""
    code = "from reports import plots\n"
    cells = [code + cell if "plots" in cell else cell for cell in ORDER] + ["# \n\n## Finding\n\nSomething."]
    house.notebook("gba/one", *cells, CARD, JUDGED, "# \n\n## Limits\n\nNone.", parameters=PROFILE)
    house.notebook("gba/two", "# Second", parameters=PROFILE)
    house.claims(GOOD, "gba")
    build("laptop", "gba/two")
    build("laptop", "gba/one")
    page = (house.reports / "gba" / "one.html").read_text()
    body = page[page.index("<main>") :]
    headings = re.findall(r"<h[12][^>]*>([^<]+)</h", body)
    assert headings == ["Question", "In short", "Finding", "Verdicts", "Settings", "Limits", "Provenance"]
    assert "What is claimed" not in page and page.count("Better.") == 2  # in short, and the verdict
    assert 'href="#a.b"' in page and 'id="a.b"' in page
    assert '<a class="next" href="../gba/two.html">Second →</a>' in page and 'class="previous"' not in page
    shutil.copytree(house.reports / "claims", house.root / "kept")
    build("smoke", "gba/one")
    page = (house.reports / "gba/one.html").read_text()
    assert "Nothing has been judged yet: this page is of the profile smoke" in page and "short run" not in page
    shutil.copytree(house.root / "kept", house.root / "reports" / "reference" / "claims")
    build("smoke", "gba/one")
    page = (house.reports / "gba/one.html").read_text()
    assert "Published (profile laptop, commit" in page and "Nothing has been judged" not in page
    assert '<span class="published">published: ' in page and "this short run:" in page


FOLDED = '<details class="code"><summary>3 lines</summary><p>a</p></details><div class="result"><table></table></div>'
WORDS = ['<h2 id="x">X</h2>', "<p>What the marks are.</p>", "<pre>a line that was printed</pre>"]


@pytest.mark.parametrize("between, up", [(FOLDED, True), *((words, False) for words in WORDS)])
def test_the_first_figure_stands_right_after_in_short(between, up):
    """Past folded code and tables, and not past the words that lead to it; the second stays where it is."""
    short = '<section class="short"><h2>In short</h2><p>a</p></section></div>'
    one, two = (f'<div class="result"><figure id="{name}"></figure></div>' for name in "ab")
    html = f"<main>{short}{between}{one}{between}{two}</main>"
    assert figure_first(html) == (f"<main>{short}{one}{between}{between}{two}</main>" if up else html)
    assert figure_first(between + one) == between + one, "no answer, nothing to stand after"
