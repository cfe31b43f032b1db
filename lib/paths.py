"""Where things live, and how they are written: whole or not at all."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lib.errors import LockstepError

STAGE = "LOCKSTEP_STAGE"
"""The environment variable by which the notebook runner holds a notebook's results back until it has succeeded."""
COMMAND = "LOCKSTEP_COMMAND"
"""The environment variable with the command that repeats a notebook."""


def root() -> Path:
    """The repository when `lib` is installed editable, else the current folder; LOCKSTEP_ROOT overrides both."""
    if override := os.environ.get("LOCKSTEP_ROOT"):
        return Path(override).expanduser().resolve()
    above = Path(__file__).resolve().parent.parent
    return above if (above / "notebooks").is_dir() else Path.cwd()


def notebooks() -> Path:
    return root() / "notebooks"


def reports() -> Path:
    """Where results go; LOCKSTEP_REPORTS overrides it."""
    if override := os.environ.get("LOCKSTEP_REPORTS"):
        return Path(override).expanduser().resolve()
    return root() / "reports" / "output"


def runs() -> Path:
    return reports() / "runs"


def reference() -> Path:
    """The committed results of the laptop profile."""
    return root() / "reports" / "reference"


def results() -> Path:
    """Where a notebook's figures and verdicts go: the runner's stage while it runs one. Results of a run by hand, with any
    parameters, go to a folder of their own and leave the runner's results unchanged."""
    return Path(os.environ[STAGE]) if os.environ.get(STAGE) else reports() / "interactive"


def environment() -> dict[str, str]:
    """What another process needs to find the same folders and the same `lib`, installed or not."""
    package = str(Path(__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return {"LOCKSTEP_REPORTS": str(reports()), "LOCKSTEP_ROOT": str(root()), "PYTHONPATH": search}


def check_writable(
    folder: str | os.PathLike, advice: str = "set LOCKSTEP_REPORTS to a folder you can write to"
) -> Path:
    """The folder, created if need be; an error with advice on what to do if nothing can be written there."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".lockstep-"):
            return folder
    except OSError as error:
        reason = "read-only" if isinstance(error, PermissionError) or error.errno == 30 else error.strerror or error
        raise LockstepError(f"cannot write to {folder}: {reason}; {advice}") from error


@contextmanager
def exclusive_lock(name: str) -> Iterator[None]:
    """One process at a time does what has this name; the others wait."""
    place = reports() / "locks" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with place.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                mine = os.path.samefile(place, file.fileno())
            except FileNotFoundError:
                mine = False
            if not mine:  # its last owner has deleted the file
                continue
            try:
                yield
            finally:
                place.unlink(missing_ok=True)
            return


@contextmanager
def temporary_folder(folder: Path, kind: str) -> Iterator[Path]:
    """A hidden folder in another for what is not complete yet, gone afterwards. What a killed process left there goes first."""
    with ExitStack() as stack:
        with _folder_lock(folder):
            for old in folder.glob(f".{kind}-*"):
                with suppress(OSError), _folder_lock(old, wait=False):  # else its process lives
                    shutil.rmtree(old)
            made = Path(tempfile.mkdtemp(dir=folder, prefix=f".{kind}-"))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(_folder_lock(made))
        yield made


@contextmanager
def _folder_lock(folder: Path, wait: bool = True) -> Iterator[None]:
    """Lock a folder, until the process ends at the latest; OSError where another has the lock and this one is not to `wait`."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def write_atomic(path: str | os.PathLike, write: Callable[[Path], object], *, durable: bool = False) -> Path:
    """Let `write` fill a temporary file in the folder of `path`, then rename it: a reader sees the old file or the new one.

    `durable` waits for the disk, so that this holds when the power goes, too.
    """
    path = Path(path)
    check_writable(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)  # mkstemp's 0600 would hide a report from a colleague
        if durable:
            _sync(temporary)
        os.replace(temporary, path)
        if durable:
            _sync(path.parent)
    except OSError as error:
        raise LockstepError(f"cannot write {path}: {error.strerror or error}; nothing there was changed") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes_atomic(path: str | os.PathLike, data: bytes) -> Path:
    return write_atomic(path, lambda temporary: temporary.write_bytes(data))


def write_text_atomic(path: str | os.PathLike, text: str) -> Path:
    return write_bytes_atomic(path, text.encode())


def replace_folder(new: str | os.PathLike, target: str | os.PathLike) -> Path:
    """Put the complete folder `new` in the place of `target`; both must lie on one file system."""
    new, target = Path(new), Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-old-"))
    try:
        if target.exists():
            os.replace(target, old)
        os.replace(new, target)
    finally:
        if not target.exists() and any(old.iterdir()):  # Ctrl-C between the two must not lose the old one either
            os.replace(old, target)
        shutil.rmtree(old, ignore_errors=True)
    return target
