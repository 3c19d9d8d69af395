"""Two ranks: a hit is a hit on both, and every rank loads its own half."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Prompts
from harness import Engine, Node, connector, prompt

RANKS = {"tensor_parallel_size": 2}


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_two_ranks_answer_warm_as_cold(
    name: str, launch: Callable[..., Engine], node: Node
) -> None:
    use = connector(node.address)
    with launch(name, f"{name}-ranks-cold", use, RANKS) as engine:
        prompts = Prompts(engine.start().block_tokens)
        asked = [prompt(2 * prompts.chunk + 11 * index, f"ranks {index}") for index in range(1, 4)]
        cold = engine.generate(asked)
        saved = engine.settle()["vllm:tessera_saves_stored"]
    with launch(name, f"{name}-ranks-warm", use, RANKS) as engine:
        warm = engine.generate(asked)
    assert cold.external == 0
    assert saved > 0
    assert warm.external == sum(prompts.hit(tokens) for tokens in asked)
    assert warm.tokens == cold.tokens
