"""What is known of a synthetic twin's truth: the best that any model can reach, written next to its raw files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from lib.paths import write_atomic, write_text_atomic
from lib.tasks import metrics


def ceiling(labels: np.ndarray, logits: np.ndarray, days: np.ndarray) -> dict[str, Any]:
    """The metrics of the true logits, which no model can exceed but by luck, in all and by day."""
    whole = metrics.click_metrics(labels, logits)
    by_day = [metrics.auc(labels[days == day], logits[days == day]) for day in range(int(days.max()) + 1)]
    return {"rows": len(labels), "rate": float(labels.mean()), "auc_ceiling": whole["auc"]} | {
        "auc_ceiling_of_days": by_day,
        "logloss_ceiling": whole["logloss"],
    }


def save(raw: Path, facts: dict[str, Any], logits: np.ndarray | None = None) -> dict[str, Any]:
    """Write truth.json, and the true logits in the order of the files' rows, next to the raw files."""
    write_text_atomic(raw / "truth.json", json.dumps(facts, indent=1) + "\n")
    if logits is not None:
        write_atomic(raw / "truth.npy", lambda path: np.save(path, logits.astype(np.float32)))
    return facts
