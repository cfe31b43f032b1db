"""What a prepared folder says of itself, and whether it is still true."""

from pathlib import Path
from typing import Any

from data_prep import lines
from data_prep.dataset import Dataset
from data_prep.job import MANIFEST
from data_prep.source import verify
from lib.errors import BadOption
from lib.store import sealed


def load(out: Path) -> dict[str, Any]:
    path = Path(out) / MANIFEST
    if not path.exists():
        raise BadOption(f"there is no {path}: nothing was prepared there, or its preparation has not ended")
    return sealed.load(path)


def check(out: Path) -> list[str]:
    """What differs from the manifest: files that are missing, altered or of no partition."""
    faults, known, manifest = [], set(), load(out)
    for partition in [{"folder": "", "files": manifest["tables"]}, *manifest["partitions"]]:
        for name, facts in partition["files"].items():
            path = out / partition["folder"] / name
            known.add(path)
            if not path.exists():
                faults.append(f"{path}: missing")
            elif path.stat().st_size != facts["bytes"]:
                faults.append(f"{path}: {path.stat().st_size:,} bytes, written {facts['bytes']:,}")
            elif lines.sha256(path) != facts["sha256"]:
                faults.append(f"{path}: its bytes are not those that were written")
    strangers = {path for path in out.glob("*=*/part-*/*") if path.is_file()} - known
    return faults + [f"{path}: of no partition" for path in sorted(strangers)]


def check_raw(kind: type[Dataset], raw: Path) -> list[str]:
    """What differs from the published sizes and digests."""
    with kind.opened(raw) as folder:
        return [fault for path, file in kind.sources(folder) if file is not None for fault in verify(path, file)]


def summary(manifest: dict[str, Any], rejects: Path) -> str:
    """A few lines for people."""
    counts = manifest["counts"]
    told = [f"{counts['read']:,} rows read, {counts['written']:,} written, {counts['rejected']:,} set aside"]
    told += [f"  {size:,}  {reason}" for reason, size in manifest["rejects"].items()]
    if counts["rejected"]:
        told.append(f"  see {rejects}")
    if "positives" in manifest:
        rows = sum(partition["rows"] for partition in manifest["partitions"])
        told.append(f"clicks: {manifest['positives'] / max(rows, 1):.2%} of {rows:,} samples")
    if "columns" in manifest:
        wide = max(map(len, manifest["columns"]))
        told += [f"  {name:{wide}}  {what}" for name, what in manifest["columns"].items()]
        days, learnt = manifest["days"], manifest["train_days"]
        told.append(
            f"trained on: days 0 to {learnt - 1}; judged by: day {days - 1}"
            if days - learnt == 1
            else f"trained on: days 0 to {learnt - 1}; judged by: days {learnt} to {days - 1}"
        )
    for name in ("entities", "relations", "without", "threshold"):
        if name in manifest:
            told.append(f"{name}: {manifest[name]}")
    if manifest.get("threshold", {}).get("false_keep", 0) > 0.01:
        told.append(
            "  more than 1 % of the values that were never seen are kept: raise --count-bits, or give --buckets"
        )
    if manifest.get("relations", 0) > counts["written"] / 2:
        told.append(
            "warning: nearly as many relations as triples; does --order say where head, relation and tail stand?"
        )
    if "columns" in manifest:  # a user's own files have no published checksum
        return "\n".join(told)
    told += [f"{source['file']}: checksum {source['published']}" for source in manifest["sources"]]
    return "\n".join(told)
