"""Partitions: folders of .npy arrays, one folder for each part of the raw data and each day (or split) in it.

    OUT/day=3/part-00012/ids.npy      rows in the raw file's order
    OUT/.work/done/00012.json         the part is finished: its counts, digests and rejects

A part appears whole or not at all: it is written under OUT/.work and renamed, and its record is written last.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from data_prep import lines
from lib.paths import write_text_atomic

WORK = ".work"

Schema = Mapping[str, tuple[str, tuple[int, ...]]]
"""Array -> its type and the shape of a row."""


class Writer:
    """The arrays of one part, appended to block by block; nothing appears before `commit`."""

    def __init__(self, out: Path, key: str, schema: Schema, split: str = "day"):
        self.out, self.key, self.schema, self.split = out, key, schema, split
        self._folder = out / WORK / f"part-{key}"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._open: dict[int | str, Any] = {}
        self._rows: dict[int | str, int] = {}
        self._positives: dict[int | str, int] = {}

    def append(self, where: int | str, arrays: Mapping[str, np.ndarray], positives: int = 0) -> None:
        """Rows of one day (or split)."""
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) != 1 or sizes.keys() != self.schema.keys():
            raise ValueError(f"part {self.key}: arrays {sizes} do not fit {list(self.schema)}")
        if where not in self._open:
            (self._folder / str(where)).mkdir(parents=True)
            self._open[where] = self._begin(self._folder / str(where))
            self._rows[where] = self._positives[where] = 0
        self._add(self._open[where], arrays)
        self._rows[where] += next(iter(sizes.values()))
        self._positives[where] += int(positives)

    def commit(self, **known: Any) -> dict[str, Any]:
        """Moves the part into place and records it as finished."""
        outputs = []
        for where in sorted(self._open):
            self._end(self._open[where], self._rows[where])
            target = self.out / f"{self.split}={where}" / f"part-{self.key}"
            shutil.rmtree(target, ignore_errors=True)  # from a run that was stopped before its record was written
            target.parent.mkdir(parents=True, exist_ok=True)
            source = self._folder / str(where)
            files = {path.name: facts(path) for path in sorted(source.iterdir())}
            source.rename(target)
            output = {self.split: where, "folder": target.relative_to(self.out).as_posix(), "rows": self._rows[where]}
            outputs.append(output | {"positives": self._positives[where], "files": files})
        record = {"part": self.key, **known, "written": sum(self._rows.values()), "outputs": outputs}
        write_text_atomic(done(self.out, self.key), json.dumps(record))
        shutil.rmtree(self._folder, ignore_errors=True)
        return record

    def close(self) -> None:
        """Closes what is open; without a commit nothing appears."""
        for files in self._open.values():
            for file in files.values():
                file.close()

    def _begin(self, folder: Path) -> dict[str, Any]:
        files = {name: (folder / f"{name}.npy").open("wb") for name in self.schema}
        for name, file in files.items():
            self._header(file, name, 0)
        return files

    def _add(self, files: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        for name, file in files.items():
            dtype, shape = self.schema[name]
            if arrays[name].shape[1:] != shape:
                raise ValueError(
                    f"part {self.key}: a row of {name} has the shape {arrays[name].shape[1:]}, not {shape}"
                )
            file.write(np.ascontiguousarray(arrays[name], dtype).data)

    def _end(self, files: dict[str, Any], rows: int) -> None:
        for name, file in files.items():
            file.seek(0)
            self._header(file, name, rows)
            file.close()

    def _header(self, file: BinaryIO, name: str, rows: int) -> None:
        """numpy leaves room for the number of rows to grow, so that the header can be written again in its place."""
        dtype, shape = self.schema[name]
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": (rows, *shape),
        }
        np.lib.format.write_array_header_1_0(file, header)


class TableWriter(Writer):
    """The same for text and bytes of any length: one parquet file, rows.parquet, instead of arrays."""

    def __init__(self, out: Path, key: str, schema: pa.Schema, split: str, compression: str = "zstd"):
        super().__init__(out, key, dict.fromkeys(schema.names, ("", ())), split)
        self.columns, self.compression = schema, compression

    def _begin(self, folder: Path) -> dict[str, Any]:
        return {"rows": parquet.ParquetWriter(folder / "rows.parquet", self.columns, compression=self.compression)}

    def _add(self, files: dict[str, Any], arrays: Mapping[str, Any]) -> None:
        files["rows"].write_table(pa.table(dict(arrays), self.columns))

    def _end(self, files: dict[str, Any], rows: int) -> None:
        files["rows"].close()


def facts(path: Path) -> dict[str, Any]:
    """What the manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": lines.sha256(path)}


def done(out: Path, key: str) -> Path:
    return out / WORK / "done" / f"{key}.json"


def record(out: Path, key: str) -> dict[str, Any] | None:
    """The record of a part that an earlier run finished."""
    path = done(out, key)
    return json.loads(path.read_text()) if path.exists() else None


def clear(out: Path) -> None:
    """Removes what a preparation that has not ended wrote."""
    for path in (out / WORK / "done").glob("*.json"):
        for output in json.loads(path.read_text())["outputs"]:
            shutil.rmtree(out / output["folder"], ignore_errors=True)
            with suppress(OSError):  # another part's are in it
                (out / output["folder"]).parent.rmdir()
    shutil.rmtree(out / WORK, ignore_errors=True)
