"""OpenLake by its only client without RDMA: a daemon on this host, and memory that both share.

Its slots have one size, so that each object size gets a daemon of its own. What is in flight is one
batch, as its connector does it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openlake_client

from contest import SET_BYTES, Contestant, batches, end, free_port, serve, wait_for_port

SLOT_HEADER_BYTES = 54
NAME_BYTES = 54
CLIENT = 2048
Batch = Callable[[list[bytes], list[list[int]], list[list[int]]], list[int]]
DAEMON = Path(openlake_client.__file__).parent / "openlaked"
CONFIG = """
self_id = 0
mode = "kv"
transport = "h2"
rpc_addr = "127.0.0.1:{rpc}"
kv_agents = ["127.0.0.1:{rpc}"]
s3_addr = "127.0.0.1:{s3}"
region = "us-east-1"
data_dirs = []
set_drive_count = 1
default_parity_count = 1

[[credentials]]
access_key = "openlake"
secret_key = "openlake"

[[nodes]]
id = 0
rpc_addr = "127.0.0.1:{rpc}"
disk_count = 0

[kv_slab]
capacity_gb = 1
reserve_ttl_secs = 60
"""


class OpenLake(Contestant):
    """A daemon, and a client that is attached to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.daemon: subprocess.Popen[bytes] | None = None
        self.client: Any = None
        self.attached_length = 0

    def clear(self) -> None:
        if self.attached_length == self.length:
            self.client.reset()
            return
        if self.daemon is not None:
            self.client.close()
            end(self.daemon)
        rpc = free_port()
        config = self.folder / "config.toml"
        config.write_text(CONFIG.format(rpc=rpc, s3=free_port()))
        DAEMON.chmod(0o755)
        self.daemon = subprocess.Popen(
            [str(DAEMON), "--config", str(config)],
            cwd=self.folder,
            env={**os.environ, "RUST_LOG": "error"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        wait_for_port(rpc, self.daemon)
        self.client = openlake_client.Client("local", CLIENT)
        self.client.register_memory(self.memory.address, 2 * SET_BYTES)
        self.client.attach(f"127.0.0.1:{rpc}", 0, self.length + SLOT_HEADER_BYTES)
        self.attached_length = self.length

    def names(self, name: str, numbers: range) -> list[bytes]:
        return [f"{name}-{number}".encode().ljust(NAME_BYTES, b"\0") for number in numbers]

    def store(self, name: str, in_flight: int) -> None:
        self.move(self.client.put_batch, name, in_flight, self.memory.address)

    def load(self, name: str, in_flight: int) -> None:
        self.move(self.client.get_batch, name, in_flight, self.memory.address + SET_BYTES)

    def move(self, batch: Batch, name: str, in_flight: int, begin: int) -> None:
        for numbers in batches(self.count, in_flight):
            places = [[begin + number * self.length] for number in numbers]
            lengths = [[self.length]] * len(numbers)
            done = batch(self.names(name, numbers), places, lengths)
            if any(done):
                raise RuntimeError(f"a batch ended as {done}")

    def close(self) -> None:
        if self.daemon is not None:
            end(self.daemon)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        openlake = OpenLake(Path(folder))
        try:
            serve(openlake)
        finally:
            openlake.close()


if __name__ == "__main__":
    main()
