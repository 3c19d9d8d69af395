"""The arena of a running node, read and written through the kernel from outside.

Used to damage the arena's own copy of an object without any hook in the node. A parent may do this
to its child; nothing else is needed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def arena_of(pid: int) -> tuple[int, int]:
    """Start and length of the largest writable mapping of the process: its arena."""
    mappings = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, rights, *_ = line.split()
        start, end = (int(part, 16) for part in addresses.split("-"))
        if rights.startswith("rw"):
            mappings.append((end - start, start))
    length, start = max(mappings)
    return start, length


class Snapshot:
    """The arena as it was, to find what was stored since."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start, self.length = arena_of(pid)
        self.before = self._read()

    def _read(self) -> np.ndarray:
        with Path(f"/proc/{self.pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(self.start)
            content = bytearray()
            while len(content) < self.length:
                content += memory.read(min(1 << 26, self.length - len(content)))
        return np.frombuffer(content, dtype=np.uint8)

    def flip_one_bit_of_the_new(self) -> None:
        """Flips the lowest bit of one byte, in the middle of what was stored since."""
        changed = np.flatnonzero(self._read() != self.before)
        assert len(changed), "nothing was stored since"
        place = self.start + int(changed[len(changed) // 2])
        with Path(f"/proc/{self.pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(place)
            byte = memory.read(1)[0]
            memory.seek(place)
            memory.write(bytes([byte ^ 1]))
