"""Runs pytest time after time, each time in a process of its own that has been imported for: a script, of `tests.mutate`.

It reads a line of JSON, {"folder": ..., "limit": ..., "output": ..., "arguments": [...]}, forks a process that runs pytest there,
and writes its exit status. The packages that it is given as arguments lie ready, which is seconds of each start; of the
repository nothing does, so that each process sees the code as it then is. A process that is at it longer than the limit is ended.
"""

import importlib
import json
import os
import signal
import sys

import pytest


def run(folder: str, limit: int, output: str, arguments: list[str]) -> None:
    """Become the process that runs these tests."""
    os.setsid()
    signal.alarm(limit)
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    code = 70
    try:
        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    for package in sys.argv[1:]:
        importlib.import_module(package)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
