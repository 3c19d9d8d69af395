"""The arena of a running node, read and written through the kernel from outside.

Used to damage the arena's own copy of an object without any hook in the node. A parent may do this
to its child; nothing else is needed.
"""

from __future__ import annotations

import zlib
from pathlib import Path

PAGE = 4096
READ = 1 << 24


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
        self.memory = Path(f"/proc/{pid}/mem")
        self.start, self.length = arena_of(pid)
        self.before = self._pages()

    def _pages(self) -> list[int]:
        """A checksum of every page."""
        pages = []
        with self.memory.open("rb", buffering=0) as memory:
            for offset in range(0, self.length, READ):
                memory.seek(self.start + offset)
                part = memoryview(memory.read(min(READ, self.length - offset)))
                pages += [zlib.crc32(part[at : at + PAGE]) for at in range(0, len(part), PAGE)]
        return pages

    def _new(self) -> list[int]:
        """The addresses of the pages in which something was stored since."""
        pages = enumerate(zip(self.before, self._pages(), strict=True))
        changed = [page for page, (before, after) in pages if before != after]
        assert changed, "nothing was stored since"
        return [self.start + page * PAGE for page in changed]

    def flip_one_bit_of_the_new(self) -> None:
        """Flips one bit in the middle of what was stored since."""
        changed = self._new()
        place = changed[len(changed) // 2]
        with self.memory.open("r+b", buffering=0) as memory:
            memory.seek(place)
            byte = memory.read(1)[0]
            memory.seek(place)
            memory.write(bytes([byte ^ 1]))

    def spoil_the_new(self) -> None:
        """Writes values that are no numbers into the middle of every page stored since."""
        with self.memory.open("r+b", buffering=0) as memory:
            for page in self._new():
                memory.seek(page + PAGE // 2)
                memory.write(b"\xff" * 64)
