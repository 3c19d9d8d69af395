"""What must never be shared: salts and models keep their objects apart on one node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import TOKENS, ModelClass
from harness import Engine, Run, connector, prompt


def test_salted_request_never_hits_another_salt_or_none(served: ModelClass) -> None:
    engine, chunk = served.engine, served.prompts.chunk
    tokens = prompt(chunk + 5, "salted")

    def ask(salt: str | None) -> Run:
        run = engine.generate([tokens], max_tokens=TOKENS, salts=[salt])
        engine.settle()
        engine.reset()
        return run

    first = {salt: ask(salt) for salt in (None, "a", "b")}
    again = {salt: ask(salt) for salt in ("b", None, "a")}
    assert {salt: run.external for salt, run in first.items()} == {None: 0, "a": 0, "b": 0}
    assert {salt: run.external for salt, run in again.items()} == dict.fromkeys(again, chunk)
    answers = [run.tokens for run in (*first.values(), *again.values())]
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("served", ["llama"], indirect=True)
def test_models_of_one_shape_never_share_an_object(
    served: ModelClass, launch: Callable[..., Engine]
) -> None:
    """The twin differs in its weights only, so nothing but the model's identity can save it."""
    prompts = [prompt(3 * served.prompts.chunk + 1, f"twin {index}") for index in range(3)]
    ours = served.engine.each(prompts, max_tokens=TOKENS)
    served.engine.settle()
    served.engine.reset()
    with launch("llama_twin", "twin", connector(served.node.address)) as engine:
        twins = engine.each(prompts, max_tokens=TOKENS)
        engine.settle()
        engine.reset()
        again = engine.each(prompts, max_tokens=TOKENS)
    hits = served.engine.each(prompts, max_tokens=TOKENS)
    served.engine.reset()
    full = [served.prompts.hit(tokens) for tokens in prompts]
    assert [run.external for run in twins] == [0, 0, 0]
    assert [run.external for run in again] == [run.external for run in hits] == full
    assert [run.tokens for run in again] == [run.tokens for run in twins]
    assert [run.tokens for run in hits] == [run.tokens for run in ours]
    assert all(a.tokens != b.tokens for a, b in zip(ours, twins, strict=True))
