"""Two engines of one model between which prompts go, and what one of them answers alone.

Used by the tests of handovers, whoever moves the bytes.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import TOKENS, Prompts
from harness import Engine, prompt, wait_until


@dataclass
class Engines:
    """A prefill and a decode engine, and the key that they share."""

    prefill: Engine
    decode: Engine
    prompts: Prompts
    key: Path
    numbers: Iterator[int]
    apart: Callable[[], Engine]
    """Starts another decode engine, which has not met prefill."""

    @property
    def recurrent(self) -> bool:
        return "qwen3_next" in self.prefill.name

    def new_prompt(self, chunks: int = 2, more: int = 9) -> list[int]:
        number = next(self.numbers)
        tokens = prompt(chunks * self.prompts.chunk + more, f"{self.prefill.name} {number}")
        if self.recurrent:
            tokens[-1:] = self.computed(tokens[:-1], 1)
        return tokens

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine answers by itself that has computed the last token as decode does."""
        if not self.recurrent:
            return self.computed(tokens)
        last, *answer = self.computed(tokens[:-1], 1 + TOKENS)
        assert last == tokens[-1]
        return answer

    def computed(self, tokens: list[int], count: int = TOKENS) -> list[int]:
        """What one engine answers that computes the whole prompt by itself."""
        answer = self.prefill.generate([tokens], count).tokens[0]
        self.prefill.reset()
        return answer

    def forget(self) -> None:
        """All blocks of both engines are free, and nothing is open between them."""
        self.decode.step()
        for engine in (self.prefill, self.decode):
            wait_until(engine.is_rested, f"blocks of {engine.name} to come back")


class Damage:
    """A proxy before one address that changes one byte of a block on its way there, or back."""

    def __init__(self, upstream: str, back: bool) -> None:
        host, port = upstream.rsplit(":", 1)
        self.upstream = host, int(port)
        self.back = back
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.damaged = threading.Event()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                ours, _ = self.listener.accept()
                theirs = socket.create_connection(self.upstream)
            except OSError:
                return
            ways = ((ours, theirs, not self.back), (theirs, ours, self.back))
            for way in ways:
                threading.Thread(target=self.pump, args=way, daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket, damage: bool) -> None:
        while data := source.recv(1 << 16):
            if damage and len(data) > 1 << 12 and not self.damaged.is_set():
                # Far behind the head of the frame: a byte of a block.
                data = data[:-100] + bytes([data[-100] ^ 0x40]) + data[-99:]
                self.damaged.set()
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
