"""The published site: what its pages are made of, and how they look and answer in a browser."""

import base64
import hashlib
import io
import re
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from lib.protocols import ALL
from reports import explorer, protocol_pages, timelines
from reports.page import framed, policy, with_words
from reports.thumbnails import thumbnails
from tests.devtools import BROWSER
from tests.reports.test_browser import probed

REFERENCE = Path(__file__).parents[2] / "reports" / "reference"
MEASURED = {
    "stragglers": {
        "sync": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
        "all-reduce": [0.5, 0.5, 0.5, 0.0, 0.0, 0.0],
        "gba": [2.0, 1.9, 2.1, 0.0001, -0.0002, 0.0004],
        "async": [3.0, 2.9, 3.1, -0.003, -0.004, -0.002],
        "d-psgd": [4.0, 4.0, 4.0, -0.07, -0.2, 0.1],
        "gba+diloco": [5.0, 5.0, 5.0, 0.0, 0.0, 0.0],
    }
}


def test_the_fastest_without_a_loss_is_not_the_fastest():
    """Combinations are no registered protocols, and an interval that is wide enough for any loss shows no equality."""
    faster = "d-psgd 4.00× (−0.0700), async 3.00× (−0.0030)"
    assert explorer.winners(MEASURED) == [("stragglers", "gba: 2.00×", faster, "0.50×")]
    twins = {"gba": MEASURED["stragglers"]["gba"], "bsp": MEASURED["stragglers"]["gba"], "sync": [1.0] * 3 + [0.0] * 3}
    assert explorer.winners({"shared": twins})[0][1] == "gba = bsp: 2.00×", "identical numbers, and no two equal ones"
    wins = {each["name"]: each["wins"] for each in protocol_pages.entries(MEASURED)}
    assert wins["gba"] == ["stragglers"] and wins["d-psgd"] == wins["async"] == wins["sync"] == wins["oac"] == []
    assert protocol_pages.words(MEASURED["stragglers"]["d-psgd"])[2] == "faster, AUC unclear"
    told = protocol_pages.words(MEASURED["stragglers"]["async"])
    assert told == ("3.00×", "−0.0030 [−0.0040, −0.0020]", "faster, lower AUC")


def test_faster_is_right_and_a_higher_auc_is_up():
    found = explorer.places(MEASURED)["stragglers"]
    sync, gba, other = (found["dots"][name] for name in ("sync", "gba", "async"))
    assert sync[0] < gba[0] < other[0] and gba[1] < sync[1] < other[1]
    assert [each[2] for each in (sync, gba, other)] == [False, False, True], "hollow where the AUC differs measurably"
    assert (sync[0], "1×") in found["x"] and (sync[1], "Sync's AUC") in found["y"]


@pytest.mark.parametrize("name", [name for name in ALL if name != "frozen"])
def test_every_protocol_shows_its_rule(name):
    page = protocol_pages.details(name, MEASURED)
    assert page["about"][0] and page["cite"] and (REFERENCE.parents[1] / page["source"]).exists()
    assert page["rule"].startswith(f"class {ALL[name].__name__}") and '"""' not in page["rule"]
    compile(page["rule"], name, "exec")


def test_timelines_show_who_waits():
    """Four workers, one at half speed: Sync trains a batch of each per two units of time, Async six in that time."""
    sync, free = (timelines.timeline(name, 4, 1, 2.0) for name in ("sync", "async"))
    assert sync["rows"] == ["worker 1", "worker 2", "worker 3", "worker 4, slower"]
    assert len(free["batches"]) / len(sync["batches"]) == pytest.approx(7 / 4, rel=0.2)
    assert timelines.timeline("oac", 4, 1, 2.0)["rows"][0] == "read"
    starts = [int(x) for x in re.findall(r"M(\d+) 11h", sync["paths"]["compute"])]
    assert starts == sorted(starts) and starts[-1] <= timelines.WIDTH


def test_the_policy_names_the_one_script_of_a_page():
    digest = base64.b64encode(hashlib.sha256(b"1").digest()).decode()
    assert policy("1") == f"{policy()}; script-src 'sha256-{digest}'" and "script-src" not in policy()


def test_a_page_of_an_earlier_run_gets_todays_look():
    old = '<meta content="x" http-equiv="Content-Security-Policy"/><style>bygone</style><header class="top">L</header>'
    new = framed(f"{old}<main><style>inner</style></main>", "gba/tuning")
    assert "bygone" not in new and "<style>inner</style>" in new and "default-src" in new
    assert framed(new, "gba/tuning") == new


def test_a_page_of_an_earlier_run_gets_todays_title_question_and_finding(house):
    house.notebook("gba/one", "# Does it?\n\nToday's question.", parameters="x: int = 1")
    (house.notebooks / "headlines.yaml").write_text("gba/one: {text: It does., verdicts: {}}")
    old = '<title>Old · Lockstep</title><h1 id="old">Old</h1>\n<p>Bygone.</p><section class="short">kept</section>'
    new = with_words(old, "gba/one", [])
    assert "<title>Does it? · Lockstep</title>" in new and "Bygone" not in new and "Today's question." in unescape(new)
    assert '<h1 id="does-it">Does it?</h1><p class="headline">It does.</p>' in new and new.endswith("kept</section>")
    assert with_words(new, "gba/one", []) == new
    bare = with_words("<h1>Old</h1><p>No claims.</p>", "gba/one", [])
    assert bare.startswith('<h1 id="old">Old</h1><p class="headline">It does.</p>')
    assert "BSP means" in bare and "No claims." in bare


def test_a_page_of_an_earlier_run_gets_todays_text_below_its_headings(house):
    texts = "# Does it?", "## How\n\nToday's way.\n\n### More\n\nMuch more.", "## Limits\n\n- A small one."
    house.notebook("gba/one", *texts, parameters="x: int = 1")
    code, result = '<details class="code">1</details>', '<div class="result"><h2 id="verdicts">Verdicts</h2></div>'
    old = f'<h1>Does it?</h1><h2 id="how">How</h2><p>Before.</p>{code}<p>Stays.</p>{result}'
    old += '<h2 id="limits-and-more">Limits, and more</h2><nav>'
    new = with_words(old, "gba/one", [])
    assert "Before." not in new and "<p>Today's way.</p>" in unescape(new) and f"{code}<p>Stays.</p>{result}" in new
    assert "Much more." not in new, "below a heading that the page has not"
    assert re.search(r'<h2 id="limits">Limits</h2>\s*<ul>\s*<li>A small one.</li>\s*</ul>\s*<nav>', new)
    assert with_words(new, "gba/one", []) == new


def test_a_page_names_the_commits_of_its_runs_its_rules_and_itself():
    old = "<summary>How to repeat this page, and what it was made with</summary><dt>commit</dt> · commit 0123456789abc"
    new = framed(old, "oac/eviction")
    assert "<dt>commit of the runs' code</dt>" in new and " · page made at commit 0123456789abc" in new
    assert "For the same numbers check out the commit of the runs" in unescape(new)
    assert framed(new, "oac/eviction") == new
    if (REFERENCE.parents[1] / ".git").exists():
        assert re.search(r"The verdicts are by the rules of commit [0-9a-f]{10}\.", new)


def test_a_page_has_a_small_picture_of_its_first_figure(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (960, 640), "white").save(file, "PNG")
    picture = base64.b64encode(file.getvalue()).decode()
    text = f'<figure id="a"><img alt="AUC &amp; time" src="data:image/png;base64,{picture}"></figure>'
    (tmp_path / "a.html").write_text(text)
    (tmp_path / "b.html").write_text("no figure")
    found = thumbnails({name: tmp_path / f"{name}.html" for name in "ab"})
    assert [*found] == ["a"] and found["a"][1] == "AUC & time"
    assert Image.open(io.BytesIO(base64.b64decode(found["a"][0]))).size == (220, 147)


@pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt-get install chromium)")
class TestInABrowser:
    def test_published_pages_fit(self, browser):
        for name in ("index.html", "oac/index.html", "protocols/gba.html", "gba/figure_6_switching.html"):
            for width in (390, 1400):
                found = probed(browser, REFERENCE / name, width)
                assert found == {"wide": width, "faults": [], "fetched": [], "images": True}, f"{name} at {width}"
        assert browser.complaints() == []

    def test_the_policy_lets_the_pages_own_script_run(self, browser):
        browser.load((REFERENCE / "index.html").as_uri())
        assert browser.value("!document.querySelector('.finder').hidden"), "what needs a script is shown by the script"

    def test_search_explorer_and_timelines_answer(self, browser):
        acts = """(() => {
        const act = (e, value, kind) => { e.value = value; e.dispatchEvent(new Event(kind)); };
        const found = {};
        act(one('#search'), 'gba', 'input');
        found.first = one('#hits a').getAttribute('href');
        act(one('#search'), 'no such thing at all', 'input');
        found.none = one('#hits').textContent;
        const dot = one('[data-name="async"]'), before = dot.style.left;
        one('[name=place][value="heavy stragglers"]').click();
        found.moved = dot.style.left !== before;
        dot.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));
        found.said = one('#readout').textContent;
        one('#own').click();
        found.own = all('.dot').filter((e) => getComputedStyle(e).display !== 'none').map((e) => e.dataset.name);
        one('#own').click();
        one('#family-3').click();
        found.hidden = getComputedStyle(dot).display;
        const count = () => Number(one('.watch [data-name=sync] output').textContent.split(' ')[0]);
        act(one('#slowdown'), 0, 'input'); found.equal = count();
        act(one('#slowdown'), 4, 'input'); found.slow = count();
        act(one('#time'), 0, 'input'); found.start = count();
        return found;
        })()"""
        browser.load((REFERENCE / "index.html").as_uri())
        found = browser.value(acts)
        assert browser.complaints() == []
        assert found["first"] == "protocols/gba.html" and found["none"] == "Nothing found."
        assert {"sync", "gba", "s-easgd", "hybrid", "ds-sync"} <= {*found["own"]} and "async" not in found["own"]
        assert found["moved"] and found["said"].startswith("async: ") and found["hidden"] == "none"
        assert found["start"] == 0 < found["slow"] < found["equal"] / 2


def test_a_sentence_about_one_protocol_of_a_file_is_on_its_page_alone():
    def says(name, words):
        return words in " ".join(protocol_pages.details(name, {})["about"])

    assert says("2d-sparse", "copy of all tables") and not says("all-reduce", "copy of all tables")
    assert says("noloco", "two workers meet") and not says("des-loc", "two workers meet")
