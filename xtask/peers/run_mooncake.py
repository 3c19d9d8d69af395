"""Mooncake Store over TCP: a master, a process that lends its memory, and this client.

The client lends nothing, so that every byte crosses a socket, and its buffers are registered, which
is the way without copies. What is in flight is one batch: the client's own way to have more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from contest import PATIENCE_S, SET_BYTES, Contestant, batches, end, free_port, serve, wait_for_port

LENT_BYTES = 3 * SET_BYTES
BUFFER_BYTES = 64 << 20
LEND = "lend"


def join(port: int, metadata: str, master: str, lent_bytes: int) -> Any:
    """A client of the store that lends so much memory to it."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    name = f"127.0.0.1:{port}"
    until = time.monotonic() + PATIENCE_S
    while store.setup(name, metadata, lent_bytes, BUFFER_BYTES, "tcp", "", master) != 0:
        if time.monotonic() > until:
            raise RuntimeError("the client could not join the store")
        time.sleep(0.2)
    return store


class Mooncake(Contestant):
    """The store with one lender."""

    def __init__(self) -> None:
        super().__init__()
        rpc, http, metrics = free_port(), free_port(), free_port()
        self.master = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "mooncake_master"),
                f"--rpc_port={rpc}",
                "--enable_http_metadata_server=true",
                "--http_metadata_server_host=127.0.0.1",
                f"--http_metadata_server_port={http}",
                f"--metrics_port={metrics}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_port(rpc, self.master)
        wait_for_port(http, self.master)
        where = (f"http://127.0.0.1:{http}/metadata", f"127.0.0.1:{rpc}")
        lender = [sys.executable, __file__, LEND, str(free_port()), *where]
        self.lender = subprocess.Popen(lender, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.lender.stdout is not None
        if b"lent" not in self.lender.stdout.read(4):
            raise RuntimeError("no memory was lent to the store")
        self.store_client = join(free_port(), *where, 0)
        address, length = self.memory.address, 2 * SET_BYTES
        if self.store_client.register_buffer(address, length) != 0:
            raise RuntimeError("the client's memory could not be registered")

    def clear(self) -> None:
        self.store_client.remove_all(True)

    def store(self, name: str, in_flight: int) -> None:
        for numbers in batches(self.count, in_flight):
            names = [f"{name}-{number}" for number in numbers]
            places = [self.memory.address + number * self.length for number in numbers]
            done = self.store_client.batch_put_from(names, places, [self.length] * len(names))
            if any(done):
                raise RuntimeError(f"a batch of PUTs ended as {done}")

    def load(self, name: str, in_flight: int) -> None:
        begin = self.memory.address + SET_BYTES
        for numbers in batches(self.count, in_flight):
            names = [f"{name}-{number}" for number in numbers]
            places = [begin + number * self.length for number in numbers]
            done = self.store_client.batch_get_into(names, places, [self.length] * len(names))
            if any(length != self.length for length in done):
                raise RuntimeError(f"a batch of GETs ended as {done}")

    def close(self) -> None:
        end(self.lender)
        end(self.master)


def main() -> None:
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    if sys.argv[1:2] == [LEND]:
        port, metadata, master = sys.argv[2:]
        lent = join(int(port), metadata, master, LENT_BYTES)
        # Not by print: the library writes to the standard output as well.
        os.write(1, b"lent")
        sys.stdin.read()
        del lent
        return
    mooncake = Mooncake()
    try:
        serve(mooncake)
    finally:
        mooncake.close()


if __name__ == "__main__":
    main()
