"""Pages as a browser shows them on a phone, a tablet, a desk and on paper: nothing is fetched, overlaps or runs out."""

import base64
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.seeds import DRAWN, SEALED
from reports.index import build
from tests.devtools import BROWSER
from tests.reports.conftest import FIGURE, JUDGED, PARAMETERS, House
from tests.reports.test_claims import GOOD

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt-get install chromium)")
WIDE = """table = pd.DataFrame({f"a long name of column {i}": [i / 7, 1e6 * i] for i in range(9)})
plots.table(table, "Wide.")"""
POLICY = r"<meta[^>]*Content-Security-Policy[^>]*>"
PROBE = """(() => {
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
return {wide, faults: [...new Set(faults)].slice(0, 8), fetched, images};
})()"""
LIMITS = "# \n\n## Limits\n\n- `a_long_word_without_a_space_that_must_break_somewhere_or_run_out_of_a_phone`."


def probed(browser, path, width, media="screen"):
    """What the probe finds on a page of that width; the page's own policy stops no script of a debugger's."""
    browser.call("Emulation.setEmulatedMedia", media=media)
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=40000, deviceScaleFactor=1, mobile=False)
    browser.load(path.as_uri())
    return browser.value(PROBE)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """An index, and a page with a figure, a wide table, verdicts of cases with pictures, settings and provenance."""
    made = House(tmp_path_factory.mktemp("browser"))
    provenance = 'plots.provenance_card([], "gba/one")'
    settings = "plots.settings(profile=profile, a_rather_long_name_of_a_setting='x' * 60)"
    cells = [FIGURE, WIDE, JUDGED, settings, LIMITS]
    made.notebook("gba/one", "# A page with everything\n\nIs it?", *cells, provenance, parameters=PARAMETERS)
    made.notebook("gba/two", "# Not run")
    cases = GOOD.replace("subject: gba", 'subject: "{case}"').replace("{value: 0.2}", "{gba: 0.2, sync: more}")
    made.claims(GOOD + cases.replace("a.b", "a.c"), "gba")
    with made.environment(**{DRAWN: SEALED.start}):
        build("laptop", "gba/one")
    return made


@pytest.mark.parametrize("width, media", [(390, "screen"), (800, "screen"), (1280, "screen"), (718, "print")])
def test_nothing_overlaps_runs_out_or_is_fetched(width, media, house, browser):
    """Printed, on A4: 210 mm minus two margins of a centimetre."""
    for page in ("index.html", "gba/index.html", "rules.html", "gba/one.html"):
        found = probed(browser, house.reports / page, width, media)
        assert found == {"wide": width, "faults": [], "fetched": [], "images": True}, page
    assert browser.complaints() == []


def test_the_policy_lets_the_page_itself_be(house, browser):
    """Shown as it is, a page is complete without a complaint, and it can be printed."""
    for page in ("index.html", "gba/index.html", "gba/one.html"):
        browser.load((house.reports / page).as_uri())
        assert base64.b64decode(browser.call("Page.printToPDF")["data"]).startswith(b"%PDF")
    assert browser.complaints() == []


def test_a_page_that_runs_out_is_found(tmp_path, browser):
    """The probe itself: planted faults."""
    html = """<html><head></head><body style="margin:0"><p style="width:900px">wide</p><img src="data:," alt="">
    <p style="height:20px;margin:0">one</p><p style="margin-top:-15px">two</p><img src="nowhere.png" alt="x"></body></html>"""
    (tmp_path / "planted.html").write_text(html)
    found = probed(browser, tmp_path / "planted.html", 390)
    assert any("the page is 900 wide of 390" in fault for fault in found["faults"])
    assert {fault.split(":")[0] for fault in found["faults"]} >= {"runs out", "overlap", "without words"}
    assert not found["images"] and browser.complaints()


def test_filters_hide_what_is_not_chosen(house, browser):
    """Without a script: what is checked decides by :has() which claims are shown."""
    shown = "[...document.querySelectorAll('.entry')].filter((e) => e.offsetHeight).map((e) => e.querySelector('.anchor').id)"
    browser.load((house.reports / "gba" / "index.html").as_uri())
    assert browser.value(shown) == ["a.b", "a.c"]
    browser.value("document.getElementById('verdict-reproduced').checked = true")
    assert browser.value(shown) == ["a.b"]


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
def test_the_policy_stops_what_is_fetched_or_run_however_it_is_written(policy, house, tmp_path, listening, browser):
    """The browser itself keeps the promise; what `check_offline` finds is for the author. Without the policy it fetches all."""
    address, asked = listening
    html = (house.reports / "gba" / "one.html").read_text(encoding="utf-8")
    for number, text in enumerate(HOSTILE.values()):
        place = f"{address}/{number}"
        html = html.replace("</body>", text.format(place, place.removeprefix("http")) + "</body>")
    (tmp_path / "page.html").write_text(html if policy else re.sub(POLICY, "", html))
    browser.load((tmp_path / "page.html").as_uri())
    end = time.monotonic() + (1 if policy else 60)  # nothing comes, or on a busy machine all does at last
    while len({*asked}) < len(HOSTILE) and time.monotonic() < end:
        time.sleep(0.1)
    fetched = {name for number, name in enumerate(HOSTILE) if str(number) in asked}
    assert fetched == (set() if policy else {*HOSTILE})
