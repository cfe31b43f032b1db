"""Small pictures of pages' first figures, for the index."""

import base64
import io
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path

FIGURE = re.compile(r'<figure[^>]*><img (?=[^>]*alt="([^"]*)")[^>]*src="data:image/png;base64,([^"]+)"')
SIZE = (220, 150)
"""The most pixels across and down."""
COLOURS = 24
"""Of a palette, so that an index of many pages stays small."""
LINE = 3
"""Pixels of the figure by which its lines are thickened, since they are thinner than a pixel in the small picture."""


def thumbnails(pages: Mapping[str, Path]) -> dict[str, tuple[str, str]]:
    """Name -> the picture of the page's first figure as base64 PNG, and the figure's alternative text; pages without a figure are
    left out."""
    found = {name: FIGURE.search(path.read_text(encoding="utf-8")) for name, path in pages.items()}
    return {name: (_small(figure[2]), unescape(figure[1])) for name, figure in found.items() if figure}


def _small(picture: str) -> str:
    from PIL import Image, ImageFilter

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image = image.filter(ImageFilter.MinFilter(LINE))
    image.thumbnail(SIZE, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
