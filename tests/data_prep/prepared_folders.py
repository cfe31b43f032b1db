"""Raw files that are packed, what a preparation leaves, and how far one came that was stopped."""

import bz2
import gzip
import json
import tarfile
import zipfile

import numpy as np

from data_prep import partitions


def pack(path, packing, files):
    """One file of several, each under its name; bzip2 and gzip know one file and no name."""
    if packing == "tar.gz":
        with tarfile.open(path, "w:gz") as archive:
            for name, file in files.items():
                archive.add(file, name)
    elif packing == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, file in files.items():
                archive.write(file, name)
    else:
        [file] = files.values()
        path.write_bytes({"bzip2": bz2, "gzip": gzip}[packing].compress(file.read_bytes()))


def rejected(out):
    """The rows that were set aside."""
    return [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]


def whole(data, array):
    """An array of all days or splits, one after another."""
    return np.concatenate([data.take(name, array) for name in data.names])


def finished_parts(monkeypatch, most=None):
    """The keys of parts as they are finished; after `most` of them Ctrl-C is pressed."""
    commit, keys = partitions.Writer.commit, []

    def record(writer, **facts):
        if len(keys) == most:
            raise KeyboardInterrupt
        keys.append(writer.key)
        return commit(writer, **facts)

    monkeypatch.setattr(partitions.Writer, "commit", record)
    return keys
