"""The same tokens whether the cache is off, filled or used, and a hit that is exact to the chunk.

Each model class is served by three processes (`conftest.served`). The control shows that equality
means something: where one stored block is damaged under a right checksum, other tokens come out.
"""

from __future__ import annotations

from conftest import ModelClass
from harness import OURS, prompt


def test_tokens_are_the_same_with_the_cache_off_cold_and_warm(served: ModelClass) -> None:
    off = served.off.tokens()
    assert served.cold.tokens() == off
    assert served.warm.tokens() == off


def test_answers_are_varied(served: ModelClass) -> None:
    """Constant answers would be equal whatever was loaded."""
    answers = [tuple(answer) for answer in served.off.together.tokens]
    assert len(set(answers)) == len(answers)
    assert len({token for answer in answers for token in answer}) > 40


def test_damaging_one_stored_block_changes_the_tokens(served: ModelClass) -> None:
    off, cold, warm = (
        [run.tokens for run in part.controls] for part in (served.off, served.cold, served.warm)
    )
    assert cold == off
    assert all(run.external == served.prompts.chunk for run in served.warm.controls)
    changed = [clean != damaged for clean, damaged in zip(off, warm, strict=True)]
    assert sum(changed) > len(changed) // 2, changed


def test_second_process_hits_every_whole_chunk_before_the_last_token(served: ModelClass) -> None:
    hits = {name: run.external for name, run in served.warm.alone.items()}
    assert hits == {name: served.prompts.hit(p) for name, p in served.prompts.alone.items()}


def test_sixteen_requests_at_once_hit_as_far_as_each_alone(served: ModelClass) -> None:
    expected = [served.prompts.hit(tokens) for tokens in served.prompts.together]
    cached = [result.cached for result in served.warm.together.results]
    assert cached == expected
    assert served.warm.together.external == sum(expected)


def test_request_with_a_shared_prefix_hits_what_another_saved(served: ModelClass) -> None:
    hits = {name: run.external for name, run in served.cold.alone.items()}
    second = hits.pop("second of a prefix")
    assert second == 2 * served.prompts.chunk
    assert set(hits.values()) == {0}


def test_loads_are_counted_in_bytes_and_tokens(served: ModelClass) -> None:
    run = served.warm.alone["several"]
    assert run.counted("hit_tokens") == run.external
    assert run.counted("bytes_loaded") > 0
    assert run.counted("loads_failed_on_any_rank") == 0


def test_chunk_that_is_computed_again_is_not_sent_again(served: ModelClass) -> None:
    """The last token is never loaded, so a prompt of whole chunks computes its last one anew."""
    engine, tokens = served.engine, prompt(3 * served.prompts.chunk, "computed again")

    def received() -> list[int]:
        stat = served.node.stat()["stat"]
        return [stat[name] for name in ("requests_put", "received_bytes", "leases_refused")]

    first = engine.generate([tokens], max_tokens=1)
    before, payloads = engine.settle(), received()
    engine.reset()
    second = engine.generate([tokens], max_tokens=1)
    after = engine.settle()
    engine.reset()
    assert (first.external, second.external) == (0, served.prompts.hit(tokens))
    assert second.tokens == first.tokens
    names = (OURS + name for name in ("saves", "saves_existed"))
    saves, existed = (after[name] - before.get(name, 0) for name in names)
    assert saves == existed > 0
    assert received() == payloads
