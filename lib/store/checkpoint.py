"""Checkpoints: a tree of plain data, arrays and dataclasses in one file, whole or not at all, under a checksum.

A checkpoint is what `torch.save` writes, and behind it the XXH3 of that.

Guaranteed:
- `save` fills a temporary file next to the target and renames it, so the old checkpoint or the new one is there, and whole;
- `load` gives back exactly what was saved, or raises `Damaged` with the file's name (a wrong byte has one chance in 2^64 not to
  be found; this is no protection against a forger);
- `load` makes nothing but plain data, arrays, random streams, and dataclasses of this package or that the reader names: it is
  torch's with `weights_only`.
"""

import mmap
import pickle
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from xxhash import xxh3_64_hexdigest

from lib import paths
from lib.device_array import DeviceArray
from lib.errors import BadOption, Damaged

_SEAL = 16
"""Bytes of the checksum."""
_KNOWN = (torch.Tensor, torch.dtype, OrderedDict, Counter, slice, frozenset, FunctionType, type)
"""Kinds that pickle as they are, in addition to plain data and dataclasses."""
_PACKAGE = __name__.partition(".")[0] + "."
_LOADING = threading.Lock()
"""What torch takes for safe is one list for the whole process."""


def save(path: Path, thing: Any, *, durable: bool = True) -> int:
    """Write a checkpoint over what was there and return its bytes.

    `thing` is a tree of containers, dataclasses, numpy arrays and generators. `durable` waits for the disk, so that a loss of
    power loses nothing either.
    """

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            torch.save(thing, file, pickle_module=_PICKLE)
            file.flush()
            file.write(_checksum(temporary, 0).encode())

    return paths.write_atomic(path, write, durable=durable).stat().st_size


def load(path: Path, kinds: Iterable[type] = (), digest: str | None = None) -> Any:
    """What was saved, and has this `digest`, if one is given; `kinds` are the dataclasses that it may hold in addition to this
    package's."""
    try:
        written, found = stored_checksum(path), _checksum(path, _SEAL)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} is no checkpoint, or a damaged one: {error}") from error
    if found != written:
        raise Damaged(f"{path} is no checkpoint, or a damaged one: its XXH3 is {found}, and {written} was written")
    if digest not in (None, found):
        raise Damaged(f"{path} is another checkpoint than is meant: its digest is {found}, not {digest}")
    try:
        with _LOADING, torch.serialization.safe_globals(_safe_globals(path, kinds)):
            return torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        raise BadOption(f"{path} does what no checkpoint does: {error}") from error


def stored_checksum(path: Path) -> str:
    """What tells a checkpoint from all others: its checksum as it was written."""
    with open(path, "rb") as file:
        file.seek(-_SEAL, 2)
        return file.read().decode()


def _safe_globals(path: Path, kinds: Iterable[type]) -> list[Any]:
    """All that the file names, which must be plain, a dataclass of this package, or one of these kinds."""
    known = {f"{each.__module__}.{each.__qualname__}": each for each in (*_MAKERS, *kinds)}
    for name in torch.serialization.get_unsafe_globals_in_checkpoint(path) - known.keys():
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind, None) if module.startswith(_PACKAGE) else None
        if not is_dataclass(found):
            raise BadOption(f"{path} holds a {name}, which the reader did not name; it named: {', '.join(known)}")
        known[name] = found
    return list(known.values())


def _checksum(path: Path, behind: int) -> str:
    """The XXH3 of a file without so many bytes at its end."""
    with open(path, "rb") as file:
        content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    return xxh3_64_hexdigest(content[: content.size - behind])


class Checkpointed:
    """An object with a state between two steps."""

    in_checkpoint: ClassVar[tuple[str, ...]] = ()
    """Attributes that a checkpoint holds: plain data, or objects with `dump()` and `restore(state)`, also in a dictionary."""

    def dump(self) -> dict[str, Any]:
        return {name.lstrip("_"): _with_parts_dumped(getattr(self, name)) for name in self.in_checkpoint}

    def restore(self, state: dict[str, Any]) -> None:
        for name in self.in_checkpoint:
            setattr(self, name, _with_parts_restored(getattr(self, name), state[name.lstrip("_")]))


class Part(Checkpointed):
    """A part of a run, which a cluster hosts, and which writes and reads its own checkpoint where it is hosted."""

    async def save(self) -> dict[str, Any]:
        """The state, at a moment when nothing is under way."""
        return self.dump()

    async def load(self, state: dict[str, Any]) -> None:
        self.restore(state)

    async def write_checkpoint(self, file: Path) -> Mapping[str, int] | None:
        """Write the state; the ledger of the part's log, if it has one. None: there is nothing to write."""
        if not (state := await self.save()):
            return None
        save(file, state)
        return self.record.ledger if hasattr(self, "record") else {}

    async def read_checkpoint(self, file: Path, kinds: Iterable[type], digest: str) -> None:
        """Go on from what `write_checkpoint` wrote; `kinds` and `digest` as in `load`."""
        await self.load(load(file, kinds, digest))


def _with_parts_dumped(value: Any) -> Any:
    if hasattr(value, "restore"):  # numpy's arrays have a `dump` of another meaning
        return value.dump()
    if type(value) is dict:
        return {key: _with_parts_dumped(each) for key, each in value.items()}
    return value


def _with_parts_restored(value: Any, state: Any) -> Any:
    """The same object with its own state, where it has one; else the state."""
    if hasattr(value, "restore"):
        value.restore(state)
        return value
    if type(value) is dict and any(hasattr(each, "restore") for each in value.values()):
        return {key: _with_parts_restored(each, state[key]) for key, each in value.items()}
    return state


class _Pickler(pickle.Pickler):
    """Arrays as tensors and random streams as their states; an error for all that a reader would not take."""

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is np.ndarray or kind is DeviceArray:
            return _array, (_tensor(np.asarray(thing)),)
        if isinstance(thing, np.generic):
            return _scalar, (_tensor(np.asarray(thing)),)
        if kind is np.random.Generator:
            return _generator, (type(thing.bit_generator).__name__, thing.bit_generator.state)
        if not (is_dataclass(kind) or issubclass(kind, _KNOWN)):
            raise BadOption(f"a {kind.__module__}.{kind.__qualname__} cannot be saved")
        return NotImplemented


_PICKLE = SimpleNamespace(Pickler=_Pickler, __name__="pickle")


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory where it is contiguous, or a phantom's."""
    try:
        return torch.from_numpy(np.require(array, requirements="CW") if any(array.strides) else array)
    except (TypeError, ValueError) as error:
        raise BadOption(f"an array of {array.dtype} cannot be saved; numbers and booleans can") from error


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy()


def _scalar(tensor: torch.Tensor) -> np.generic:
    return tensor.numpy()[()]


def _generator(kind: str, state: dict[str, Any]) -> np.random.Generator:
    bits = getattr(np.random, kind)()
    bits.state = state
    return np.random.Generator(bits)


_MAKERS = (_array, _scalar, _generator, slice, frozenset)
"""What a checkpoint may call in addition to dataclasses."""
