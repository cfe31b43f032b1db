"""Images that come again in every epoch, synthetic or real, from shards that stay or from all of the data.

The released code gives torch's DistributedSampler no epoch, so that a worker has one part of the data, in one order, for ever.
What two workers can learn from each other is then what the other's part has. Samples that never come again cannot show it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from lib import BadOption, Batch, Momentum, Run, streams
from lib.options.checked import Count
from lib.protocols.all_reduce import AllReduce
from lib.protocols.dssync import DSSync
from lib.tasks.sampling import epoch_rows
from lib.tasks.vision import Classifier, ImageClasses, Images, RealImages, augment, colour_moments, standardise
from notebooks import regime, study
from notebooks.dssync import quality

MODES = {"BSP": AllReduce(statistics="naive"), "DS-Sync": DSSync(), "DS-Sync before": DSSync(place="before")}
"""BSP averages running statistics too, and an average comes before the forward pass, as in the released code; by the paper's text
it comes after the update."""

SHARDS = ("fixed", "reshuffled")

BATCH = 64
"""Images of a worker's step."""

FALLS = (*quality.FALLS["images"]["lr_milestones"], 1.0)
"""Shares of a run at which a stretch of one rate ends."""


@dataclass(frozen=True, kw_only=True)
class ImagesAgain(ImageClasses):
    """So many images, epoch after epoch. Synthetic ones come as they are; real ones, of a data folder with 32 pixels a side, are
    pooled to 16, and mirrored and moved at random."""

    name: ClassVar[str] = "images-again"

    images: Count = 8_000
    """Of the training data; as many as `evaluation_samples` after them are judged by."""
    shards: Literal["fixed", "reshuffled"] = "reshuffled"
    """Whether each worker has the same part in the same order in every epoch, or all have a new order in each."""
    workers: Count = quality.WORKERS
    """Of whom each gets every so-many-th batch (feed "split"): shards are theirs."""

    def draw(self, seed: int, first: int, size: int, index: int) -> Batch:
        rows = self.chosen(seed, first, size, index)
        pixels, labels = _sets(self).train.pixels[rows], _sets(self).train.labels[rows]
        if self.data:
            pixels = augment(pixels, streams.stream(seed, "augment", first))
        return Batch.of(index=index, raw={}, size=size, features={"image": pixels}, labels=labels)

    def chosen(self, seed: int, first: int, size: int, index: int) -> np.ndarray:
        """Which images a batch has."""
        if self.shards == "reshuffled":
            return epoch_rows(seed, first, size, self.images)
        turn, rank = divmod(index, self.workers)
        part = epoch_rows(seed, 0, self.images, self.images)[rank :: self.workers]
        return part.take(turn * self.batch_size + np.arange(size), mode="wrap")

    def evaluate(
        self, model: Classifier, rows: Mapping[str, torch.Tensor], seed: int, day: int | None = None
    ) -> dict[str, float]:
        """accuracy and loss on unseen images, and the accuracy on as many seen ones."""
        sets, found = _sets(self), {}
        for name, images in (("unseen", sets.judged), ("seen", sets.train)):
            pixels, labels = images.pixels[: self.evaluation_samples], images.labels[: self.evaluation_samples]
            chunks = [pixels[at : at + 256] for at in range(0, len(pixels), 256)]
            shown = [Batch.of(index=0, raw={}, size=len(each), features={"image": each}) for each in chunks]
            found[name] = torch.cat([model(each, rows).cpu() for each in shown]).double(), torch.from_numpy(labels)
        right = {name: float((scores.argmax(1) == labels).double().mean()) for name, (scores, labels) in found.items()}
        return {"accuracy": right["unseen"], "loss": float(F.cross_entropy(*found["unseen"])), "seen": right["seen"]}


class _Sets(NamedTuple):
    train: Images
    judged: Images


@functools.lru_cache(maxsize=2)
def _sets(workload: ImagesAgain) -> _Sets:
    images, more = workload.images, workload.evaluation_samples
    if not workload.data:
        return _Sets(*(workload.synthetic(n, seed=workload.world, first=n) for n in (images, more)))
    every, classes = _stored(workload._real, images + more)
    order = streams.stream(workload.world, "split").permutation(
        images + more
    )  # of which each world keeps others for judging
    found = every[order].reshape(-1, 3, 16, 2, 16, 2).mean((3, 5))
    pixels, labels = standardise(found, colour_moments(found[:images])), classes[order]
    return _Sets(Images(pixels[:images], labels[:images]), Images(pixels[images:], labels[images:]))


def _stored(real: RealImages, many: int) -> tuple[np.ndarray, np.ndarray]:
    """So many images and their classes: those to train on, and where these are too few, those to judge by as well."""
    available, lack = len(real.train), max(0, many - len(real.train))
    if lack > len(real.test):
        raise BadOption(
            f"{many} images are wanted, with those to judge by; the folder has {available + len(real.test)}"
        )
    images = np.concatenate([real.train[: min(many, available)], real.test[:lack]])
    return images, np.concatenate([real.train_labels[: min(many, available)], real.test_labels[:lack]])


def job(mode: str, shards: str, seed: int, *, passes: int, images: int, rate: float = 0.1, data: str = "") -> dict:
    """So many passes over the images, with an evaluation after each, at one rate that falls as the paper's. Synthetic images are
    there for the asking, and twice as many judge."""
    workload = ImagesAgain(
        images=images,
        samples=passes * images,
        evaluation_samples=images // (4 if data else 2),
        shards=shards,
        world=seed,
        batch_size=BATCH,
        dense_optimizer=Momentum(lr=rate),
        norm="running",
        data=data or None,
        **quality.FALLS["images"],
    )
    return study.job(workload, MODES[mode], quality.cluster(workload), seed, feed="split", evaluations=passes)


def histories(found: Sequence[study.Case], runs: Sequence[Run], images: int) -> pd.DataFrame:
    """Accuracy after each epoch, on unseen images and on seen ones."""
    curves = study.histories(found, runs, "samples", "accuracy", "seen")
    return curves.assign(epoch=curves.pop("samples") / images)


def claim_table(curves: pd.DataFrame) -> pd.DataFrame:
    """The rows of claims: the best accuracy, the gap to that of seen images at the end, and both minus those of BSP's run
    with the same shards and seed."""
    runs = curves.sort_values("epoch", kind="stable").groupby(["shards", "mode", "seed"], sort=False)
    data = runs.agg(best=("accuracy", "max"), last=("accuracy", "last"), seen=("seen", "last")).reset_index()
    data["gap"] = data["seen"] - data["last"]
    for name in ("best", "gap"):
        data[f"{name} over BSP"] = data[name] - study.baseline(data, name, ["shards", "seed"], mode="BSP")
    return data.assign(subject=data["mode"] + ", " + data["shards"])


def regimes(data: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """DS-Sync's regime next to the paper's; what training brings is the best over a guess of ten classes."""
    ours = (data["mode"] == "DS-Sync").tolist()
    rows = [
        regime.cells(run, brings=best - 0.1) for run, best, its in zip(runs, data["best"], ours, strict=True) if its
    ]
    return regime.table({"images, 4": rows}, regime.paper_regime("dssync"))


def plateaus(curves: pd.DataFrame) -> pd.DataFrame:
    """The accuracy at the end of each stretch of one rate, the mean of its last three epochs: a column for each stretch, named
    after the epoch at which it ends."""
    epochs, parts = curves["epoch"].max(), []
    for end in dict.fromkeys(round(share * epochs) for share in FALLS):
        late = curves[curves["epoch"].round().between(end - 2, end)]
        parts.append(
            late.groupby(["shards", "mode", "seed"], sort=False)["accuracy"].mean().rename(f"until epoch {end}")
        )
    return pd.concat(parts, axis=1).reset_index()


def epochs_to_target(curves: pd.DataFrame) -> pd.DataFrame:
    """Table 4's way: epochs until a run first is at BSP's mean best less one deviation, and how many runs ever are."""
    bests = curves[curves["mode"] == "BSP"].groupby(["shards", "seed"])["accuracy"].max().groupby("shards")
    target = (bests.mean() - bests.std().fillna(0.0)).rename("target")
    at_target = curves[curves["accuracy"] >= curves["shards"].map(target)]
    first = at_target.groupby(["shards", "mode", "seed"])["epoch"].min().groupby(["shards", "mode"])
    return pd.DataFrame({"epochs": first.mean(), "least": first.min(), "most": first.max(), "runs": first.size()}).join(
        target, on="shards"
    )
