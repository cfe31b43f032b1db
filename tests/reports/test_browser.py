"""Pages as a browser shows them on a phone, a tablet, a desk and on paper: nothing is fetched, overlaps or runs out."""

import json
import re
import shutil
import subprocess
import threading
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.seeds import DRAWN, SEALED
from reports.index import build
from tests.reports.test_claims import GOOD
from tests.reports.test_publish import FIGURE, JUDGED, PARAMETERS

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt-get install chromium)")
WIDE = """table = pd.DataFrame({f"a long name of column {i}": [i / 7, 1e6 * i] for i in range(9)})
plots.table(table, "Wide.")"""
POLICY = r"<meta[^>]*Content-Security-Policy[^>]*>"
PROBE = """
const wide = document.documentElement.clientWidth, faults = [];
const folded = (e) => e.closest('details:not([open])') && !e.closest('summary');
const scrolls = (e) => e && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
const name = (e) => e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 40);
const most = document.documentElement.scrollWidth;
if (most > wide + 1) faults.push('the page is ' + most + ' wide of ' + wide);
for (const e of document.body.querySelectorAll('*')) {
  const box = e.getBoundingClientRect();
  if (!box.width || folded(e) || scrolls(e)) continue;
  if (box.right > wide + 1 || box.left < -1) faults.push('runs out: ' + name(e));
}
for (const e of document.querySelectorAll('img, svg[role=img]'))
  if (!(e.getAttribute('alt') || e.getAttribute('aria-label') || '').trim()) faults.push('without words: ' + name(e));
const said = 'p, h1, h2, h3, h4, td, th, li, dt, dd, figcaption, caption, summary, .verdict, .mark';
const text = [...document.querySelectorAll(said)].filter((e) => e.getBoundingClientRect().width && !folded(e));
for (const [i, one] of text.entries()) for (const other of text.slice(i + 1, i + 40)) {
  if (one.contains(other) || other.contains(one)) continue;
  const a = one.getBoundingClientRect(), b = other.getBoundingClientRect();
  const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  if (across > 2 && down > 2 && !scrolls(one)) faults.push('overlap: ' + name(one) + ' | ' + name(other));
}
const fetched = performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith('data:'));
const images = [...document.images].every((e) => e.naturalWidth);
document.title = 'PROBE' + JSON.stringify({wide, faults: [...new Set(faults)].slice(0, 8), fetched, images});
"""
LIMITS = "# \n\n## Limits\n\n- `a_long_word_without_a_space_that_must_break_somewhere_or_run_out_of_a_phone`."


def chromium(path, *options):
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        *options,
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probed(pages, folder):
    """What a script finds on each page, name -> HTML and width, in a frame of that width, and what the browser complains of; only
    a copy, without the page's policy, may run a script."""
    frames = ""
    for number, (html, width) in enumerate(pages.values()):
        script = f"addEventListener('load', () => {{{PROBE} parent.postMessage([{number}, document.title], '*')}})"
        copy = re.sub(POLICY, "", html).replace("</body>", f"<script>{script}</script></body>")
        (folder / f"probed{number}.html").write_text(copy)
        frames += f"<iframe width={width} height=40000 style='border:0' src=probed{number}.html></iframe>"
    told = "const found = {}; onmessage = (e) => { found[e.data[0]] = JSON.parse(e.data[1].slice('PROBE'.length)); "
    told += "document.querySelector('pre').textContent = 'PROBE' + JSON.stringify(found) }"
    (folder / "frame.html").write_text(f"<pre></pre><script>{told}</script>{frames}")
    dom, console = chromium(
        folder / "frame.html", "--window-size=1400,4000", "--virtual-time-budget=10000", "--dump-dom"
    )
    found = re.search(r"<pre>PROBE(.*?)</pre>", dom, re.DOTALL)
    assert found, dom[-500:]
    results = json.loads(unescape(found[1]))
    return {name: results[str(number)] for number, name in enumerate(pages)}, console


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """An index, and a page with a figure, a wide table, verdicts of cases with pictures, settings and provenance."""
    from tests.reports.conftest import House

    made = House(tmp_path_factory.mktemp("browser"))
    provenance = 'plots.provenance_card([], "gba/one")'
    settings = "plots.settings(profile=profile, a_rather_long_name_of_a_setting='x' * 60)"
    cells = [FIGURE, WIDE, JUDGED, settings, LIMITS]
    made.notebook("gba/one", "# A page with everything\n\nIs it?", *cells, provenance, parameters=PARAMETERS)
    made.notebook("gba/two", "# Not run")
    cases = GOOD.replace("subject: gba", 'subject: "{case}"').replace("{value: 0.2}", "{gba: 0.2, sync: more}")
    made.claims(GOOD + cases.replace("a.b", "a.c"), "gba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_ROOT", str(made.root))
        patch.setenv("LOCKSTEP_REPORTS", str(made.reports))
        patch.setenv(DRAWN, str(SEALED.start))
        build("laptop", "gba/one")
    return made


WIDTHS = {390: 390, 800: 800, 1280: 1280, "A4": 718}
"""A4: 210 mm minus two margins of a centimetre, with the rules for paper."""


def test_nothing_overlaps_runs_out_or_is_fetched(house, tmp_path):
    pages = {}
    for page in ("index.html", "gba/index.html", "rules.html", "gba/one.html"):
        html = (house.reports / page).read_text(encoding="utf-8")
        for name, width in WIDTHS.items():
            pages[page, name] = html.replace("@media print", "@media all") if name == "A4" else html, width
    found, console = probed(pages, tmp_path)
    for (page, name), what in found.items():
        sound = {"wide": WIDTHS[name], "faults": [], "fetched": [], "images": True}
        assert what == sound, f"{page} at {name}"
    assert console == []


def test_the_policy_lets_the_page_itself_be(house, tmp_path):
    """Shown as it is, a page is complete without a complaint, and it can be printed."""
    for page in ("index.html", "gba/index.html", "gba/one.html"):
        _, console = chromium(house.reports / page, f"--print-to-pdf={tmp_path / 'page.pdf'}")
        assert console == []
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_page_that_runs_out_is_found(tmp_path):
    """The probe itself: planted faults."""
    html = """<html><head></head><body style="margin:0"><p style="width:900px">wide</p><img src="data:," alt="">
    <p style="height:20px;margin:0">one</p><p style="margin-top:-15px">two</p><img src="nowhere.png" alt="x"></body></html>"""
    found = probed({"planted": (html, 390)}, tmp_path)[0]["planted"]
    assert any("the page is 900 wide of 390" in fault for fault in found["faults"])
    assert {fault.split(":")[0] for fault in found["faults"]} >= {"runs out", "overlap", "without words"}
    assert not found["images"]


def test_filters_hide_what_is_not_chosen(house, tmp_path):
    """Without a script: what is checked decides by :has() which claims are shown."""
    html = (house.reports / "gba" / "index.html").read_text(encoding="utf-8")
    chosen = html.replace('id="verdict-all" checked', 'id="verdict-all"')
    assert 'id="verdict-reproduced"' in html
    chosen = chosen.replace('id="verdict-reproduced"', 'id="verdict-reproduced" checked')
    shown = "[...document.querySelectorAll('.entry')].filter((e) => e.offsetHeight).map((e) => e.querySelector('.anchor').id)"
    counts = []
    for text in (html, chosen):
        script = f"<script>document.title = JSON.stringify({shown})</script></body>"
        (tmp_path / "page.html").write_text(re.sub(POLICY, "", text).replace("</body>", script))
        dom, _ = chromium(tmp_path / "page.html", "--dump-dom")
        counts.append(json.loads(unescape(re.search(r"<title>(.*?)</title>", dom)[1])))
    assert counts == [["a.b", "a.c"], ["a.b"]]


HOSTILE = {
    "escaped import": '<style>@\\69mport "{0}";</style>',
    "escaped url": r'<p style="background:u\72l({0})">x</p>',
    "slashes": '<img/src="{0}"/alt="a">',
    "a comment that ends at once": '<!--><img src="{0}" alt="a">-->',
    "a comment that ends oddly": '<!-- --!><img src="{0}" alt="a">-->',
    "style in svg": '<svg><style>&#64;import "{0}";</style></svg>',
    "script in svg": '<svg><script>new Image().src = "{0}"</script></svg>',
    "an entity": '<img src="&#104;ttp{1}" alt="a">',
    "a namespace": '<svg><image href="{0}"></image></svg>',
    "a title that swallows": '<title><!--</title><img src="{0}" alt="a">-->',
    "code on an error": "<img src=data:, alt=a onerror=\"new Image().src='{0}'\">",
    "a frame's text": "<iframe srcdoc=\"<img src='{0}'>\"></iframe>",
}
"""Ways to fetch something, some of which a parser that is no browser's reads otherwise."""


@pytest.fixture
def listening():
    """Where a server of this machine listens, and the paths that it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path.removeprefix("/"))
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("policy", [True, False])
def test_the_policy_stops_what_is_fetched_or_run_however_it_is_written(policy, house, tmp_path, listening):
    """The browser itself keeps the promise; what `check_offline` finds is for the author. Without the policy it fetches all."""
    address, asked = listening
    html = (house.reports / "gba" / "one.html").read_text(encoding="utf-8")
    for number, text in enumerate(HOSTILE.values()):
        place = f"{address}/{number}"
        html = html.replace("</body>", text.format(place, place.removeprefix("http")) + "</body>")
    (tmp_path / "page.html").write_text(html if policy else re.sub(POLICY, "", html))
    chromium(tmp_path / "page.html", "--virtual-time-budget=5000", "--dump-dom")
    fetched = {name for number, name in enumerate(HOSTILE) if str(number) in asked}
    assert fetched == (set() if policy else {*HOSTILE})
