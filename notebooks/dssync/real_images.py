"""The deciding experiment, on real images that come again: python -m notebooks.dssync.real_images FOLDER

FOLDER is CIFAR-10 as data_prep wrote it, of which ten thousand images are enough. The courses are kept next to this file, where
the page on images that come again finds them: 30 runs are an hour or more of two cores, which the page is spared.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lib import paths, sweep
from lib.results.provenance import commit
from notebooks import study
from notebooks.dssync import images_again
from reports import claims

SHAPE = {"passes": 60, "images": 8_000}
"""Epochs, and images to learn from; a quarter as many judge."""

TABLE = Path(__file__).with_suffix(".csv")


def load() -> pd.DataFrame | None:
    """The courses that were made last, with the commit that made them; None where there are none."""
    return pd.read_csv(TABLE) if TABLE.exists() else None


def save(folder: str, seeds: Sequence[int], **shape: int) -> pd.DataFrame:
    """Train on the images of a folder, and keep the courses."""
    shape = {**SHAPE, **shape}
    cases = study.grid(shards=images_again.SHARDS, mode=images_again.MODES, seed=seeds)
    runs = sweep([images_again.job(**case, **shape, data=folder) for case in cases])
    curves = images_again.histories(cases, runs, shape["images"]).assign(commit=commit())
    paths.write_text_atomic(TABLE, curves.to_csv(index=False, lineterminator="\n"))
    return curves


if __name__ == "__main__":
    print(images_again.claim_table(save(sys.argv[1], claims.judging(5))).to_string())
