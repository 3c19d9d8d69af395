"""Passes as a dispatcher writes them that sends one request to both engines at once."""

from __future__ import annotations

import hashlib
import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tickets

NAME = "tessera_pass"
VERSION = 3
HEADER_BYTES = 64


def mint(key: Path, inbox: str, valid_s: float = 600) -> str:
    """A pass for a transfer of its own, in which prefill takes decode's ticket at `inbox`."""
    expires = int((time.time() + valid_s) * 1000)
    body = bytes([VERSION]) + secrets.token_bytes(16) + struct.pack("<Q", expires)
    body += struct.pack("<I", len(inbox)) + inbox.encode()
    tag = hmac.new(key.read_bytes().rstrip(), body, hashlib.sha256).digest()
    return (body + tag).hex()


def legs(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters for prefill and for decode."""
    return {"do_remote_decode": True, NAME: text}, {"do_remote_prefill": True, NAME: text}


class Desk:
    """Stands before an inbox: sees decode's tickets, and hands them on changed, or keeps them."""

    def __init__(self, inbox: str, key: Path) -> None:
        self.inbox, self.key = inbox.rsplit(":", 1), key
        self.seen: queue.Queue[tickets.Ticket] = queue.Queue()
        self.change: Callable[[tickets.Ticket], tickets.Ticket] | None = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            ours, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(ours,), daemon=True).start()

    def serve(self, ours: socket.socket) -> None:
        stream = ours.makefile("rb")
        header = stream.read(HEADER_BYTES)
        (length,) = struct.unpack("<I", stream.read(4))
        text = stream.read(length).decode()
        ticket = tickets.Ticket.of({tickets.NAME: text})
        self.seen.put(ticket)
        if self.change is None:
            # Whoever brought it waits for an answer that does not come.
            stream.read()
            return
        sealed = self.change(ticket).seal(self.key, {})[tickets.NAME]
        assert len(sealed) == length, "the header says how long it is"
        theirs = socket.create_connection((self.inbox[0], int(self.inbox[1])))
        theirs.sendall(header + struct.pack("<I", length) + sealed.encode())
        while data := theirs.recv(1 << 16):
            ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
