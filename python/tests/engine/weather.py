"""A proxy between two engines through which nothing goes as it should.

Every connection meets a fate of its own, dealt by the seed: it is let through, slowed, cut, damaged
or held without a word for longer than anybody waits.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from enum import Enum

PIECE = 1 << 16
HELD_S = 4.0
"""Longer than the engines wait for each other."""


class Fate(Enum):
    """What becomes of a connection."""

    CALM = "calm"
    SLOW = "slow"
    CUT = "cut"
    DAMAGED = "damaged"
    HELD = "held"


class Weather:
    """Listens in the place of `upstream`. Calm until `turn` says otherwise."""

    def __init__(self, upstream: str, seed: str) -> None:
        host, port = upstream.rsplit(":", 1)
        self.upstream = host, int(port)
        self.random = random.Random(seed)
        self.fates: tuple[Fate, ...] = (Fate.CALM,)
        self.decks: dict[tuple[Fate, ...], list[Fate]] = {}
        self.met: Counter[Fate] = Counter()
        self.open: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def turn(self, *fates: Fate) -> None:
        """From now on connections meet these fates, and those that stand are ended."""
        with self.lock:
            self.fates = fates
            for end in self.open:
                shut(end)

    def close(self) -> None:
        self.listener.close()
        self.turn(Fate.CALM)

    def accept(self) -> None:
        while True:
            try:
                ours, _ = self.listener.accept()
                theirs = socket.create_connection(self.upstream)
            except OSError:
                return
            with self.lock:
                deck = self.decks.setdefault(self.fates, [])
                deck += self.random.sample(self.fates, len(self.fates)) if not deck else []
                fate = deck.pop()
                last = self.random.randrange(1 << 12, 1 << 20)
                self.met[fate] += 1
                self.open |= {ours, theirs}
            both = [ours, theirs]
            for ends, way in (
                (both, Fate.SLOW if fate is Fate.SLOW else Fate.CALM),
                (both[::-1], fate),
            ):
                threading.Thread(target=self.pump, args=(*ends, way, last), daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, fate: Fate, last: int) -> None:
        """Passes bytes on until the connection ends or meets its fate behind `last` bytes."""
        passed = 0
        try:
            while data := source.recv(PIECE):
                passed += len(data)
                if fate is Fate.SLOW:
                    time.sleep(0.002)
                elif passed > last and fate is not Fate.CALM:
                    if fate is Fate.CUT:
                        break
                    if fate is Fate.HELD:
                        time.sleep(HELD_S)
                        break
                    if len(data) > 1 << 12:
                        # Far behind the head of a frame: most likely a byte of a block.
                        data = data[:-100] + bytes([data[-100] ^ 0x40]) + data[-99:]
                        last = passed + PIECE * 4
                sink.sendall(data)
        except OSError:
            pass
        shut(source)
        shut(sink)
        with self.lock:
            self.open -= {source, sink}


def shut(end: socket.socket) -> None:
    """Ends both ways of a connection, also for whoever waits on it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
