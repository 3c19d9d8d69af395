"""Both native sides against a real node: what one engine saves, another loads, bit by bit."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from conftest import as_json, caches_config, document, group

from tessera_kv import _native
from tessera_kv.command import BINARY
from tessera_kv.vllm import layout

BLOCK = 4
LIMIT_S = 30.0
HASHES = [bytes([index]) * 32 for index in range(8)]


class Engine:
    """One engine of two layers in each group: both native sides, and memory of its own."""

    def __init__(self, node: str, kinds: list[Any], num_blocks: int, **options: Any) -> None:
        text = as_json(
            document([group(kind, BLOCK) for kind in kinds], BLOCK, nodes=[node], **options)
        )
        self.num_blocks = num_blocks
        self.groups = {f"group{index}": [f"{index}.a", f"{index}.b"] for index in range(len(kinds))}
        names = [name for layers in self.groups.values() for name in layers]
        self.caches = {name: torch.zeros(num_blocks, 2, BLOCK, 8) for name in names}
        described = layout.layers(self.caches, caches_config(self.groups, num_blocks))
        memory = list(self.caches.values())
        self.worker = _native.Worker(text, as_json(described), num_blocks, memory, str(BINARY))
        self.scheduler = _native.Scheduler(text, str(BINARY))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()

    def step(self, new: list[Any]) -> bytes | None:
        """The plan of a step in which no request runs on."""
        return self.scheduler.step(new, ([], [], [], [], set()), {}, [], [])

    def compute(self, request: str, tables: list[list[int]], tokens: int) -> None:
        """One step that computes a whole prompt, and the save of its chunks."""
        self.run(self.step([(request, 0, tokens, tables, HASHES[: tokens // BLOCK])]))
        self.settle()

    def run(self, plan: bytes | None) -> None:
        """One step of the worker in which it has something to do."""
        assert plan is not None
        self.worker.preempt(plan)
        self.worker.begin_step(plan)
        self.worker.end_step()

    def settle(self) -> None:
        """Wait until every save has ended."""
        ended = ("saves_stored", "saves_existed", "saves_refused", "saves_skipped")
        wait_for(
            lambda: (found := self.worker.metrics())["saves"] == sum(found[name] for name in ended)
        )

    def lookup(self, request: str, tokens: int) -> tuple[int | None, bool]:
        """Ask until it is decided."""
        hashes = HASHES[: tokens // BLOCK]
        answers: list[tuple[int | None, bool]] = []

        def decided() -> bool:
            answers.append(self.scheduler.lookup(request, tokens, 0, hashes, True))
            return answers[-1][0] is not None

        wait_for(decided)
        return answers[-1]

    def load(self, request: str, tables: list[list[int]], tokens: int) -> tuple[set[str], set[str]]:
        """Load what a lookup has promised; requests that ended, and those that failed."""
        self.scheduler.allocated(request, tables, tokens)
        self.run(self.step([]))
        ended: set[str] = set()
        failed: set[str] = set()

        def over() -> bool:
            (_, received, failures), _ = self.worker.poll()
            ended.update(received)
            failed.update(failures)
            return request in ended

        wait_for(over)
        self.scheduler.worker_output(list(ended), list(failed), [])
        return ended, failed


def wait_for(condition: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def randomize(engine: Engine) -> None:
    generator = torch.Generator().manual_seed(7)
    for cache in engine.caches.values():
        cache.copy_(torch.rand(cache.shape, generator=generator))


def pairs(here: list[int], there: list[int]) -> list[tuple[int, int]]:
    """Blocks that must be equal: null blocks are nobody's."""
    return [(one, other) for one, other in zip(here, there, strict=True) if one and other]


@pytest.mark.parametrize(
    ("kinds", "saved", "loaded"),
    [
        (["full"], [[5, 1, 4]], [[2, 9, 3]]),
        (["full"], [[1, 2, 3]], [[1, 2, 3]]),
        (
            ["full", {"window": {"tokens": 5}}, "state"],
            [[1, 2, 3], [4, 5, 6], [0, 0, 7]],
            [[8, 9, 10], [0, 0, 11], [0, 0, 12]],
        ),
        (
            [{"window": {"tokens": 6}}, "full"],
            [[1, 2, 3], [4, 5, 6]],
            [[0, 7, 1], [2, 3, 4]],
        ),
    ],
    ids=["fragmented", "in order", "three kinds", "window across a boundary"],
)
def test_saved_blocks_load_into_other_blocks_of_another_engine(
    node: str, kinds: list[Any], saved: list[list[int]], loaded: list[list[int]]
) -> None:
    tokens = 3 * BLOCK
    with Engine(node, kinds, 9) as first:
        randomize(first)
        first.compute("a", saved, tokens)
        with Engine(node, kinds, 14) as second:
            assert second.lookup("b", tokens + 1) == (tokens, True)
            assert second.load("b", loaded, tokens) == ({"b"}, set())
            for index, layers in enumerate(first.groups.values()):
                for name in layers:
                    for here, there in pairs(saved[index], loaded[index]):
                        assert torch.equal(first.caches[name][here], second.caches[name][there])
            assert not second.caches["0.a"][0].any(), "the null block was written"


def test_prompts_are_cut_to_whole_chunks_and_keep_a_tail(node: str) -> None:
    with Engine(node, ["full"], 9) as engine:
        engine.compute("a", [[1, 2, 3]], 3 * BLOCK)
        hits = {tokens: engine.lookup(f"r{tokens}", tokens)[0] for tokens in (3, 4, 5, 8, 12, 13)}
    assert hits == {3: 0, 4: 0, 5: 4, 8: 4, 12: 8, 13: 12}


def test_another_identity_finds_nothing(node: str) -> None:
    with Engine(node, ["full"], 9) as engine:
        engine.compute("a", [[1, 2, 3]], 3 * BLOCK)
    with Engine(node, ["full"], 9, tenant="other") as stranger:
        assert stranger.lookup("b", 3 * BLOCK + 1) == (0, False)
    with Engine(node, ["full"], 9) as friend:
        assert friend.lookup("b", 3 * BLOCK + 1) == (3 * BLOCK, True)


def test_request_that_may_not_read_is_told_nothing(node: str) -> None:
    with Engine(node, ["full"], 9) as engine:
        engine.compute("a", [[1, 2]], 2 * BLOCK)
        assert engine.scheduler.lookup("b", 9, 0, HASHES[:2], False) == (0, False)


def test_changes_are_what_the_values_have_risen_by(node: str) -> None:
    with Engine(node, ["full"], 9) as engine:
        engine.compute("a", [[1, 2]], 2 * BLOCK)
        changed = engine.worker.changes()
        assert changed == {name: now for name, now in engine.worker.metrics().items() if now}
        assert engine.worker.changes() is None
        assert engine.scheduler.changes() is not None
        engine.compute("b", [[3, 4]], 2 * BLOCK)
        changed = engine.worker.changes()
        assert changed is not None
        assert changed["saves"] == 2
        assert "saves_stored" not in changed, "they existed"


def test_request_that_runs_on_saves_what_it_completes(node: str) -> None:
    with Engine(node, ["full"], 9) as engine:
        randomize(engine)
        engine.compute("a", [[5, 3]], 2 * BLOCK - 1)
        grown = {"a": (1, HASHES[1:2])}
        known = (["a"], [None], [2 * BLOCK - 1], [2], set())
        engine.run(engine.scheduler.step([], known, grown, [], []))
        engine.settle()
        assert engine.worker.metrics()["saves"] == 2
        assert engine.step([]) is None, "the workers have nothing to do"
        wait_for(lambda: engine.worker.poll() == (([], [], []), True))
        with pytest.raises(ValueError, match="columns"):
            engine.scheduler.step([], (["a"], [], [1], [1], set()), {}, [], [])


def test_hooks_after_shutdown_raise(node: str) -> None:
    engine = Engine(node, ["full"], 9)
    engine.scheduler.shutdown()
    engine.worker.shutdown()
    engine.scheduler.shutdown()
    engine.worker.shutdown()
    with pytest.raises(_native.ClosedError, match="shut down"):
        engine.step([])
    with pytest.raises(_native.ClosedError, match="shut down"):
        engine.worker.poll()
    assert engine.worker.uncollected() == ([], [], [])
    assert engine.worker.metrics()["loads"] == 0, "metrics can be read to the end"


def test_engine_without_a_node_misses_and_goes_on() -> None:
    with Engine("127.0.0.1:9", ["full"], 9) as engine:
        assert engine.lookup("a", 9) == (0, False)
        engine.compute("a", [[1, 2]], 2 * BLOCK)


def test_malformed_documents_and_plans_are_refused() -> None:
    with pytest.raises(_native.ConfigError, match="malformed"):
        _native.Scheduler('{"groups": []}', str(BINARY))
    text = as_json(document([group("full", 4)], 4, nodes=["127.0.0.1:9"], chunk_tokens=6))
    with pytest.raises(_native.ConfigError, match="use a multiple of 4"):
        _native.Scheduler(text, str(BINARY))
    with Engine("127.0.0.1:9", ["full"], 9) as engine, pytest.raises(_native.StepError):
        engine.worker.begin_step(b"no plan")
