"""Requests whose loads a test disturbs, and what must become of them and of those beside them.

Used by the tests of faults on the way to a node (`test_loads`) and of faults of the device under
the block memory (`test_devices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conftest import Prompts
from harness import Engine, Faults, Result, prompt

LOAD_MS = 4000
"""A deadline that a busy machine meets and that a test can wait for."""


@dataclass
class Loads:
    """An engine of two ranks, and the proxy before its node."""

    engine: Engine
    faults: Faults
    prompts: Prompts
    io: str
    recomputes: bool
    _numbers: Iterator[int]

    def new_prompt(self) -> list[int]:
        """A prompt of two chunks and a rest that nobody has seen."""
        number = next(self._numbers)
        return prompt(2 * self.prompts.chunk + 9, f"{self.engine.name} {number}")

    def saved(self) -> tuple[list[int], list[int]]:
        """A prompt that only the node still knows, and its answer when it was computed."""
        tokens = self.new_prompt()
        answer = self.engine.generate([tokens]).tokens[0]
        self.forget()
        return tokens, answer

    def forget(self) -> None:
        """Empties the engine's own cache, so that every hit is the node's."""
        self.engine.settle()
        self.engine.reset()

    def check_failed(self, result: Result, answer: list[int]) -> None:
        """A request whose load failed: computed instead, or ended with an error."""
        if self.recomputes:
            assert (result.tokens, result.finish_reason) == (answer, "length")
        else:
            assert (result.tokens, result.finish_reason) == ([], "error")

    def check_hit(self, tokens: list[int], answer: list[int]) -> None:
        """A saved prompt is loaded as if nothing had happened before."""
        run = self.engine.generate([tokens])
        assert run.external == self.prompts.hit(tokens)
        assert run.tokens == [answer]
        assert run.counted("loads_failed_on_any_rank") == 0
        self.forget()
