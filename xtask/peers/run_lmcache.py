"""LMCache's own server, by its own messages on one blocking socket for each request in flight.

The server answers no PUT. Each is followed by the question whether it is there, which the server
answers after it. It removes nothing, so that each object size gets a server of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.protocol import (
    INT_TO_DTYPE,
    ClientCommand,
    ClientMetaMessage,
    ServerMetaMessage,
    ServerReturnCode,
)

from contest import Contestant, end, free_port, serve, wait_for_port

CONNECTIONS = 8
# The element type, by the number that it has in messages.
BYTE = INT_TO_DTYPE[6]


class LMCache(Contestant):
    """A server, and connections to it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(CONNECTIONS)
        self.server: subprocess.Popen[bytes] | None = None
        self.served_length = 0

    def clear(self) -> None:
        if self.served_length == self.length:
            # The same names are written again, and what they held is dropped.
            return
        if self.server is not None:
            end(self.server)
        port = free_port()
        self.server = subprocess.Popen(
            [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port)],
            env={**os.environ, "LMCACHE_LOG_LEVEL": "ERROR"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        wait_for_port(port, self.server)
        where = ("127.0.0.1", port)
        self.connections = [socket.create_connection(where) for _ in range(CONNECTIONS)]
        for connection in self.connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.served_length = self.length

    def message(self, command: ClientCommand, name: str, number: int) -> bytes:
        key = CacheEngineKey(name, 1, 0, number, BYTE)
        length = self.length if command == ClientCommand.PUT else 0
        shape = [self.length, 0, 0, 0]
        kind = MemoryFormat.BINARY_BUFFER
        return bytes(ClientMetaMessage(command, key, length, kind, BYTE, shape).serialize())

    def put_one(self, connection: socket.socket, name: str, number: int) -> None:
        connection.sendall(self.message(ClientCommand.PUT, name, number))
        connection.sendall(self.memory.source(number, self.length))
        connection.sendall(self.message(ClientCommand.EXIST, name, number))
        answer(connection)

    def get_one(self, connection: socket.socket, name: str, number: int) -> None:
        connection.sendall(self.message(ClientCommand.GET, name, number))
        if answer(connection).length != self.length:
            raise RuntimeError("an object came back with another length")
        receive(connection, self.memory.destination(number, self.length))

    def each(
        self, move: Callable[[socket.socket, str, int], None], name: str, in_flight: int
    ) -> None:
        def some(first: int) -> None:
            for number in range(first, self.count, in_flight):
                move(self.connections[first], name, number)

        list(self.threads.map(some, range(in_flight)))

    def store(self, name: str, in_flight: int) -> None:
        self.each(self.put_one, name, in_flight)

    def load(self, name: str, in_flight: int) -> None:
        self.each(self.get_one, name, in_flight)

    def close(self) -> None:
        if self.server is not None:
            end(self.server)


def receive(connection: socket.socket, room: memoryview) -> None:
    while room:
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if count == 0:
            raise RuntimeError("the server closed a connection")
        room = room[count:]


def answer(connection: socket.socket) -> ServerMetaMessage:
    message = bytearray(ServerMetaMessage.packlength())
    receive(connection, memoryview(message))
    said = ServerMetaMessage.deserialize(bytes(message))
    if said.code != ServerReturnCode.SUCCESS:
        raise RuntimeError(f"the server answered {said.code}")
    return said


def main() -> None:
    lmcache = LMCache()
    try:
        serve(lmcache)
    finally:
        lmcache.close()


if __name__ == "__main__":
    main()
