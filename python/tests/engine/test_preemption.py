"""A pool of blocks that is too small for what runs: requests preempt each other beside the cache.

At the moment of the preemption a load of one request and a save of another are under way, because a
proxy keeps a GET and a PUT. Whatever is then thrown away, computed or loaded again, the tokens are
those of an engine that finds nothing cached, and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Prompts
from harness import OURS, Engine, Faults, Node, connector, prompt, wait_until

POOLS = {"llama": 12, "gemma3": 52}
"""Blocks that hold the request that loads and two others, until those reach their fifth block."""

RUNNING = "vllm:num_requests_running"
PREEMPTIONS = "vllm:num_preemptions"
"""Counted when the preempted one has its next token."""

PROMPT_TOKENS = "vllm:prompt_tokens"
TOKENS = 200
"""Enough for a fifth block to be filled and saved after the preemption."""

RUNWAY = 60
"""Tokens before the end of the fourth block, in which the saves of the prefill end."""

MINUTE_MS = 60_000


def small(name: str) -> dict[str, int]:
    return {"num_gpu_blocks_override": POOLS[name], "max_model_len": 768}


@dataclass
class Reference:
    """An engine that saves nothing, so that it computes what nobody else has saved."""

    name: str
    engine: Engine
    prompts: Prompts

    def asked(self, what: str) -> list[list[int]]:
        """A short prompt, and two that take a fifth block each while they are answered."""
        chunk = self.prompts.chunk
        lengths = (2 * chunk + 9, 4 * chunk - RUNWAY, 4 * chunk - RUNWAY)
        name = f"{self.name} preempt {what}"
        return [prompt(length, f"{name} {index}") for index, length in enumerate(lengths)]

    def check(self, reader: Engine, further: list[list[int]], answers: list[list[int]]) -> None:
        """Prompts that continue what was computed are in the node whole, and right."""
        again = reader.each(further)
        assert [run.external for run in again] == [self.prompts.hit(tokens) for tokens in further]
        assert [run.tokens[0] for run in again] == answers
        reader.settle()
        reader.reset()


@pytest.fixture(scope="module", params=POOLS)
def reference(
    request: pytest.FixtureRequest, launch: Callable[..., Engine], node: Node
) -> Iterator[Reference]:
    name = request.param
    use = connector(node.address, save=False)
    with launch(name, f"{name}-preempt-reference", use, small(name)) as engine:
        yield Reference(name, engine, Prompts(engine.start().block_tokens))


def answers(engine: Engine, prompts: list[list[int]], tokens: int = 16) -> list[list[int]]:
    """What an engine that finds nothing cached answers to each."""
    runs = engine.each(prompts, max_tokens=tokens)
    assert sum(run.external for run in runs) == 0
    engine.reset()
    return [run.tokens[0] for run in runs]


def test_requests_that_preempt_each_other_beside_a_load_and_a_save_keep_their_tokens(
    reference: Reference, launch: Callable[..., Engine], binary: Path, logs: Path, node: Node
) -> None:
    name, asked = reference.name, reference.asked("loads")
    (loaded, *running), chunk = asked, reference.prompts.chunk
    off = answers(reference.engine, asked, TOKENS)
    further = [tokens + answer for tokens, answer in zip(asked, off, strict=True)]
    off_further = answers(reference.engine, further)
    patience = {"load_timeout_ms": MINUTE_MS, "save_timeout_ms": MINUTE_MS, "lease_ms": MINUTE_MS}
    with Faults(binary, logs / f"{name}-preempt-faults.log", node) as faults:
        use = connector(faults.address, **patience)
        with launch(name, f"{name}-preempt", use, small(name)) as engine:
            engine.generate([loaded], max_tokens=1)
            engine.settle()
            engine.reset()
            faults.order("stall")
            names = engine.add([loaded], max_tokens=TOKENS)
            wait_until(lambda: bool(engine.step() or not faults.lines.empty()), "the load")
            faults.expect("stall")
            computed = engine.counters()[PROMPT_TOKENS] + sum(map(len, running))
            names += engine.add(running, max_tokens=TOKENS)
            keep_a_save_at_the_fifth_block(engine, faults, computed)
            assert engine.counters()[OURS + "staging_bytes_used"] > 0, "a save is under way"
            faults.release(2)
            run = engine.finish(names)
            assert run.tokens == off
            assert run.counters[PREEMPTIONS] >= 1
            assert {result.finish_reason for result in run.results} == {"length"}
            assert run.counted("loads_failed_on_any_rank") == 0
            assert run.external >= 2 * chunk, "what was kept in the proxy was loaded"
            engine.settle()
            engine.reset()
            # All that was computed is saved, and what was saved is right: also of a request whose
            # blocks changed in between.
            reference.check(engine, further, off_further)
            wait_until(lambda: node.stat()["stat"]["leases"] == 0, "all leases to end")


def test_request_that_computes_again_after_its_preemption_saves_from_its_new_blocks(
    reference: Reference, launch: Callable[..., Engine], node: Node
) -> None:
    """Nothing is loaded when it is resumed, so only the engine's word says that its blocks went."""
    name, asked = reference.name, reference.asked("computes")
    off = answers(reference.engine, asked, TOKENS)
    further = [tokens + answer for tokens, answer in zip(asked, off, strict=True)]
    off_further = answers(reference.engine, further)
    use = connector(node.address, load=False)
    with launch(name, f"{name}-preempt-computes", use, small(name)) as engine:
        run = engine.generate(asked, max_tokens=TOKENS)
        assert run.tokens == off
        assert run.counters[PREEMPTIONS] >= 1
        engine.settle()
    reference.check(reference.engine, further, off_further)


def keep_a_save_at_the_fifth_block(engine: Engine, faults: Faults, computed: float) -> None:
    """Steps until one of two requests was preempted while the proxy has a save of theirs.

    What the prefill of their `computed` tokens completes is saved first; the next to be saved is
    the block before the fifth.
    """

    def prefilled() -> bool:
        assert not engine.step()
        counters = engine.counters()
        return counters[PROMPT_TOKENS] >= computed and counters[OURS + "staging_bytes_used"] == 0

    wait_until(prefilled, "the prefill and its saves")
    assert engine.counters()[RUNNING] == 2, "they all fit until now"
    faults.order("keep")

    def preempted() -> bool:
        assert not engine.step(), "nothing can be finished yet"
        return engine.counters()[RUNNING] == 1

    wait_until(preempted, "a preemption")
    faults.expect("keep")
