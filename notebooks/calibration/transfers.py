"""What it costs to move bytes."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from notebooks.calibration.measurement import Measurement, median_seconds

MEGABYTE = 1_000_000


def memory(cores: int, quick: bool) -> Iterator[Measurement]:
    """Copies far larger than any cache, in one thread and in as many as there are cores; a byte is read once and written once."""
    size = (64 if quick else 256) * MEGABYTE
    for threads in sorted({1, cores}):
        pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            took = median_seconds(lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)), 0.1 if quick else 0.5)  # noqa: B023
        what = f"bytes read and written by {threads} copying threads together"
        yield Measurement(f"memory_{threads}_threads_bytes_per_s", 2 * size * threads / took, what)


def loopback(quick: bool) -> Iterator[Measurement]:
    """TCP on 127.0.0.1 between two threads."""
    size = (8 if quick else 64) * MEGABYTE
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        for end in (here, there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = threading.Thread(target=_echo, args=(there,), daemon=True)
        echo.start()
        message, answer = memoryview(bytes(size)), bytearray(1)

        def ask(count: int) -> None:
            here.sendall(count.to_bytes(8, "little"))
            here.sendall(message[:count])
            here.recv_into(answer)

        latency = median_seconds(lambda: ask(0), 0.1 if quick else 0.5) / 2
        took = median_seconds(lambda: ask(size), 0.2 if quick else 1.0)
        here.shutdown(socket.SHUT_WR)
        echo.join()
    yield Measurement("loopback_latency_s", latency, "half the round trip of an empty message")
    yield Measurement("loopback_bytes_per_s", size / max(took - 2 * latency, 1e-9), "one connection, one way")


def _echo(end: socket.socket) -> None:
    """Answers each message, its length first, with one byte."""
    buffer = memoryview(bytearray(MEGABYTE))
    while head := end.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "little")
        while left:
            left -= end.recv_into(buffer, min(left, MEGABYTE))
        end.sendall(b"!")


def pcie(quick: bool) -> Iterator[Measurement]:
    """Copies between pinned host memory and the device, and within the device."""
    size = (16 if quick else 256) * MEGABYTE
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(device)

    def seconds(to: torch.Tensor, source: torch.Tensor) -> float:
        def copy() -> None:
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        return median_seconds(copy, 0.1 if quick else 0.5)

    yield Measurement("cuda_to_device_bytes_per_s", size / seconds(device, host), "from pinned memory")
    yield Measurement("cuda_to_host_bytes_per_s", size / seconds(host, device), "to pinned memory")
    yield Measurement(
        "cuda_memory_bytes_per_s", 2 * size / seconds(other, device), "bytes read and written on the device"
    )
    yield Measurement(
        "cuda_capacity_bytes", float(torch.cuda.get_device_properties(0).total_memory), "memory of the device"
    )
