"""Kernels that begin with everything imported: forked from a server that has imported it once (`preloaded.py`).

A kernel imports torch, pandas and seaborn, which takes six seconds of a core; a forked one starts in a tenth of a second. The
server is multiprocessing's, one for each process that runs notebooks.
"""

import faulthandler
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from typing import Any

from jupyter_client.provisioning import LocalProvisioner

from lib.training.sweep import exit_with_parent

INLINE = "module://matplotlib_inline.backend_inline"
LIMIT = 600.0
"""Seconds after which a kernel shows where each of its threads is, and ends: what takes one at smoke waits for ever."""


class WarmKernel(LocalProvisioner):
    """Starts a kernel by a fork."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        forking = multiprocessing.get_context("forkserver")
        forking.set_forkserver_preload(["reports.runner.preloaded"])
        arguments, folder = cmd[cmd.index("-f") :], kwargs.get("cwd")
        options = arguments, dict(kwargs["env"]), os.getpid(), folder, LIMIT
        process = forking.Process(target=_kernel, args=options)
        process.start()
        self.process, self.pid, self.pgid, self.cwd = _Forked(process), process.pid, process.pid, folder
        return self.connection_info


def _kernel(
    arguments: list[str], environment: Mapping[str, str], parent: int, folder: str | None, limit: float
) -> None:
    import matplotlib
    from ipykernel.kernelapp import launch_new_instance

    os.setsid()  # so that an interrupt reaches what the kernel has started, too
    os.environ.clear()
    # Without the parent's number, by which a kernel that is no child of its parent would end at once.
    os.environ.update((name, value) for name, value in environment.items() if name != "JPY_PARENT_PID")
    os.environ.setdefault("MPLBACKEND", INLINE)  # ipykernel sets it too late where matplotlib is imported already
    matplotlib.rcParams["backend"] = os.environ["MPLBACKEND"]
    search = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [each for each in search if each and each not in sys.path]
    if folder:
        os.chdir(folder)
    threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()
    faulthandler.dump_traceback_later(limit, exit=True)
    launch_new_instance(argv=arguments)


class _Forked:
    """A process of multiprocessing, called as one of subprocess is."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess):
        self._process, self.terminate, self.kill = process, process.terminate, process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self._process.pid, number)
