"""How the rows of a run's tables are kept, where they lie, and how they travel: `lib.train(..., store=lib.RowStore(...))`."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import numpy as np

from lib.errors import BadOption
from lib.options.checked import Checked, Count
from lib.store import shared_memory, wire
from lib.store.optim import Optimizer
from lib.store.placement import ByGroup, Hashed, Placement, Uniform, packed
from lib.store.table import Locking, Table
from lib.store.wire import Bags, Codec, Fp32

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class RowStore(Checked):
    """Rows as they are by default: as many as are met, shuffled over the servers, and sent as float32."""

    max_rows: Count | None = None
    """Most rows of a table in each place that keeps rows (a server, a replica, the host store). Beyond it the row goes that
    training looked up longest ago. None: no limit."""
    locking: Locking = "table"
    """What updates that run at once may rely on: "table" loses none, since a call that changes rows is alone in its table;
    "none", as in Hogwild, may lose one of two updates of a row."""
    shared_memory: bool = False
    """Tables lie in memory that outlives their process."""
    mapped: str | None = None
    """A folder: tables lie in files there, mapped into memory, and may be larger than it; otherwise as in shared memory."""
    journal: bool = True
    """Whether such tables can be gone on with when their process is killed: a call copies all rows that it is about to change,
    some 0.3 ms a MB, and is alone meanwhile. Without it calls meet as `locking` says, and what a killed process leaves is of no
    use."""
    placement: Literal["uniform", "hashed", "by-group", "by-cost"] = "uniform"
    """Which server has a row: every feature group's ids shuffled over all; each id where a hash says; a group on one server; or
    groups packed by the bytes that their look-ups take in the first batches (`lib/store/placement.py`)."""
    rows: Codec = field(default_factory=Fp32)
    """How rows travel to workers: a codec, or the name of one (`lib/store/wire.py`)."""
    gradients: Codec = field(default_factory=Fp32)
    """How the rows' gradients travel to servers."""
    ids: wire.IdForm = "distinct"
    """How workers ask for rows: "distinct", "entries" or "samples" (`lib/store/wire.py`)."""
    pooling: Literal["worker", "server"] = "worker"
    """Who sums the rows of a multi-hot field: the worker, or the servers, each those that it has (`lib/store/wire.py`)."""

    def __post_init__(self):
        if self.mapped is not None and self.shared_memory:
            raise BadOption("store.shared_memory and store.mapped are two places for one table; leave one of them out")
        if not (self.journal or self.shared_memory or self.mapped):
            raise BadOption(
                "store.journal would change nothing: it is of tables in shared memory, or mapped; leave it out"
            )
        if self.pooling == "server" and self.ids != "distinct":
            raise BadOption("store.ids would change nothing: servers that pool are asked for sums; leave it out")

    @classmethod
    def owner(cls) -> str:
        return "store"

    def only(self, options: Iterable[str], reason: str) -> None:
        """An error if any other option is set: nothing would honour it, for this reason."""
        for option in (each.name for each in fields(self)):
            if option not in options and getattr(self, option) != getattr(RowStore(), option):
                raise BadOption(f"store.{option} would change nothing: {reason}; leave it out")

    @property
    def root(self) -> Path | None:
        """The folder in which tables lie; None: in memory."""
        return None if self.mapped is None else Path(self.mapped)

    def table(
        self, name: str, dim: int, optimizer: Optimizer, *, seed: int, scale: float, segment: str | None = None
    ) -> Table:
        """An empty table: a row appears when its id is first met, from (seed, id) alone. `segment`: a name in shared memory under
        which a process finds the table of the one before, as long as their parent runs."""
        options = {"seed": seed, "scale": scale, "locking": self.locking, "max_rows": self.max_rows}
        if self.mapped is None and not self.shared_memory:
            return Table(dim, optimizer, **options)
        shared_memory.sweep(self.root)  # what processes left that were killed
        name = f"{segment or f'{os.getpid()}-{next(_numbers)}'}-{name}"
        table = shared_memory.SharedTable(dim, optimizer, name=name, root=self.root, journal=self.journal, **options)
        if segment:
            table.segment.keep_for(os.getppid())
        return table

    def place(self, shards: int, *, shift: int | None, costs: Callable[[], Mapping[str, float]]) -> Placement:
        """Rows over so many servers; `costs` says what each feature group's look-ups take, and is asked only if that matters."""
        if self.placement == "by-group":
            return ByGroup(shards=shards, shift=shift)
        if self.placement == "by-cost":
            return packed(costs(), shards, shift=shift)
        return (Hashed if self.placement == "hashed" else Uniform)(shards=shards)

    def ask(self, ids: np.ndarray, where: np.ndarray, mine: np.ndarray | slice, bag: Sequence[int] = ()) -> object:
        """The message in which a worker asks one server for `ids[mine]`, or for their sums over bags of so many columns; `where`
        is the batch's map to positions in `ids`."""
        return Bags.of(ids, where, bag, mine) if bag else wire.encode_ids(self.ids, ids, where, mine)

    def asked(self, message: object) -> Bags | np.ndarray:
        """What such a message asks for: sums, or the rows of distinct ids."""
        return message if isinstance(message, Bags) else wire.decode_ids(self.ids, message)
