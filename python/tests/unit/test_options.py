"""Options: what is wrong stops the start and names what is right."""

from __future__ import annotations

import pytest

from tessera_kv import _native


def test_no_options_are_the_defaults() -> None:
    options = _native.Options({})
    assert options.recompute
    assert options.self_test
    assert options.model_revision == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"node": []}, 'did you mean "nodes"?'),
        ({"chunk_size": 1}, 'did you mean "chunk_tokens"?'),
        ({"load": 1}, '"load" must be true or false, got 1'),
        ({"staging": "1GB"}, '"staging" must be bytes from 1MiB'),
        ({"nodes": ["somewhere"]}, '"nodes" must be a list of "host:port"'),
        ({"io": "sync"}, 'one of "async", "serial"'),
        ({"lookup_timeout_ms": 0}, "a whole number from 1 to 600000, got 0"),
    ],
)
def test_wrong_option_names_the_right_one(given: dict[str, object], message: str) -> None:
    with pytest.raises(_native.OptionError) as refused:
        _native.Options(given)
    assert message in str(refused.value)
    assert isinstance(refused.value, ValueError)


def test_what_is_not_an_object_is_refused() -> None:
    with pytest.raises(_native.OptionError, match="must be a JSON object"):
        _native.Options([])  # type: ignore[arg-type]
