"""Threads that wait awake for compiled work, for a while: then handing some over takes no system call and no interpreter.

Waking a thread that sleeps takes tens of microseconds, and so does every wait for the interpreter's lock: much of a step on two
threads. So a helper runs compiled code alone. It watches its board, a line of memory, for a job: the address of a function
`job(part, arguments)`, compiled with `as_job`. If none comes for `PATIENCE` turns, it sleeps until a caller of `boards` wakes it.
A helper that is busy for another caller, or that gets no processor, is no loss: `fork` does in its own thread what nobody began.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.types import boolean, int64, uint64, void

from lib.store.table.kernels import _OPTIONS, mix

MOST = 32
"""Parts that a job may have."""
PATIENCE = 40_000
"""Turns, some nanoseconds each: about two tenths of a millisecond."""
_ASLEEP, _IDLE, _TAKEN, _GIVEN, _BEGUN, _DONE = range(6)
_BOARDS = types.Array(int64, 2, "C")
_WORD = np.uint64(8)
_LONG = ir.IntType(64)

as_job = cfunc(void(int64, uint64), cache=True, nopython=True, error_model="numpy")


class _Crew:
    """The helpers of one process. A board's words: state, function, arguments, part."""

    def __init__(self):
        self.born = os.getpid()
        self.boards = np.zeros((MOST - 1, 8), np.int64)  # a cache line each
        self.bells: list[SimpleQueue] = []

    def serve(self, which: int) -> None:
        while True:
            self.bells[which].get()
            _serve(self.boards, which, PATIENCE)


_crew = _Crew()
_growing = threading.Lock()


def boards(parts: int) -> np.ndarray:
    """The boards of helpers for so many parts, who are awake or about to be."""
    global _crew
    if len(_crew.bells) < parts - 1 or _crew.born != os.getpid():
        with _growing:
            if _crew.born != os.getpid():  # a forked child has no threads but its own
                _crew = _Crew()
            while len(_crew.bells) < parts - 1:
                _crew.bells.append(SimpleQueue())
                work = threading.Thread(target=_crew.serve, args=(len(_crew.bells) - 1,), name="store", daemon=True)
                work.start()
    crew = _crew
    for which in range(parts - 1):
        if _rouse(crew.boards, which):
            crew.bells[which].put(None)
    return crew.boards


@intrinsic
def _watch(context, address):
    """The word at an address as it is now, and then what was written before it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _LONG.as_pointer()), "acquire", 8, typ=_LONG)

    return int64(uint64), codegen


@intrinsic
def _publish(context, address, word):
    """Write a word, after everything that was written before."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], builder.inttoptr(args[0], _LONG.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return void(uint64, int64), codegen


@intrinsic
def _swap(context, address, old, new):
    """Replace a word by another if it is the old one; whether it was."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _LONG.as_pointer())
        return builder.extract_value(builder.cmpxchg(pointer, args[1], args[2], "acq_rel", "acquire"), 1)

    return boolean(uint64, int64, int64), codegen


@intrinsic
def _call(context, function, part, arguments):
    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_LONG, _LONG])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return void(uint64, int64, uint64), codegen


@intrinsic
def _give_way(context):
    """Let another thread have this processor."""

    def codegen(context, builder, signature, args):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return void(), codegen


@intrinsic
def spill(context, kind, values):
    """The address of a tuple of that type; it is good until the calling function returns."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[1]), _LONG)

    return uint64(kind, kind.instance_type), codegen


@intrinsic
def unspill(context, address, kind):
    """The tuple of that type at an address."""
    tuple_ = kind.instance_type

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], context.get_value_type(tuple_).as_pointer())
        value = builder.load(pointer, typ=context.get_value_type(tuple_))
        return impl_ret_borrowed(context, builder, tuple_, value)

    return tuple_(address, kind), codegen


@njit
def fork(boards, function, arguments, parts):
    """Do job(0), ..., job(parts - 1), as many at a time as there are helpers who have nothing else to do."""
    first, given = np.uint64(boards.ctypes.data), np.uint64(0)
    for part in range(1, parts):
        board = first + np.uint64(part - 1) * np.uint64(64)
        if _swap(board, _IDLE, _TAKEN):
            _publish(board + _WORD, np.int64(function))
            _publish(board + np.uint64(16), np.int64(arguments))
            _publish(board + np.uint64(24), part)
            _publish(board, _GIVEN)
            given |= np.uint64(1) << np.uint64(part)
    for part in range(parts):
        if not given >> np.uint64(part) & np.uint64(1):
            _call(function, part, arguments)
    for part in range(1, parts):
        if given >> np.uint64(part) & np.uint64(1):
            board, turns = first + np.uint64(part - 1) * np.uint64(64), 0
            if _swap(board, _GIVEN, _DONE):  # nobody has begun: no processor is free for the helper
                _call(function, part, arguments)
            while _watch(board) != _DONE:
                turns += 1
                if turns > 1000:
                    _give_way()
            _publish(board, _IDLE)


@njit(**_OPTIONS)
def stretch(part, parts, size):
    """From where to where a part of a batch goes."""
    return part * size // parts, (part + 1) * size // parts


@njit(void(_BOARDS, int64, int64), **_OPTIONS)
def _serve(boards, which, patience):
    board = np.uint64(boards.ctypes.data) + np.uint64(which) * np.uint64(64)
    turns, idle = 0, np.uint64(0)
    while turns < patience or not _swap(board, _IDLE, _ASLEEP):
        if _watch(board) == _GIVEN and _swap(board, _GIVEN, _BEGUN):
            function, arguments = np.uint64(_watch(board + _WORD)), np.uint64(_watch(board + np.uint64(16)))
            _call(function, _watch(board + np.uint64(24)), arguments)
            _publish(board, _DONE)
            turns = 0
        idle = mix(idle + np.uint64(turns))  # takes a turn's time
        turns += 1 + np.int64(idle == np.uint64(1))


@njit(boolean(_BOARDS, int64), **_OPTIONS)
def _rouse(boards, which):
    return _swap(np.uint64(boards.ctypes.data) + np.uint64(which) * np.uint64(64), _ASLEEP, _IDLE)
