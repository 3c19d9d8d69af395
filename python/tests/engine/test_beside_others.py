"""As one of two connectors of an engine, in both orders: vLLM's own example is the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Node, connector, prompt


def both(ours: dict[str, Any], folder: Path, first: str) -> dict[str, Any]:
    """The configuration of an engine with both; the one that is `first` is asked first."""
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    connectors = [ours, example] if first == "ours" else [example, ours]
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": connectors},
        # The example fails loads by block; ours is told so by the engine's own policy.
        "kv_load_failure_policy": "recompute",
    }


@pytest.mark.parametrize("first", ["ours", "example"])
def test_either_of_two_connectors_serves_what_both_saved(
    first: str, launch: Callable[..., Engine], node: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "example"
    use = both(connector(node.address), folder, first)
    with launch("llama", f"beside-{first}-cold", use) as engine:
        prompts = Prompts(engine.start().block_tokens)
        asked = [
            prompt(3 * prompts.chunk + 5 * index, f"beside {first} {index}")
            for index in range(1, 4)
        ]
        cold = engine.generate(asked, max_tokens=TOKENS)
        assert cold.external == 0
        engine.settle()
    assert list(folder.iterdir()), "the other connector has saved too"
    hits = sum(prompts.hit(tokens) for tokens in asked)
    with launch("llama", f"beside-{first}-warm", use) as engine:
        warm = engine.generate(asked, max_tokens=TOKENS)
        assert warm.external == hits
        assert warm.tokens == cold.tokens
        engine.reset()
        # Without the other's files, ours serves in either order.
        shutil.rmtree(folder)
        folder.mkdir()
        alone = engine.generate(asked, max_tokens=TOKENS)
        assert alone.external == hits
        assert alone.tokens == cold.tokens
