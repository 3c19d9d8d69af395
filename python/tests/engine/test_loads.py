"""What becomes of a load on two ranks, whatever happens to it, and of the requests beside it.

Every way to load (beside the model, on its thread) and to answer a failure (compute instead, fail
the request) on a model with windows and one with recurrent state; faults happen to single requests
in a proxy between the engine and the node. One engine serves all tests of a combination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path

import pytest
from conftest import Prompts
from harness import OURS, Engine, Faults, Node, connector, wait_until
from loads import LOAD_MS, Loads

RANKS = {"tensor_parallel_size": 2}
MODELS = ("gemma3", "qwen3_next")
COMBINATIONS = list(product(MODELS, ("async", "serial"), ("recompute", "engine")))


@pytest.fixture(scope="module", params=COMBINATIONS, ids="-".join)
def loads(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    binary: Path,
    logs: Path,
    node: Node,
) -> Iterator[Loads]:
    model, io, on_failure = request.param
    name = "-".join(("loads", *request.param))
    options = {"io": io, "on_load_failure": on_failure, "load_timeout_ms": LOAD_MS}
    with Faults(binary, logs / f"{name}-faults.log", node) as faults:
        use = connector(faults.address, **options)
        with launch(model, name, use, RANKS) as engine:
            prompts = Prompts(engine.start().block_tokens)
            yield Loads(engine, faults, prompts, io, on_failure == "recompute", count())


def test_load_gives_the_tokens_that_were_computed(loads: Loads) -> None:
    loads.check_hit(*loads.saved())


@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_load_that_fails_on_one_rank_has_one_outcome(loads: Loads, fault: str) -> None:
    (tokens, answer), other = loads.saved(), loads.saved()
    loads.faults.order(fault)
    run = loads.engine.generate([tokens])
    loads.faults.expect(fault)
    loads.check_failed(run.results[0], answer)
    assert run.counted("loads_failed_on_any_rank") == 1
    loads.forget()
    loads.check_hit(*other)
    # What was lost is saved again by whoever computes it.
    assert loads.engine.generate([tokens]).tokens == [answer]
    loads.forget()
    loads.check_hit(tokens, answer)


def test_rank_that_is_late_delays_its_request_only(loads: Loads) -> None:
    tokens, answer = loads.saved()
    stranger = loads.new_prompt()
    engine, faults = loads.engine, loads.faults
    faults.order("stall")
    late = engine.add([tokens])
    if loads.io == "async":
        run = engine.finish(engine.add([stranger]), lambda: faults.expect("stall"))
        assert run.results[0].finish_reason == "length"
        assert late[0] not in engine.step(), "it cannot have been finished without its object"
        faults.release()
        run = engine.finish(late)
    else:
        # The model's own thread waits, so nothing else runs: it must go on by itself.
        run = engine.finish(late, lambda: (faults.expect("stall"), faults.release()))
    assert run.tokens == [answer]
    assert run.counted("loads_failed_on_any_rank") == 0
    loads.forget()


def test_load_that_hangs_ends_at_its_deadline(loads: Loads) -> None:
    (tokens, answer), other = loads.saved(), loads.saved()
    loads.faults.order("stall")
    run = loads.engine.generate([tokens])
    loads.faults.expect("stall")
    loads.check_failed(run.results[0], answer)
    loads.forget()
    loads.check_hit(*other)
    loads.faults.release()
    # The late answer finds nobody; whoever loads the same afterwards is not disturbed by it.
    assert loads.engine.generate([tokens]).tokens == [answer]
    loads.forget()
    loads.check_hit(tokens, answer)


def test_request_that_is_given_up_while_it_loads_leaves_nothing_behind(loads: Loads) -> None:
    (tokens, answer), other = loads.saved(), loads.saved()
    engine, faults = loads.engine, loads.faults
    if loads.io == "async":
        faults.order("stall")
        given_up = engine.add([tokens])
        wait_until(lambda: bool(engine.step() or not faults.lines.empty()), "the load to hang")
        faults.expect("stall")
        engine.abort(given_up)
        assert engine.generate([loads.new_prompt()]).results[0].finish_reason == "length"
        faults.release()
    else:
        # Once it is on the model's thread a load cannot be given up: before that it can.
        engine.abort(engine.add([tokens]))
    # An engine refuses to forget while a block is in use.
    wait_until(lambda: engine.settle() is not None and engine.try_reset(), "all blocks to be free")
    loads.check_hit(*other)
    loads.check_hit(tokens, answer)
    assert engine.counters()[OURS + "staging_bytes_used"] == 0
