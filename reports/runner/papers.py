"""The papers, and the order of their pages: `notebooks/papers.yaml`."""

import dataclasses

from lib import paths
from lib.options.checked import Checked
from lib.options.yaml_source import load, read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper(Checked):
    """A paper whose experiments have, or will have, a folder of notebooks."""

    folder: str
    """The folder of its notebooks."""
    name: str
    """Its short name."""
    title: str
    cite: str
    """Authors, place and year."""
    asks: str
    """Its question in a sentence."""
    claims: str = ""
    """Its main claim in a sentence."""
    terms: str = ""
    """A sentence on words that mean something else in another paper."""
    link: str | None = None
    """Where it can be read."""
    pages: tuple[str, ...] = ()
    """Its notebooks in the paper's own order; others follow them."""


def papers() -> list[Paper]:
    """All papers, in the index's order."""
    path = paths.notebooks() / "papers.yaml"
    if not path.exists():
        return []
    return [read(Paper, paper, path) for paper in load(path)]
