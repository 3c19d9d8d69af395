"""One system under the orders of `cargo xtask bench --peers`: lines in, lines out.

`size BYTES` forgets everything and stores the working set in objects of that size; `get N` and
`put N` move all of it once with N in flight, and are answered with the seconds that it took. The
contestants of our own binary speak the same words. What arrives is compared, outside of what is
timed, so that no figure is one of missing bytes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod

SET_BYTES = 256 << 20
SAMPLE = 16
PATIENCE_S = 60.0
FAREWELL_S = 10.0
# In flight while what was written is read back, which is not timed.
READ_BACK = 8


class Memory:
    """Where objects come from and where they land: one mapping, every page touched."""

    def __init__(self) -> None:
        self.mapping = mmap.mmap(-1, 2 * SET_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self.view = memoryview(self.mapping)
        step = 1 << 20
        for begin in range(0, SET_BYTES, step):
            self.view[begin : begin + step] = os.urandom(step)
            self.view[SET_BYTES + begin : SET_BYTES + begin + step] = bytes(step)

    def source(self, number: int, length: int) -> memoryview:
        return self.view[number * length : (number + 1) * length]

    def destination(self, number: int, length: int) -> memoryview:
        begin = SET_BYTES + number * length
        return self.view[begin : begin + length]


class Contestant(ABC):
    """A system that takes part."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.length = 0

    @property
    def count(self) -> int:
        return SET_BYTES // self.length

    @abstractmethod
    def clear(self) -> None:
        """Forgets every object; the next are `self.length` bytes long."""

    @abstractmethod
    def store(self, name: str, in_flight: int) -> None:
        """Stores each object of the working set under its number and this name."""

    @abstractmethod
    def load(self, name: str, in_flight: int) -> None:
        """Loads each into its place."""

    def size(self, length: int) -> None:
        """Forgets everything, and stores the working set in objects of that size."""
        self.length = length
        self.clear()
        self.store("read", 1)

    def get(self, in_flight: int, name: str = "read") -> float:
        """Seconds of reading the working set, a sample of which is compared afterwards."""
        sample = range(0, self.count, SAMPLE)
        for number in sample:
            self.memory.destination(number, self.length)[:] = bytes(self.length)
        begun = time.perf_counter()
        self.load(name, in_flight)
        seconds = time.perf_counter() - begun
        for number in sample:
            arrived = self.memory.destination(number, self.length)
            if arrived != self.memory.source(number, self.length):
                raise RuntimeError(f"object {number} arrived with other bytes")
        return seconds

    def put(self, in_flight: int) -> float:
        """Seconds of writing it under new names; what was written is read back and compared."""
        self.clear()
        begun = time.perf_counter()
        self.store("written", in_flight)
        seconds = time.perf_counter() - begun
        self.get(READ_BACK, "written")
        return seconds


def serve(contestant: Contestant) -> None:
    """Follows orders until they end."""
    print("ready", flush=True)
    for line in sys.stdin:
        word, number = line.split()
        if word == "size":
            contestant.size(int(number))
            print("ok", flush=True)
        else:
            order = {"get": contestant.get, "put": contestant.put}[word]
            print(order(int(number)), flush=True)


def batches(count: int, in_flight: int) -> list[range]:
    """The numbers of a pass, as many at once as are in flight."""
    return [range(at, min(at + in_flight, count)) for at in range(0, count, in_flight)]


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Returns when somebody listens there."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"nothing listens on port {port}")


def end(server: subprocess.Popen[bytes]) -> None:
    """Ends a server, which may remove the shared memory that it has made."""
    server.terminate()
    try:
        server.wait(FAREWELL_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
