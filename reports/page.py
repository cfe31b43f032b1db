"""An executed notebook -> one HTML page that needs no network, no script and no other file."""

import base64
import hashlib
import os
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pygments.formatters import HtmlFormatter

from lib import paths
from lib.errors import LockstepError
from reports import claims, notebook_output, runner
from reports.claims.dependencies import git
from reports.headlines import headline
from reports.markup import IN_JUPYTER, TEMPLATES, parts, slug, style, words
from reports.summary_text import in_short

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Makes the browser itself refuse every request and script."""
ROLES = ("verdicts", "settings", "claims", "provenance", "progress")
"""The outputs of a notebook that have a place of their own on its page."""
LARGEST = 2_000_000
"""The most bytes of a page; of a file of numbers twice as many, for a figure of 46 seeds."""
TEXT_ENDS = '<h[1-6] |<details class="code"|<div class="(?:result|output)"|<pre class="output"|<section|<nav|<footer'
"""Where a text on a page ends: at a heading, code or an output."""
FORBIDDEN = frozenset(["script", "iframe", "object", "embed", "link", "base", "frame", "applet", "portal", "form"])
FETCHED = frozenset(["src", "srcset", "data", "poster", "background", "manifest", "action", "formaction", "xlink:href"])
FETCHED_BY_STYLE = re.compile(r"@import[^;]*|url\(\s*['\"]?(?!data:)[^)]*\)|image-set\([^)]*\)", re.IGNORECASE)
NO_WORDS = ("", "No description has been provided for this image")


class PageError(LockstepError, ValueError):
    """A notebook that makes no readable offline page."""


def page_style() -> str:
    """The style sheet of all pages: that of outputs, that of what is only on pages, and the code's colours."""
    code = HtmlFormatter(style="friendly", nobackground=True).get_style_defs(".highlight")
    return "\n".join([style(), (TEMPLATES / "lockstep" / "site.css").read_text(encoding="utf-8"), code])


def policy(script: str = "") -> str:
    """What the browser allows: no request, and of scripts the page's own one, by its hash."""
    return f"{POLICY}; script-src '{_digest(script)}'" if script else POLICY


def _digest(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def export(executed: str | os.PathLike) -> Path:
    """Write the page next to the executed notebook, and return its path."""
    return paths.write_text_atomic(Path(executed).with_suffix(".html"), render(executed))


def render(executed: str | os.PathLike) -> str:
    """The page of an executed notebook."""
    import nbformat
    from nbconvert import HTMLExporter

    executed = Path(executed)
    runner.read(executed)  # raises readable errors
    nb = nbformat.read(executed, as_version=4)
    facts = nb.metadata.get("lockstep", {})
    name = facts.get("name", executed.stem)
    verdicts = claims.verdicts(of=name)
    _arrange(nb, verdicts)
    page = {
        "title": runner.title(nb) or name,
        "profile": facts.get("profile", ""),
        "question": next((cell.id for cell in nb.cells if cell.cell_type == "markdown"), None),
        "short": in_short(verdicts, facts.get("profile", "")),
        "command": facts.get("command", ""),
        "made": _machine(facts.get("machine", {})),
    }
    exporter = HTMLExporter(template_name="lockstep", extra_template_basedirs=[str(TEMPLATES)])
    exporter.exclude_anchor_links = True
    body, _ = exporter.from_notebook_node(nb, resources={"lockstep": page})
    if facts.get("profile") == "smoke":
        verdicts = claims.published(name)
    html = framed(with_words(figure_first(_with_contents(body)), name, verdicts), name)
    check_offline(html, name)
    if (size := len(html.encode())) >= LARGEST:
        raise PageError(f"{name}: the page has {size / 1e6:.1f} MB, 2 is the most; draw fewer or smaller figures")
    return html


def _arrange(nb: Any, verdicts: Sequence[claims.Verdict]) -> None:
    """Put a notebook's outputs with a role in their places on the page, which has one style for all of them.

    Verdicts and settings stand before the limits, provenance at the end. Verdicts are rendered from what is stored, with
    explanations that are newer than the run; claims stand only on a page without verdicts. Progress is left out.
    """
    from nbformat.v4 import new_code_cell, new_output

    found: dict[str, list[Any]] = {role: [] for role in ROLES}
    for cell in nb.cells:
        for output in list(cell.get("outputs", ())):
            if found_html := IN_JUPYTER.fullmatch(output.get("data", {}).get("text/html", "")):
                output.data["text/html"] = found_html[1]
            metadata = output.get("metadata", {})
            role = metadata.get("text/html", metadata).get("role")
            if role in found:
                cell.outputs.remove(output)
                found[role].append(output)
    judged = found["verdicts"] or found["claims"]
    if found["verdicts"] and verdicts:
        judged = [new_output("display_data", data={"text/html": notebook_output.verdicts(verdicts).html})]
    limits = [place for place, cell in enumerate(nb.cells) if re.search(r"^##\s+Limits\b", cell.source, re.MULTILINE)]
    place = limits[-1] if limits else len(nb.cells)
    nb.cells.insert(place, new_code_cell(outputs=[*judged, *found["settings"]]))
    nb.cells.append(new_code_cell(outputs=found["provenance"]))


def framed(html: str, name: str, shown: Container[str] | None = None) -> str:
    """A page with today's policy, style sheet, top bar, way back, and links to its notebook, paper, data and neighbours.

    Neighbours are among the `shown` pages, by default among those that have been run.
    """
    root, folder = "../" * name.count("/"), name.rpartition("/")[0]
    paper = next((each for each in runner.papers() if each.folder == folder), None)
    profile = re.search(r'<span class="profile">(.*?)</span>', html)
    top = parts().top(root, paper, name, data_links(html), unescape(profile[1]) if profile else "")
    around = parts().around(runner.neighbours(name, shown), root)
    rules = _rules_commit(paths.notebooks() / folder / "claims.yaml")
    for pattern, text in (
        (r"<meta\s[^>]*Content-Security-Policy[^>]*>", parts().policy(POLICY)),
        (r"<style>.*?</style>", f"<style>{page_style()}</style>"),
        (r'<header class="top">.*?</header>', top),
        (r'<nav [^>]*class="around".*?</nav>', around),
        (r"(?<=what it was made with</summary>)(?:<p.*?</p>)?", parts().repeating(rules)),
        ("<dt>commit</dt>", f"<dt>{notebook_output.RUNS_CODE}</dt>"),
        (r" · commit (?=[0-9a-f]{10})", " · page made at commit "),
    ):
        html = _replaced(pattern, text, html)

    def leads(link: re.Match) -> str:
        target = os.path.normpath(os.path.join(folder, link[1]))
        has_page = shown is None or target in shown
        return f'href="{link[1]}.html"' if has_page else f'href="{root}../../notebooks/{target}.ipynb"'

    return re.sub(r'href="(?![^"]*notebooks/)([^":]+)\.ipynb"', leads, html)


def data_links(html: str) -> list[str]:
    """The addresses of a page's numbers."""
    return [unescape(link) for link in re.findall(r'class="data" href="([^"]+)"', html)]


@cache
def _rules_commit(file: Path) -> str:
    """The commit that last changed a file of claims; empty where git does not know."""
    return (git(file.parent, "log", "-1", "--abbrev=10", "--format=%h", "--", file.name) or "").strip()


def with_words(html: str, name: str, verdicts: Sequence[claims.Verdict]) -> str:
    """A page with today's words: its notebook's title and question, its text below headings that the page has, and its headline.

    Where a page has nothing in short, nothing shows where its question ends, and it stays.
    """
    notebook = runner.read(paths.notebooks() / f"{name}.ipynb")
    question, *texts = _texts(notebook)
    if question.startswith("<h1"):
        html = _replaced(r'<h1.*?(?=(?:<div class="result">)?<section class="short")', question, html)
        html = _replaced("<title>.*?</title>", f"<title>{escape(runner.title(notebook))} · Lockstep</title>", html)
    for text in texts:
        if heading := re.match(r'<h[2-6][^>]* id="(limits|[^"]+")', text):  # limits, whatever else the heading says
            html = _replaced(rf'<h[2-6][^>]* id="{heading[1]}.*?(?={TEXT_ENDS})', text, html)
    nav = '<nav class="contents" aria-label="Contents"><!--contents-->'
    html = _with_contents(_replaced('<nav [^>]*class="contents".*?(?=</nav>)', nav, html))
    html = re.sub(r'<p class="(?:headline|terminology note)">.*?</p>', "", html)
    terms = next((each.terms for each in runner.papers() if each.folder == name.rpartition("/")[0]), "")
    return _replaced("</h1>", f"</h1>{parts().headline(headline(name, verdicts), terms)}", html)


def _texts(notebook: Mapping[str, Any]) -> list[str]:
    """The texts of a notebook as HTML: its first, and those of the other cells, cut at headings."""
    from nbconvert.filters import markdown2html

    cells = [runner.source(cell) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    html = re.sub(r'<a class="anchor-link".*?</a>', "", "<!--cell-->".join(map(markdown2html, cells)))
    first, *others = _with_contents(html).split("<!--cell-->")
    return [first, *(text for other in others for text in re.split(r"(?=<h[2-6] )", other))]


def _replaced(pattern: str, text: str, html: str) -> str:
    """A page with this text in the place of the first match, which may be of several lines."""
    return re.sub(pattern, lambda _: text, html, count=1, flags=re.DOTALL)


def with_verdicts(html: str, verdicts: Sequence[claims.Verdict], profile: str) -> str:
    """A page with its claims' verdicts as they are judged now, in short and in full."""
    if not verdicts:
        return html
    html = _replaced('<section class="short">.*?</section>', in_short(verdicts, profile), html)
    full = notebook_output.verdict_table(verdicts, words()["how_to_read"])
    up = "../" if verdicts[0].claim.folder else ""
    full = re.sub(r"claims/[^<> ]+\.json", lambda record: f'<a href="{up}{record[0]}">{record[0]}</a>', full)
    return _replaced(r'<div class="table"><table class="entries">.*?</table></div>', full, html)


def figure_first(html: str) -> str:
    """Move a page's first figure right below *In short*, unless headings or text stand between, which lead to the figure."""
    short = re.search(r'<section class="short".*?</section>(?:</div>)?', html, re.DOTALL)
    figure = short and re.compile(r'<div class="result"><figure.*?</figure></div>', re.DOTALL).search(html, short.end())
    if not (short and figure):
        return html
    between = html[short.end() : figure.start()]
    shown = re.sub(r'<details class="code".*?</details>', "", between, flags=re.DOTALL)
    if re.search(r"<(?:h[1-6]|p|ul|ol|pre)[ >]", shown):
        return html
    return f"{html[: short.end()]}{figure[0]}{between}{html[figure.end() :]}"


def _machine(machine: Mapping[str, Any]) -> list[str]:
    """The machine, the versions and the commit that made a page, a text each."""
    groups = (machine.get("hardware", {}), machine.get("versions", {}), {"page made at commit": machine.get("commit")})
    texts = (", ".join(f"{name} {value}" for name, value in group.items() if value is not None) for group in groups)
    return [text for text in texts if text]


def _with_contents(html: str) -> str:
    """Give every heading an id of its own, and list those of the second and third level."""
    seen: Counter[str] = Counter()
    entries = []

    def anchor(match: re.Match) -> str:
        level, attributes, inner = match.groups()
        text = re.sub(r"<[^>]+>", "", inner).strip()
        name = slug(text)
        seen[name] += 1
        name += f"-{seen[name]}" if seen[name] > 1 else ""
        if level in "23":
            entries.append(f'<li{" class=sub" if level == "3" else ""}><a href="#{name}">{text}</a></li>')
        attributes = re.sub(r'\s+id="[^"]*"', "", attributes)
        return f'<h{level}{attributes} id="{name}">{inner}</h{level}>'

    html = re.sub(r"<h([1-6])((?:\s[^>]*)?)>(.*?)</h\1>", anchor, html, flags=re.DOTALL)
    return html.replace("<!--contents-->", f"<ol>{''.join(entries)}</ol>", 1)


class _Faults(HTMLParser):
    """Collects what would load or run, and images without words."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= dict.fromkeys(_faults(tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found |= dict.fromkeys(_faults("", {"style": data}))


def _faults(tag: str, attributes: Mapping[str, str]) -> Iterator[str]:
    if tag in FORBIDDEN:
        yield f"<{tag}>"
    for key, value in attributes.items():
        fetched = key in FETCHED and not value.startswith("data:")
        link = key == "href" and (tag not in ("a", "area") or value.strip().lower().startswith("javascript:"))
        if fetched or link or key.startswith("on"):
            yield f"<{tag} {key}={value[:60]!r}>"
    if tag == "meta" and attributes.get("http-equiv", "").lower() == "refresh":
        yield "<meta refresh>"
    if tag == "img" and attributes.get("alt", "").strip() in NO_WORDS:
        yield "an image without alternative text (show it with reports.plots.show)"
    yield from (use[:60] for use in FETCHED_BY_STYLE.findall(attributes.get("style", "")))


def check_offline(html: str, name: str = "the page") -> None:
    """Raise an error that lists what would load or run, but for a script that the policy names, and images without words.

    The promise that nothing is fetched or run is the page's policy, which the browser keeps. This check tells an author before a
    reader sees a gap; it does not find everything that a browser would.
    """
    faults = _Faults()
    own = re.compile("<script>(.*?)</script>", re.DOTALL)
    faults.feed(own.sub(lambda script: "" if f"{_digest(script[1])}&#39;" in html else script[0], html))
    faults.close()
    if faults.found:
        raise PageError(f"{name}: a report loads and runs nothing, but there is {', '.join(faults.found)}")
