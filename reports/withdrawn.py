"""Marks verdicts on a published page as withdrawn, because their rules have changed since its run.

Measurements stay; withdrawn verdicts count nowhere. A box above the page names them, and each of their marks is grey and says so.
Marking replaces older marks: marking twice changes nothing, and a claim whose rule is back has its verdict again.
"""

import re
from collections.abc import Collection
from html import escape

BOX = r'<section class="short" role="note">.*?</section>'
LOOK = "not-run"
"""The grey class in every page's own style."""
WORD = "withdrawn: "
PILL = re.compile(r'<(?P<tag>a|span) class="verdict (?P<look>[\w -]+)"(?P<rest>[^>]*)>(?P<text>[^<]*)</(?P=tag)>')


def with_withdrawn(page: str, valid: Collection[str]) -> str:
    """The page, on which only the claims in `valid` have their verdicts."""
    page = re.sub(rf"<main>(?:{BOX})+", "<main>", page, flags=re.DOTALL)
    # Entries first, since one may link to another claim, too.
    page = re.sub(r'<tbody class="entry.*?</tbody>', lambda entry: _entry(entry[0], valid), page, flags=re.DOTALL)
    page = PILL.sub(lambda pill: _link(pill, valid), page)
    judged = list(dict.fromkeys(_anchors(page)))
    gone = [name for name in judged if name not in valid]
    return page.replace("<main>", f"<main>{box(gone, len(judged))}", 1) if gone else page


def box(gone: Collection[str], judged: int) -> str:
    """Which of so many verdicts are withdrawn, and what that means."""
    names = ", ".join(f"<code>{escape(name)}</code>" for name in gone)
    some = "All" if len(gone) == judged else f"{len(gone)} of"
    which = f"{some} {judged} verdicts of this page are" if judged > 1 else "The verdict of this page is"
    text = f"{which} withdrawn ({names}), since rules were mended after its run. Until it has run again"
    return f'<section class="short" role="note"><p>{text} they count nowhere; what was measured stands.</p></section>'


def _anchors(html: str) -> list[str]:
    """The claims that have an entry, whichever attribute comes first."""
    links = re.findall(r'<a [^>]*class="anchor"[^>]*>', html)
    return [found[1] for found in (re.search(r' id="([^"]+)"', link) for link in links) if found]


def _entry(html: str, valid: Collection[str]) -> str:
    """A claim's own entry: its verdict, and those of its cases."""
    stands = all(name in valid for name in _anchors(html))
    return PILL.sub(lambda pill: _pill(pill, stands), html)


def _link(pill: re.Match[str], valid: Collection[str]) -> str:
    """A mark that leads to its claim; other marks stay as they are."""
    target = re.search(r'href="#([^"]+)"', pill["rest"])
    return _pill(pill, target[1] in valid) if target else pill[0]


def _pill(pill: re.Match[str], stands: bool) -> str:
    verdict = pill["text"].removeprefix(WORD)
    look, text = (verdict.replace(" ", "-"), verdict) if stands else (LOOK, WORD + verdict)
    return f'<{pill["tag"]} class="verdict {look}"{pill["rest"]}>{text}</{pill["tag"]}>'
