"""Latent attention on the CPU engine: saved, and never claimed as a hit.

The engine turns chunked prefill off for it, so it cannot compute the rest of a prompt whose
beginning was loaded. Loads of this layout are certified by bytes, not here.
"""

from __future__ import annotations

from collections.abc import Callable

from harness import Engine, Node, connector, prompt


def test_latent_attention_is_saved_and_no_hit_is_claimed(
    launch: Callable[..., Engine], node: Node
) -> None:
    prompts = [prompt(500 + index, f"latent {index}") for index in range(3)]
    with launch("deepseek_v3", "latent-off") as engine:
        off = engine.each(prompts)
    with launch("deepseek_v3", "latent-cold", connector(node.address)) as engine:
        assert not engine.start().loads
        cold = engine.each(prompts)
        saved = engine.settle()["vllm:tessera_bytes_saved"]
        warm = engine.each(prompts)
        counters = engine.counters()
        assert "no hit is claimed" in engine.tail()
    assert saved > 0
    assert counters["vllm:tessera_bytes_loaded"] == 0
    assert [run.external for run in warm] == [0, 0, 0]
    assert [run.tokens for run in cold] == [run.tokens for run in off]
    assert [run.tokens for run in warm] == [run.tokens for run in off]
