"""What a damaged object and a lost node do to requests: they cost time, and nothing else.

Runs on the warm engine of each model class, which is never touched: what fails here is the node.
"""

from __future__ import annotations

import signal
import time
from itertools import count

from conftest import TOKENS, ModelClass
from harness import OURS, prompt, wait_until
from memory import Snapshot

REQUESTS = 24
"""More than the engine runs at once: some are looked up after the node is gone."""

FAILURES = ("integrity_failures", "loads_failed_corrupt")


def saved(served: ModelClass, prompts: list[list[int]]) -> list[list[int]]:
    """The answers to prompts that are computed and saved, and that the engine forgets."""
    answers = served.engine.generate(prompts, max_tokens=TOKENS).tokens
    served.engine.settle()
    served.engine.reset()
    return answers


def wait_for_hits(served: ModelClass, what: str) -> None:
    """Until a new prompt that was saved is hit: the engine has found its node again."""
    numbers = count()

    def hits() -> bool:
        tokens = prompt(served.prompts.chunk + 9, f"{what} {next(numbers)}")
        saved(served, [tokens])
        hit = served.engine.generate([tokens], max_tokens=1).external
        served.engine.reset()
        return hit == served.prompts.chunk

    wait_until(hits, f"{served.name}: hits after {what}")


def group(served: ModelClass, what: str) -> list[list[int]]:
    chunk = served.prompts.chunk
    lengths = [chunk + chunk // 3 + index for index in range(REQUESTS)]
    return [prompt(length, f"{what} {index}") for index, length in enumerate(lengths)]


def test_flipped_bit_in_the_arena_is_a_counted_miss_and_tokens_stay(served: ModelClass) -> None:
    engine, node = served.engine, served.node
    tokens = prompt(served.prompts.chunk * 3 // 2, "flipped bit")
    arena = Snapshot(node.pid)
    clean = saved(served, [tokens])
    arena.flip_one_bit_of_the_new()
    before = engine.counters()
    answers = saved(served, [tokens])
    after = engine.counters()
    grown = {name: after[OURS + name] - before.get(OURS + name, 0) for name in FAILURES}
    assert answers == clean
    assert grown == {"integrity_failures": 1, "loads_failed_corrupt": 1}
    # It was computed again and saved again: the next one hits clean bytes.
    again = engine.generate([tokens], max_tokens=TOKENS)
    engine.reset()
    assert again.external == served.prompts.chunk
    assert again.tokens == clean


def test_bytes_of_a_failed_load_spoil_no_block_that_is_used_again(served: ModelClass) -> None:
    engine, chunk = served.engine, served.prompts.chunk
    arena = Snapshot(served.node.pid)
    prefix = prompt(2 * chunk, "spoiled")
    asked = [prefix + prompt(chunk // 2 + index, f"spoiled {index}") for index in range(4)]
    clean = saved(served, asked)
    arena.spoil_the_new()
    # Together: those that find what the first computed give their own blocks back as they are.
    run = engine.generate(asked, max_tokens=TOKENS)
    assert run.counted("integrity_failures") > 0
    assert run.tokens == clean
    # Blocks that failed loads had are the next ones to be given out.
    strangers = [prompt(chunk + 3 * index, f"after spoiled {index}") for index in range(4)]
    after = engine.generate(strangers, max_tokens=TOKENS).tokens
    engine.settle()
    engine.reset()
    assert engine.generate(strangers, max_tokens=TOKENS).tokens == after
    engine.settle()
    engine.reset()


def test_node_killed_in_mid_run_fails_no_request_and_hits_return(served: ModelClass) -> None:
    engine, node = served.engine, served.node
    prompts = group(served, "killed")
    clean = saved(served, prompts)
    try:
        run = engine.generate(prompts, max_tokens=TOKENS, hold=(REQUESTS, node.kill))
        engine.reset()
        without = engine.generate(prompts, max_tokens=TOKENS)
        engine.reset()
    finally:
        node.restart()
    assert run.external > 0
    assert without.external == 0
    for answers in (run, without):
        assert answers.tokens == clean
        assert {result.finish_reason for result in answers.results} == {"length"}
    wait_for_hits(served, "the restart")
    assert saved(served, prompts) == clean
    after = engine.generate(prompts, max_tokens=TOKENS)
    engine.reset()
    assert after.tokens == clean
    assert after.external == REQUESTS * served.prompts.chunk


def test_node_that_stands_still_delays_by_the_deadline_only(served: ModelClass) -> None:
    engine, node = served.engine, served.node
    prompts = group(served, "stopped")
    clean = saved(served, prompts)
    begun = time.monotonic()
    engine.generate(prompts, max_tokens=TOKENS)
    usual_s = time.monotonic() - begun
    engine.reset()
    node.child.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        run = engine.generate(prompts, max_tokens=TOKENS)
        took_s = time.monotonic() - begun
        engine.reset()
    finally:
        node.child.send_signal(signal.SIGCONT)
    assert run.tokens == clean
    assert {result.finish_reason for result in run.results} == {"length"}
    # One lookup deadline until the circuit opens, and the prompts are computed instead of loaded.
    assert took_s < 10 * usual_s + 10
    wait_for_hits(served, "the pause")
