"""An executed notebook -> one HTML page that needs no network, no script and no other file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from lib import paths
from lib.errors import LockstepError
from reports import claims
from reports import notebook_output as cards
from reports import runner as notebooks
from reports.markup import TEMPLATES, parts, slug
from reports.summary_text import in_short

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""The browser itself refuses every request and script."""
ROLES = ("short", "verdicts", "settings", "claims", "provenance", "progress")
"""What notebooks show of themselves; each has its place on a page."""
LARGEST = 2_000_000
"""Bytes of a page, at most."""


class PageError(LockstepError, ValueError):
    """A notebook that makes no readable offline page."""


def style() -> str:
    return (TEMPLATES / "lockstep" / "style.css").read_text(encoding="utf-8")


def export(executed: str | os.PathLike) -> Path:
    """Write the page beside the executed notebook; its path."""
    return paths.write_text_atomic(Path(executed).with_suffix(".html"), render(executed))


def render(executed: str | os.PathLike) -> str:
    """The page of an executed notebook."""
    import nbformat
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    executed = Path(executed)
    notebooks.read(executed)  # its errors are sentences
    nb = nbformat.read(executed, as_version=4)
    facts = nb.metadata.get("lockstep", {})
    name = facts.get("name", executed.stem)
    mine = [verdict for verdict in claims.verdicts(name.rpartition("/")[0]) if verdict.claim.notebook == name]
    _arrange(nb, mine)
    question = next((cell.id for cell in nb.cells if cell.cell_type == "markdown"), None)
    code = HtmlFormatter(style="friendly", nobackground=True).get_style_defs(".highlight")
    page = {
        "title": notebooks.title(nb) or name,
        "name": name,
        "profile": f"profile {facts['profile']}" if facts.get("profile") else "",
        "root": "../" * name.count("/"),
        "question": question,
        "short": in_short(mine, facts.get("profile", "")),
        "around": _around(name, notebooks.around(name)),
        "policy": POLICY,
        "style": f"{style()}\n{code}",
        "label": _label,
        "command": facts.get("command", ""),
        "made": _made(facts),
    }
    exporter = HTMLExporter(template_name="lockstep", extra_template_basedirs=[str(TEMPLATES)])
    exporter.exclude_anchor_links = True
    body, _ = exporter.from_notebook_node(nb, resources={"lockstep": page})
    html = _contents(figure_first(body))
    check_offline(html, name)
    if len(html.encode()) >= LARGEST:
        size = len(html.encode()) / 1e6
        raise PageError(f"{name}: the page has {size:.1f} MB, 2 is the most; draw fewer or smaller figures")
    return html


def _arrange(nb: Any, judged: Sequence[claims.Verdict]) -> None:
    """Put what notebooks show of themselves in its place: an answer of their own below the question, verdicts and settings before
    the limits, provenance at the end. Verdicts are as they stand, with what has been tested since. How far the runs have come
    is left out and, where verdicts stand, what was claimed before the runs: it would be said twice."""
    from nbformat.v4 import new_code_cell, new_output

    found: dict[str, list[Any]] = {role: [] for role in ROLES}
    for cell in nb.cells:
        for output in list(cell.get("outputs", ())):
            kept = output.get("metadata", {})
            role = kept.get("text/html", kept).get("role")
            if role in found:
                cell.outputs.remove(output)
                found[role].append(output)
    if found["verdicts"] and judged:
        shown = {"text/html": cards.verdicts(judged).html}
        found["verdicts"] = [new_output("display_data", data=shown)]
    before = found["verdicts"] or found["claims"]
    limits = [place for place, cell in enumerate(nb.cells) if re.search(r"^##\s+Limits\b", cell.source, re.MULTILINE)]
    place = limits[-1] if limits else len(nb.cells)
    nb.cells.insert(place, new_code_cell(outputs=[*before, *found["settings"]]))
    nb.cells.append(new_code_cell(outputs=found["provenance"]))
    question = next((place for place, cell in enumerate(nb.cells) if cell.cell_type == "markdown"), -1)
    nb.cells.insert(question + 1, new_code_cell(outputs=found["short"]))


def led(html: str, name: str, shown: Container[str]) -> str:
    """A page with links to those beside it, of the pages that are `shown`."""
    nav = _around(name, notebooks.around(name, shown))
    return re.sub(r'<nav [^>]*class="around".*?</nav>', lambda _: nav, html, count=1, flags=re.DOTALL)


def _around(name: str, near: Mapping[str, notebooks.Experiment]) -> str:
    return parts().around(near, "../" * name.count("/"))


def figure_first(html: str) -> str:
    """Put a page's first figure right after *In short*, where nothing but code and tables stands between them: words come before
    what they speak of."""
    short = re.search(r'<section class="short".*?</section>(?:</div>)?', html, re.DOTALL)
    figure = short and re.compile(r'<div class="result"><figure.*?</figure></div>', re.DOTALL).search(html, short.end())
    if not (short and figure):
        return html
    between = html[short.end() : figure.start()]
    shown = re.sub(r'<details class="code".*?</details>', "", between, flags=re.DOTALL)
    if re.search(r"<(?:h[1-6]|p|ul|ol|pre)[ >]", shown):
        return html
    return f"{html[: short.end()]}{figure[0]}{between}{html[figure.end() :]}"


def _made(facts: Mapping[str, Any]) -> list[str]:
    """How the page came about: the machine, the versions, the commit."""
    machine = facts.get("machine", {})
    commit = {"commit": machine.get("commit")}
    parts = (machine.get("hardware", {}), machine.get("versions", {}), commit)
    said = (", ".join(f"{name} {value}" for name, value in part.items() if value is not None) for part in parts)
    return list(filter(None, said))


def _label(cell: Any) -> str:
    """What the folded code says of itself."""
    tags = cell.metadata.get("tags", [])
    if "parameters" in tags or "injected-parameters" in tags:
        return "Parameters" if "parameters" in tags else "Parameters of this run"
    count = len(cell.source.splitlines())
    return f"{count} line{'s' * (count != 1)} of code"


def _contents(html: str) -> str:
    """Give every h2 and h3 an id of its own and list them."""
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


class _Loads(HTMLParser):
    """Collects whatever a browser would fetch or run, and images without words."""

    FETCH = frozenset(
        ["src", "srcset", "data", "poster", "background", "manifest", "action", "formaction", "xlink:href"]
    )
    FORBIDDEN = frozenset(["script", "iframe", "object", "embed", "link", "base", "frame", "applet", "portal", "form"])

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in self.FORBIDDEN:
            self.found.append(f"<{tag}>")
        for name, value in given.items():
            fetched = name in self.FETCH and not value.startswith("data:")
            link = name == "href" and (tag not in ("a", "area") or value.strip().lower().startswith("javascript:"))
            if fetched or link or name.startswith("on"):
                self.found.append(f"<{tag} {name}={value[:60]!r}>")
        if tag == "meta" and given.get("http-equiv", "").lower() == "refresh":
            self.found.append("<meta refresh>")
        if tag == "img" and given.get("alt", "").strip() in ("", "No description has been provided for this image"):
            self.found.append("an image without alternative text (show it with reports.plots.show)")
        self.found += _fetched(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.found += _fetched(data)


def _fetched(css: str) -> list[str]:
    """What a style would fetch."""
    found = re.findall(r"@import[^;]*|url\(\s*['\"]?(?!data:)[^)]*\)|image-set\([^)]*\)", css, re.IGNORECASE)
    return [use[:60] for use in found]


def check_offline(html: str, name: str = "the page") -> None:
    """An error that lists everything in the page that would load or run something, or that cannot be read aloud."""
    parser = _Loads()
    parser.feed(html)
    parser.close()
    if parser.found:
        raise PageError(
            f"{name}: a report loads and runs nothing, but there is {', '.join(dict.fromkeys(parser.found))}"
        )
