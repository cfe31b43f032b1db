"""What a training run leaves: history, summary, trace, provenance, and how it is saved and found again."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from xxhash import xxh3_64_hexdigest

from lib import paths
from lib.errors import Damaged, LockstepError, NotSaved
from lib.results.key import json_default

if TYPE_CHECKING:
    from lib.drivers.model_state import ModelState

MODEL = "model.pt"
TABLES = ("history", "trace", "usage", "accesses")
TEXTS = ("summary", "provenance", "digest")


@dataclass(frozen=True, eq=False)
class Run:
    """One training run. Its seconds are virtual or wall, as the summary's `clock` says; the two are never mixed."""

    history: pd.DataFrame
    """Over the run's time: samples, losses before update, throughput, staleness, and the metrics where it was evaluated."""
    summary: dict[str, Any]
    """The end: metrics, throughput, the ledger, bytes."""
    trace: pd.DataFrame
    """Who did what from when to when."""
    usage: pd.DataFrame
    """How busy each node and link of a virtual cluster was, and how long messages queued; empty on a wall clock."""
    provenance: dict[str, Any]
    """What it takes to repeat the run."""
    digest: str
    """sha256 over all final parameters, rows, optimiser state and timestamps: equal digests mean identical to the bit."""
    kept: ModelState | Path | None = None
    """The model at the end, or where it is saved; None: it was not kept."""
    accesses: pd.DataFrame | None = None
    """What a pipeline's batches did with which rows (`notebooks.oac.access_history`), where that was wanted."""
    folder: Path | None = None
    """Where the run is saved; None: it was not."""

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {text}" for name, text in self._headline_figures().items())
        return f"<Run of {' '.join(self._workload_protocol_cluster())}: {figures}>"

    def _repr_html_(self) -> str:
        """A card in Jupyter."""
        rows = {
            "run of": " ".join(self._workload_protocol_cluster()),
            **self._headline_figures(),
            "saved": self.folder or "no",
            "digest": self.digest[:12],
        }
        return pd.Series({name: str(text) for name, text in rows.items()}).to_frame().to_html(header=False)

    def _workload_protocol_cluster(self) -> list[str]:
        things = (self.provenance.get(what) for what in ("workload", "protocol", "cluster"))
        return [str(thing["name"]) for thing in things if isinstance(thing, dict) and "name" in thing]

    def _headline_figures(self) -> dict[str, str]:
        """The figures that a person looks for first; seconds are simulated or real."""
        clock = str(self.summary.get("clock"))
        names = [name for name in ("auc", "ne", "accuracy", "f1", "mrr") if name in self.summary]
        metrics = {name: f"{self.summary[name]:.4g}" for name in names}
        seconds = self.summary.get(f"{clock}_seconds") or 0.0
        speed = {"samples/s": f"{self.summary.get('qps', 0.0):,.0f}", f"{clock} seconds": f"{seconds:.4g}"}
        return (
            metrics
            | speed
            | {"samples": f"{self.summary.get('samples', 0):,}", "seed": str(self.provenance.get("seed"))}
        )

    @cached_property
    def model(self) -> ModelState | None:
        """The model at the end, for another run to start from, where it was kept."""
        if isinstance(self.kept, Path):
            from lib.drivers.model_state import ModelState
            from lib.store import checkpoint
            from lib.store.rows import Rows

            return checkpoint.load(self.kept, [ModelState, Rows])
        return self.kept

    def history_column(self, metric: str) -> str:
        """The history's column of a metric: where the true probabilities are known, of its expectation under them."""
        return expected if (expected := f"expected_{metric}") in self.history else metric

    def quality(self, metric: str) -> float:
        """The mean of a metric's column over the evaluations of the pass's last fifth, of which the end is one; nan where one of
        these is."""
        history = self.history[self.history["step"].isna()] if "step" in self.history else self.history
        # What belongs to four fifths may come a step later.
        late = history["samples"] >= 0.81 * history["samples"].iloc[-1]
        return float(history.loc[late, metric].mean(skipna=False))

    @property
    def steady_qps(self) -> float:
        """Samples per second between a fifth and four fifths of the samples: all workers have begun, and none has done."""
        history = self.history.dropna(subset=["step"])
        time, samples = history["time"].to_numpy(), history["samples"].to_numpy()
        first, last = (int((samples >= share * samples[-1]).argmax()) for share in (0.2, 0.8))
        return float((samples[last] - samples[first]) / (time[last] - time[first]))

    def perfetto(self, path: str | Path) -> Path:
        """Write the trace as a file that ui.perfetto.dev and chrome://tracing open, a track for each node."""
        names = sorted(self.trace["node"].astype(str).unique(), key=_natural_order)
        nodes = {name: number for number, name in enumerate(names)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": at, "args": {"name": name}}
            for name, at in nodes.items()
        ]
        spans = self.trace.assign(ts=1e6 * self.trace["start"], dur=1e6 * (self.trace["end"] - self.trace["start"]))
        events = [
            {"ph": "X", "name": str(row.kind), "pid": 1, "tid": nodes[str(row.node)], "ts": row.ts, "dur": row.dur}
            | {"args": {"batch": int(row.batch)}}
            for row in spans.itertuples()
        ]
        paths.write_text_atomic(Path(path), json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
        return Path(path)

    def save(self, folder: Path) -> None:
        """Write the whole run or nothing: it appears under its name only when it is complete."""
        from lib.store import sealed

        texts = {name: getattr(self, name) for name in TEXTS} | {"tables": {}, "kept": self.kept is not None}
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with paths.temporary_folder(folder.parent, "new") as place:
                (new := place / folder.name).mkdir()
                for name in TABLES if self.accesses is not None else TABLES[:-1]:
                    (new / f"{name}.parquet").write_bytes(data := getattr(self, name).to_parquet())
                    texts["tables"][name] = xxh3_64_hexdigest(data)
                (new / "run.json").write_text(sealed.text(texts, json_default))
                if self.kept is not None:
                    from lib.store import checkpoint

                    checkpoint.save(new / MODEL, self.model, durable=False)
                paths.replace_folder(new, folder)
            object.__setattr__(self, "folder", folder)
        except OSError as error:
            raise NotSaved(folder, error.strerror or str(error), self) from error

    @classmethod
    def load(cls, folder: Path) -> Run:
        try:
            from lib.store import sealed

            texts = sealed.load(folder / "run.json")
            tables = {name: (folder / f"{name}.parquet").read_bytes() for name in texts["tables"]}
            for name, data in tables.items():
                if xxh3_64_hexdigest(data) != texts["tables"][name]:
                    raise Damaged(f"{name}.parquet is not what was written")
            frames = {name: pd.read_parquet(io.BytesIO(data)) for name, data in tables.items()}
            if texts["kept"] and not (folder / MODEL).is_file():
                raise Damaged(f"its {MODEL} is gone")
            kept = folder / MODEL if texts["kept"] else None
            return cls(**frames, **{name: texts[name] for name in TEXTS}, kept=kept, folder=folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LockstepError(
                f"the saved run {folder} cannot be read ({error}); delete that folder to train anew"
            ) from error


def _natural_order(name: str) -> tuple[str, int]:
    """worker2 comes before worker10."""
    role, number = re.fullmatch(r"(.*?)(\d*)", name).groups()
    return role, int(number or 0)
