"""What cannot be served exactly is refused at the start, with a message that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import Engine, EngineRefusedError, connector

CASES = {
    "unknown option": ({"node": ["127.0.0.1:1"]}, {}, '"nodes"'),
    "wrong type": ({"load": "yes"}, {}, "load"),
    "unstable hash": ({}, {"prefix_caching_hash_algo": "xxhash"}, "sha256"),
}


@pytest.mark.parametrize("case", CASES)
def test_engine_is_refused_at_start_with_the_way_out(
    case: str, launch: Callable[..., Engine]
) -> None:
    options, engine, named = CASES[case]
    use: dict[str, Any] = connector("127.0.0.1:1", **options)
    log = f"refused-{case.replace(' ', '-')}"
    with launch("llama", log, use, engine) as refused:
        with pytest.raises(EngineRefusedError) as refusal:
            refused.start()
        assert named in str(refusal.value)
