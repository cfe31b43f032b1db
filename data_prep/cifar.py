"""CIFAR's binary files: records of one or two label bytes, then 3 x 32 x 32 bytes of an image, plane by plane."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep import partitions, truth
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.rejects import reject
from data_prep.source import RawFile
from lib.progress import Progress
from lib.streams import stream

PIXELS = 3 * 32 * 32

_CHUNK = 1024  # records read at once
_FLIPPED = 0.1  # the share of the twin's labels that are drawn anew


class Cifar(Dataset):
    """A subclass names its files and label bytes; the last of these is the class that is predicted."""

    some_suffice: ClassVar = True
    unpacks: ClassVar = True
    roles: ClassVar = ("test",)
    labels: ClassVar[dict[str, int]]
    """Label byte -> number of classes."""
    licence: ClassVar = "not stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        files = {f"{place:05}": path for place, (path, _) in enumerate(job.files)}
        with Progress(None, cls.name, "images") as progress:
            records = job.parts(files, lambda key: _prepare(cls, job, key, files[key], progress), progress)
        schema = {name: [dtype, list(shape)] for name, (dtype, shape) in _schema(cls).items()}
        return job.finish(records, kind="images", schema=schema, classes=cls.labels)

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """A smooth pattern for each class under strong noise. The nearest pattern's accuracy is the ceiling."""
        names = [file.name for file in cls.files]
        classes = list(cls.labels.values())[-1]
        patterns = _patterns(classes, seed)
        raw.mkdir(parents=True, exist_ok=True)
        right = held = 0
        for place, name in enumerate(names):
            generator = stream(seed, "images", name)
            with (raw / name).open("wb") as file:
                for start in range(place * rows // len(names), (place + 1) * rows // len(names), _CHUNK):
                    size = min(_CHUNK, (place + 1) * rows // len(names) - start)
                    shown = generator.integers(classes, size=size)
                    flip = generator.random(size) < _FLIPPED
                    label = np.where(flip, generator.integers(classes, size=size), shown)
                    noisy = patterns[shown] + 40 * generator.standard_normal((size, PIXELS))
                    image = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
                    coarse = label * next(iter(cls.labels.values())) // classes
                    columns = [coarse, label] if len(cls.labels) > 1 else [label]
                    record = np.empty((size, len(columns) + PIXELS), np.uint8)
                    record[:, : len(columns)] = np.stack(columns, 1)
                    record[:, len(columns) :] = image
                    file.write(record.tobytes())
                    if "test" in name:
                        right += int((_nearest(image, patterns) == label).sum())
                        held += size
        return truth.save(raw, {"seed": seed, "rows": rows, "accuracy_ceiling": right / max(held, 1)})


class Cifar10(Cifar):
    """Five training batches and a test batch of 10,000 images each."""

    name: ClassVar = "cifar-10"
    title: ClassVar = "CIFAR-10, 50,000 + 10,000 images of 10 classes"
    where: ClassVar = (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz; unpack it, and give the folder with data_batch_1.bin"
    )
    archives: ClassVar = (
        RawFile(
            "cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        ),
    )
    files: ClassVar = (
        *(RawFile(f"data_batch_{number}.bin", 30_730_000) for number in range(1, 6)),
        RawFile("test_batch.bin", 30_730_000),
    )
    labels: ClassVar = {"labels": 10}


class Cifar100(Cifar):
    """A training and a test file; each image has a class and one of twenty coarse classes."""

    name: ClassVar = "cifar-100"
    title: ClassVar = "CIFAR-100, 50,000 + 10,000 images of 100 classes"
    where: ClassVar = (
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz; unpack it, and give the folder with train.bin"
    )
    archives: ClassVar = (
        RawFile(
            "cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
        ),
    )
    files: ClassVar = (RawFile("train.bin", 153_700_000), RawFile("test.bin", 30_740_000))
    labels: ClassVar = {"coarse": 20, "labels": 100}


def _schema(kind: type[Cifar]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {"images": ("|u1", (3, 32, 32)), **dict.fromkeys(kind.labels, ("|u1", ()))}


def _prepare(kind: type[Cifar], job: Job, key: str, path: Path, progress: Progress) -> dict[str, Any]:
    split = job.roles.get(path, "test" if "test" in path.name else "train")
    writer = partitions.Writer(job.out, key, _schema(kind), split="split")
    bytes_each, limits = len(kind.labels) + PIXELS, np.array(list(kind.labels.values()))
    bad, read = [], 0
    left = job.options.sample if job.options.sample is not None else path.stat().st_size
    try:
        with path.open("rb") as file:
            while left > 0 and (data := file.read(min(_CHUNK, left) * bytes_each)):
                job.check()
                whole, rest = divmod(len(data), bytes_each)
                records = np.frombuffer(data, np.uint8, whole * bytes_each).reshape(whole, bytes_each)
                labels = records[:, : len(limits)]
                good = (labels < limits).all(1)
                for at in np.flatnonzero(~good).tolist():
                    bad.append(reject(path.name, read + at + 1, f"a label beyond {limits.tolist()}", str(labels[at])))
                if rest:
                    bad.append(reject(path.name, read + whole + 1, "truncated record", f"{rest} of {bytes_each} bytes"))
                columns = {name: labels[good, place] for place, name in enumerate(kind.labels)}
                writer.append(split, {"images": records[good, len(limits) :].reshape(-1, 3, 32, 32), **columns})
                read += whole + bool(rest)
                left -= whole
                progress.advance(whole)
        job.limit.check(bad)
        return writer.commit(file=path.name, read=read, rejects=bad)
    finally:
        writer.close()


def _patterns(classes: int, seed: int) -> np.ndarray:
    """Blocks of 8 x 8 pixels of one colour each."""
    blocks = stream(seed, "patterns").uniform(60, 196, (classes, 3, 4, 4))
    return blocks.repeat(8, 2).repeat(8, 3).reshape(classes, PIXELS)


def _nearest(images: np.ndarray, patterns: np.ndarray) -> np.ndarray:
    return (images @ patterns.T - 0.5 * (patterns**2).sum(1)).argmax(1)
