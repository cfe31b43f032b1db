"""What a published page says of verdicts that are withdrawn, since their rules have been mended after its run.

Measurements stand; the verdicts count nowhere. So a box above the page names them, and each of their marks says it and is grey.
A page is marked anew each time, whatever it said before: twice is once, and a claim that stands again has its verdict back.
"""

import re
from collections.abc import Collection
from html import escape

BOX = r'<section class="short" role="note">.*?</section>'
LOOK = "not-run"
"""Grey, in the style that each page has with it."""
WORD = "withdrawn: "
PILL = re.compile(r'<(?P<tag>a|span) class="verdict (?P<look>[\w -]+)"(?P<rest>[^>]*)>(?P<text>[^<]*)</(?P=tag)>')


def marked(page: str, standing: Collection[str]) -> str:
    """The page, where of the claims that it judges those in `standing` have their verdicts, and no other."""
    page = re.sub(rf"<main>(?:{BOX})+", "<main>", page, flags=re.DOTALL)
    page = re.sub(
        r'<tbody class="entry.*?</tbody>', lambda entry: _entry(entry[0], standing), page, flags=re.DOTALL
    )  # first, since a link to a claim may stand in another's entry, too
    page = PILL.sub(lambda pill: _led(pill, standing), page)
    judged = list(dict.fromkeys(_anchors(page)))
    gone = [name for name in judged if name not in standing]
    return page.replace("<main>", f"<main>{box(gone, len(judged))}", 1) if gone else page


def box(gone: Collection[str], judged: int) -> str:
    """Which verdicts are withdrawn, out of how many, and what that means."""
    names = ", ".join(f"<code>{escape(name)}</code>" for name in gone)
    some = "All" if len(gone) == judged else f"{len(gone)} of"
    which = f"{some} {judged} verdicts of this page are" if judged > 1 else "The verdict of this page is"
    told = f"{which} withdrawn ({names}), since rules were mended after its run. Until it has run again"
    return f'<section class="short" role="note"><p>{told} they count nowhere; what was measured stands.</p></section>'


def _anchors(html: str) -> list[str]:
    """The claims that are judged in it, whichever attribute comes first."""
    links = re.findall(r'<a [^>]*class="anchor"[^>]*>', html)
    return [found[1] for found in (re.search(r' id="([^"]+)"', link) for link in links) if found]


def _entry(html: str, standing: Collection[str]) -> str:
    """A claim's own entry: its verdict, and those of its cases."""
    stands = all(name in standing for name in _anchors(html))
    return PILL.sub(lambda pill: _pill(pill, stands), html)


def _led(pill: re.Match[str], standing: Collection[str]) -> str:
    """A mark that leads to its claim; others are as they were."""
    leads = re.search(r'href="#([^"]+)"', pill["rest"])
    return _pill(pill, leads[1] in standing) if leads else pill[0]


def _pill(pill: re.Match[str], stands: bool) -> str:
    said = pill["text"].removeprefix(WORD)
    look, text = (said.replace(" ", "-"), said) if stands else (LOOK, WORD + said)
    return f'<{pill["tag"]} class="verdict {look}"{pill["rest"]}>{text}</{pill["tag"]}>'
