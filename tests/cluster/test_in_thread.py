"""A run has a thread of its own, of which nothing is left when its caller goes on."""

from __future__ import annotations

import threading
import time

from lib.cluster.base import in_thread


def test_the_thread_has_let_go_of_all_when_its_result_is_there():
    """What a thread keeps to itself goes when it ends, after its work: a process that ends meanwhile is aborted by torch."""
    own, gone = threading.local(), []

    class Kept:
        def __del__(self):
            time.sleep(0.2)
            gone.append(self)

    def target():
        own.kept = Kept()
        return "done"

    assert in_thread(target, interrupt=lambda: None) == "done" and len(gone) == 1
