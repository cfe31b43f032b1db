"""HTML by the templates' macros, which escape text and keep HTML; and numbers and settings as text."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from html import unescape
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lib.options.yaml_source import load

TEMPLATES = Path(__file__).parent / "templates"


IN_JUPYTER = re.compile(r'<style>.*?</style><div class="lockstep">(.*)</div>', re.DOTALL)
"""What Jupyter is given: a fragment with the style of pages, which touches nothing else and takes JupyterLab's colours."""
COLOURS = {
    "ink": ("content-font-color1", "#1f2328"),
    "soft": ("content-font-color2", "#59636e"),
    "line": ("border-color2", "#d8dee4"),
    "wash": ("layout-color2", "#f6f8fa"),
    "link": ("content-link-color", "#0a5a94"),
    "paper": ("layout-color1", "#fff"),
}
"""Of the style sheet: JupyterLab's name, and the colour elsewhere."""


class Fragment:
    """A piece of HTML that Jupyter displays; by its `role` a page finds claims, verdicts, settings and provenance."""

    def __init__(self, html: str, role: str = "") -> None:
        self.html, self.role = str(html), role

    def _repr_html_(self) -> tuple[str, dict[str, str]]:
        return f'{_style()}<div class="lockstep">{self.html}</div>', {"role": self.role} if self.role else {}

    def __repr__(self) -> str:
        """Plain text for terminals and raw notebooks: a line for each row and paragraph."""
        rows = re.sub(r"</(td|th)><\1", r" | <\1", self.html)
        lines = re.split(r"</(?:tr|p|h2|div|caption|figure)>", rows)
        texts = (unescape(re.sub(r"<[^>]+>", " ", line)).split() for line in lines)
        return "\n".join(" ".join(words) for words in texts if words)


def style() -> str:
    """The style sheet of all pages."""
    return (TEMPLATES / "lockstep" / "style.css").read_text(encoding="utf-8")


@cache
def _style() -> str:
    """The style sheet for an output, without its dark part: JupyterLab has a theme of its own, whose rules are taken back."""
    light = style().partition("@media screen and (prefers-color-scheme: dark)")[0]
    colours = "".join(f"--{name}: var(--jp-{jupyter}, {other}); " for name, (jupyter, other) in COLOURS.items())
    base = f"{colours}--band: #bfe0d2; --tone: var(--soft); color: var(--ink); font: 14px/1.55 sans-serif;"
    widths = "> :not(.table) { max-width: 50rem } .table table { width: auto; min-width: min(50rem, 100%) }"  # a notebook is wide
    rules = f":where(:not(svg, svg *)) {{ all: revert }} {light} {widths}"
    return f"<style>.lockstep.lockstep.lockstep {{ {base} {rules} }}</style>"


@cache
def templates() -> Environment:
    loader, blocks = FileSystemLoader(TEMPLATES), {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **blocks)
    environment.filters |= {"slug": slug, "cell": cell, "line": line}
    environment.globals["meanings"] = defaultdict(str, words()["rules"])
    return environment


def parts() -> Any:
    """The macros of `parts.html.j2`, as functions."""
    return templates().get_template("parts.html.j2").module


@cache
def words() -> dict[str, Any]:
    """The texts of `words.yaml`: rules, glossary, and columns' labels."""
    return load(TEMPLATES / "words.yaml")


def slug(text: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"


def cell(value: Any) -> Any:
    """A table cell's content: HTML as it is, anything else as text."""
    return value if hasattr(value, "__html__") else number(value)


def line(text: str) -> str:
    """Text as a cell of a table, or as a list's item, in Markdown."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def number(value: Any) -> str:
    """A number with enough digits to compare: 0.73112, 1 234 567, 2.31, 1.2 × 10⁻⁶."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if isinstance(value, Integral) or not abs(value) < 1000:
        return rounded(value, 0)
    text = f"{value:.5f}".rstrip("0").rstrip(".") if abs(value) < 1 else f"{value:.4g}"
    if value and abs(value) < 1e-4:
        digits, _, power = f"{value:.2e}".partition("e")
        text = f"{digits} × 10{str(int(power)).translate(_RAISED)}"
    return text.replace("-", "−")


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def rounded(x: float, decimals: int) -> str:
    """A number with so many digits after the point, rounded before it where they are negative, and spaces between thousands."""
    if not math.isfinite(x):
        return "–" if math.isnan(x) else f"{x}".replace("-", "−")
    text = f"{round(x, decimals) + 0.0:,.{max(decimals, 0)}f}"
    return text.replace(",", "\u202f").replace("-", "−")


def flat(value: Any) -> str:
    """A nested mapping as one line of text: its name first, without unset fields."""
    if isinstance(value, Mapping):
        name = str(value.get("name", ""))
        fields = {str(key).replace("_", " "): item for key, item in value.items() if key != "name"}
        rest = [f"{key} {_inner(item)}" for key, item in fields.items() if item not in (None, [], (), {})]
        return f"{name}: {', '.join(rest)}" if name and rest else name or ", ".join(rest)
    if isinstance(value, list | tuple):
        return ", ".join(map(_inner, value))
    return number(value) if isinstance(value, Real | str) else json.dumps(value, default=str)


def _inner(value: Any) -> str:
    return f"({flat(value)})" if isinstance(value, Mapping | list | tuple) and len(value) > 1 else flat(value)
