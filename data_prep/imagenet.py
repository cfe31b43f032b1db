"""ImageNet (ILSVRC 2012) as a folder for each class: encoded images and their classes, nothing is decoded."""

import io
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from data_prep import partitions, truth
from data_prep.dataset import Dataset
from data_prep.job import Job
from data_prep.rejects import reject
from data_prep.source import RawFile
from lib.errors import BadOption
from lib.progress import Progress
from lib.streams import stream

SCHEMA = pa.schema({"image": pa.binary(), "label": pa.int16(), "name": pa.string()})

_GROUP = 16  # images of a row group: what is read to get one of them
_STARTS = (b"\xff\xd8\xff", b"\x89PNG")  # one of the official files is a PNG under another name


class ImageNet(Dataset):
    """A class's number is its folder's place in alphabetic order, as everyone numbers them."""

    name: ClassVar = "imagenet"
    title: ClassVar = "ImageNet (ILSVRC 2012), 1,281,167 + 50,000 images of 1,000 classes"
    where: ClassVar = (
        "https://image-net.org/download (after registration); unpack to train/n01440764/*.JPEG and so on, sort the "
        "validation images into val/n01440764/ and so on, and give the folder with train and val"
    )
    licence: ClassVar = "ImageNet's terms of access: research and education, no redistribution"
    archives: ClassVar = (
        RawFile("ILSVRC2012_img_train.tar", md5="1d675b47d978889d74fa0da5fadfb00e"),
        RawFile("ILSVRC2012_img_val.tar", md5="29b22e2961454d5413ddabcf34fc5622"),
    )
    files: ClassVar = ()

    @classmethod
    def folders(cls, raw: Path) -> list[Path]:
        found = [
            path for split in ("train", "val") if (raw / split).is_dir() for path in sorted((raw / split).iterdir())
        ]
        found = [path for path in found if path.is_dir()]
        if not found:
            raise BadOption(
                f"{raw} has no folder train/CLASS or val/CLASS; `python -m data_prep --list` says how to sort it"
            )
        return found

    @classmethod
    def work(cls, job: Job) -> dict[str, Any]:
        classes = sorted({path.name for path in job.folders})
        parts = {f"{place:05}": path for place, path in enumerate(job.folders)}
        with Progress(None, cls.name, "images") as progress:
            records = job.parts(parts, lambda key: _prepare(job, key, parts[key], classes, progress), progress)
        return job.finish(records, kind="encoded images", schema=dict(_described(SCHEMA)), classes=classes)

    @classmethod
    def twin(cls, raw: Path, rows: int, seed: int) -> dict[str, Any]:
        """Ten classes, each of one colour under strong noise, as JPEG files."""
        from PIL import Image  # comes with matplotlib

        colours = stream(seed, "colours").uniform(60, 196, (10, 3))
        for split, share in (("train", rows * 4 // 5), ("val", rows - rows * 4 // 5)):
            generator = stream(seed, "images", split)
            for at in range(share):
                label = at % 10
                noise = 30 * generator.standard_normal((64, 64, 3))
                pixels = np.clip(colours[label] + noise, 0, 255).astype(np.uint8)
                folder = raw / split / f"n{label:08}"
                folder.mkdir(parents=True, exist_ok=True)
                encoded = io.BytesIO()
                Image.fromarray(pixels).save(encoded, "JPEG", quality=90)
                (folder / f"n{label:08}_{at}.JPEG").write_bytes(encoded.getvalue())
        return truth.save(raw, {"seed": seed, "rows": rows, "accuracy_ceiling": 1.0})


def _prepare(job: Job, key: str, folder: Path, classes: list[str], progress: Progress) -> dict[str, Any]:
    split, label = folder.parent.name, classes.index(folder.name)
    writer = partitions.TableWriter(job.out, key, SCHEMA, "split", compression="none")
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file())[: job.options.sample]
    bad, waiting = [], []
    try:
        for place, name in enumerate(names):
            job.check()
            image = (folder / name).read_bytes()
            if image.startswith(_STARTS):
                waiting.append((image, name))
            else:
                where = f"{split}/{folder.name}/{name}"
                bad.append(reject(where, 1, "neither JPEG nor PNG" if image else "an empty file", image[:16]))
                job.limit.check(bad[-1:])
            if waiting and (len(waiting) == _GROUP or place == len(names) - 1):
                images, kept = zip(*waiting, strict=True)
                writer.append(split, {"image": images, "label": [label] * len(kept), "name": kept})
                waiting = []
            progress.advance()
        if waiting:
            images, kept = zip(*waiting, strict=True)
            writer.append(split, {"image": images, "label": [label] * len(kept), "name": kept})
        return writer.commit(file=f"{split}/{folder.name}", read=len(names), rejects=bad)
    finally:
        writer.close()


def _described(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema]
