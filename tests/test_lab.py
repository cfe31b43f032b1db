"""JupyterLab as a person sees it: the quick start is opened in a browser, run whole and looked at."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.devtools import BROWSER, Browser

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium (apt-get install chromium)")
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "00_quickstart.ipynb"
SMALL = {"samples: int = 0": "samples: int = 60_000", "workers: int = 32": "workers: int = 8"}
PUBLISHED = 'plots.verdicts(claims.published("gba/figure_6_switching"))'
"""A cell with verdicts of several cases, whose intervals are drawn."""
QUIET = {"fetchNews": "false", "checkForUpdates": False}
"""JupyterLab asks the network for neither news nor updates."""
PANEL = "jupyterapp.shell.currentWidget"
FAULTS = """(() => {
const faults = [], name = (e) => e.tagName + '.' + e.className + ' ' + e.textContent.trim().slice(0, 50);
const outputs = [...document.querySelectorAll('.jp-OutputArea-output')];
const kind = (e) => e.dataset.mimeType || '';
for (const e of outputs.filter((e) => /error|stderr/.test(kind(e)))) faults.push('complains: ' + e.textContent.slice(0, 200));
for (const e of outputs.flatMap((e) => [...e.querySelectorAll('*')])) {
  const style = getComputedStyle(e), box = e.getBoundingClientRect(), next = e.nextSibling;
  if (!box.width) continue;
  if (/^(P|DD|DT|CAPTION|FIGCAPTION|TD|TH|SPAN)$/.test(e.tagName) && !e.closest('.num')
      && /right|end|center/.test(style.textAlign)) faults.push('not at the left: ' + name(e));
  if (e.tagName == 'SPAN' && next && next.nodeType == 1 && /\\w$/.test(e.textContent) && /^\\w/.test(next.textContent)
      && Math.abs(next.getBoundingClientRect().left - box.right) < 2) faults.push('words run together: ' + name(e));
  if (e.closest('.table') && e.tagName == 'TABLE' && e.scrollWidth > e.closest('.table').clientWidth + 1)
    faults.push('wider than its place: ' + name(e));
  if (e.tagName == 'path' && e.closest('svg.forest') && style.stroke == 'none') faults.push('an interval is not drawn');
  if (e.matches('svg.forest .band') && style.fill == 'rgb(0, 0, 0)') faults.push('a band is black');
}
return [...new Set(faults)];
})()"""
LINKS = """Promise.all([...document.querySelectorAll('.jp-OutputArea-output a[href]')].map(async (e) =>
  e.getAttribute('href').startsWith('#') || (await fetch(e.href)).ok ? '' : e.href)).then((all) => all.filter(Boolean))"""
INTERVALS = "document.querySelectorAll('.jp-OutputArea-output svg.forest').length"


@pytest.fixture
def address(tmp_path):
    """Where a JupyterLab with settings of its own serves a copy of the quick start, with fewer workers and samples."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    for line, smaller in SMALL.items():
        assert line in text
        text = text.replace(line, smaller)
    served = json.loads(text)
    cell = {"cell_type": "code", "id": "published", "metadata": {}, "execution_count": None, "outputs": []}
    served["cells"].append(cell | {"source": PUBLISHED})
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / NOTEBOOK.name).write_text(json.dumps(served), encoding="utf-8")
    settings = tmp_path / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(QUIET))
    folders = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    folders |= {"JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"), "LOCKSTEP_REPORTS": str(tmp_path / "reports")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-browser", "--allow-root", "--expose-app-in-browser", "--IdentityProvider.token="]
    options += [f"--port={port}", f"--ServerApp.root_dir={tmp_path / 'served'}"]
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, env=os.environ | folders, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/doc/tree/{NOTEBOOK.name}"
    finally:
        server.terminate()
        server.wait(30)


def test_the_quick_start_looks_in_jupyterlab_as_on_its_page(address, tmp_path):
    with Browser(tmp_path / "browser", height=6000) as page:  # so high that JupyterLab draws every cell
        page.open(address)
        page.wait(f"window.jupyterapp && {PANEL}?.sessionContext?.session?.kernel?.status == 'idle'", 60)
        page.value("jupyterapp.commands.execute('notebook:run-all-cells').then(() => 0)")
        page.wait("document.querySelectorAll('.jp-OutputArea-output').length > 8", 10)
        page.value("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 500)))")
        assert page.value(FAULTS) == []
        assert page.value(LINKS) == []
        assert page.complaints() == []
        assert page.value(INTERVALS) >= 5
