"""What a failed load does to the requests that begin like its own: nothing.

An engine lends the blocks of a request that runs to every other that begins alike, and trusts the
first of them to compute what could not be loaded. Here the first is given up before it does: no
block may have been lent by then that was not loaded and verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Faults, Node, connector, prompt, wait_until


@dataclass
class Family:
    """An engine with one full-attention group, and the proxy before its node."""

    engine: Engine
    faults: Faults
    prompts: Prompts
    _numbers: Iterator[int]

    def saved(self) -> tuple[list[list[int]], list[list[int]]]:
        """Three prompts that begin alike and that only the node still knows, and their answers."""
        name, chunk = f"{self.engine.name} {next(self._numbers)}", self.prompts.chunk
        begin = prompt(2 * chunk, name)
        prompts = [begin + prompt(chunk + 9, f"{name} tail {index}") for index in range(3)]
        answers = self.engine.generate(prompts, max_tokens=TOKENS).tokens
        self.forget()
        return prompts, answers

    def forget(self) -> None:
        """Empties the engine's own cache, so that every hit is the node's."""
        self.engine.settle()
        self.engine.reset()


@pytest.fixture(scope="module", params=["async", "serial"])
def family(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    binary: Path,
    logs: Path,
    node: Node,
) -> Iterator[Family]:
    name = f"family-{request.param}"
    with Faults(binary, logs / f"{name}-faults.log", node) as faults:
        use = connector(faults.address, io=request.param)
        with launch("llama", name, use) as engine:
            yield Family(engine, faults, Prompts(engine.start().block_tokens), count())


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_failed_load_of_a_request_that_is_given_up_spoils_no_shared_prefix(
    family: Family, fault: str, later: int
) -> None:
    engine, faults = family.engine, family.faults
    (first, second, third), answers = family.saved()
    failed = "vllm:tessera_loads_failed_on_any_rank"
    before = engine.counters().get(failed, 0)
    faults.order(fault)
    given_up, kept = engine.add([first, second], max_tokens=TOKENS)
    wait_until(lambda: bool(engine.step() or not faults.lines.empty()), "the load to fail")
    faults.expect(fault)
    # An engine may look at the end of a step some steps later.
    for _ in range(later):
        engine.step()
    engine.abort([given_up])
    assert engine.finish([kept]).tokens == [answers[1]]
    # From what the engine has cached by now.
    assert engine.generate([third], max_tokens=TOKENS).tokens == [answers[2]]
    family.forget()
    assert engine.counters()[failed] > before
    again = engine.generate([first, second, third], max_tokens=TOKENS)
    assert again.tokens == answers
    family.forget()
