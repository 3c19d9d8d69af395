"""Tickets as a test that knows the key can write them: other addresses, other blocks.

Used by the tests of handovers, as whoever holds the secret of both engines could.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "tessera_ticket"
PROMPT = slice(1 + 16 + 8, 1 + 16 + 8 + 32)
HEAD = PROMPT.stop + 8 + 8
TAG = 32


@dataclass
class Ticket:
    """The parts of a ticket that tests change: where the workers listen, and the blocks."""

    head: bytes
    workers: list[tuple[bytes, str]]
    tables: list[list[int]]

    @staticmethod
    def of(handover: dict[str, Any]) -> Ticket:
        body = bytes.fromhex(handover[NAME])[:-TAG]
        head, at = body[:HEAD], HEAD

        def count() -> int:
            nonlocal at
            at += 4
            return int(struct.unpack_from("<I", body, at - 4)[0])

        workers = []
        for _ in range(count()):
            incarnation = body[at : at + 16]
            at += 16
            length = count()
            workers.append((incarnation, body[at : at + length].decode()))
            at += length
        tables = []
        for _ in range(count()):
            length = count()
            tables.append(list(struct.unpack_from(f"<{length}I", body, at)))
            at += 4 * length
        assert at == len(body)
        return Ticket(head, workers, tables)

    def for_prompt_of(self, other: Ticket) -> Ticket:
        """This ticket as if it had been written for another one's prompt."""
        head = self.head[: PROMPT.start] + other.head[PROMPT] + self.head[PROMPT.stop :]
        return Ticket(head, self.workers, self.tables)

    def seal(self, key: Path, handover: dict[str, Any]) -> dict[str, Any]:
        """The handover with this ticket, signed."""
        body = self.head + struct.pack("<I", len(self.workers))
        for incarnation, address in self.workers:
            body += incarnation + struct.pack("<I", len(address)) + address.encode()
        body += struct.pack("<I", len(self.tables))
        for table in self.tables:
            body += struct.pack(f"<{len(table) + 1}I", len(table), *table)
        tag = hmac.new(key.read_bytes().rstrip(), body, hashlib.sha256).digest()
        return {**handover, NAME: (body + tag).hex()}
