"""Ratings as clicks: who gave what how many stars; MovieLens as it comes, or files of one's own with a header."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from data_prep import lines, source
from data_prep.any_clicks import AnyClicks, ClickOptions
from data_prep.source import RawFile

_NAMES = ("user", "item", "rating", "time")
_MOVIELENS = {
    "u.data": ("\t", _NAMES),
    "ratings.dat": (":", ("user", "", "item", "", "rating", "", "time")),  # between double colons
    "ratings.csv": (",", ()),
}


class Ratings(AnyClicks):
    """A rating of at least `positive` is a click. Without --time, the time is left out."""

    name: ClassVar = "ratings"
    title: ClassVar = "any ratings: MovieLens as it comes, or CSV, TSV or parquet with a header"
    where: ClassVar = (
        "your own, or https://grouplens.org/datasets/movielens: give the zip, the folder or the file of ratings"
    )
    licence: ClassVar = "yours; MovieLens: for research, no redistribution, see its README"
    files: ClassVar = tuple(RawFile(name) for name in _MOVIELENS)

    @classmethod
    def opened(cls, raw: Path) -> AbstractContextManager[Path]:
        return source.unpacked(raw, list(_MOVIELENS))

    @classmethod
    def sources(cls, raw: Path) -> list[tuple[Path, RawFile | None]]:
        known = [raw / name for name in _MOVIELENS if (raw / name).is_file()]
        return [(known[0], None)] if known else super().sources(raw)

    @classmethod
    def settled(cls, options: ClickOptions, path: Path) -> ClickOptions:
        options = replace(
            options, label=options.label or "rating", positive=4.0 if options.positive is None else options.positive
        )
        delimiter, names = _MOVIELENS.get(path.name, ("", ()))
        if path.name == "ratings.csv" and lines.first_line(path).strip() == b"userId,movieId,rating,timestamp":
            names, time = (), "timestamp"
        elif names and not options.columns:
            options, time = replace(options, delimiter=delimiter, columns=list(names)), "time"
        else:
            return options
        return replace(options, skip=[*options.skip, *({time} - {options.time, *options.ids, *options.numbers})])
