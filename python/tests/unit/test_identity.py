"""Identity: whatever changes the meaning of a block separates, whatever does not, shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import engine_config

from tessera_kv import _native
from tessera_kv.vllm import UnsupportedEngineError, identity

GROUPS: list[Any] = [{"kind": "full", "block_tokens": 16, "replicated": {}}]


class Caches:
    """What of vLLM's KVCacheConfig takes part in the identity."""

    def __init__(self, order: str | None = "LBHNC") -> None:
        self.kv_cache_layout = order


def print_of(config: Any, caches: Caches | None = None, version: str = "0.32") -> str:
    return identity.fingerprint(config, caches or Caches(), GROUPS, version)


def test_everything_that_changes_a_block_changes_the_fingerprint() -> None:
    longrope = {"rope_type": "longrope"}
    text = type("Text", (), {"rope_parameters": longrope})()
    variants = [
        print_of(engine_config()),
        print_of(engine_config(), version="0.33"),
        print_of(engine_config(), Caches("LBNHC")),
        print_of(engine_config(model_config__quantization="awq")),
        print_of(engine_config(model_config__hf_overrides={"rope_theta": 1})),
        print_of(engine_config(attention_config__backend="FLASHINFER")),
        print_of(engine_config(device_config__device_type="cuda")),
        print_of(engine_config(load_config__load_format="dummy")),
        print_of(engine_config(load_config__load_format="dummy", model_config__seed=1)),
        print_of(engine_config(model_config__hf_text_config=text)),
        print_of(engine_config(model_config__hf_text_config=text, model_config__max_model_len=9)),
        identity.fingerprint(engine_config(), Caches(), [*GROUPS, *GROUPS], "0.32"),
    ]
    assert len(set(variants)) == len(variants)


def test_where_blocks_lie_and_how_many_there_are_does_not() -> None:
    plain = print_of(engine_config())
    assert plain == print_of(engine_config(), Caches("BLHNC"))
    assert plain == print_of(engine_config(model_config__max_model_len=9))
    assert plain == print_of(engine_config(model_config__seed=1))
    assert len(plain) == 64


def test_hub_model_is_named_by_its_commit() -> None:
    named = identity.model_identity(engine_config().model_config, "")
    assert named == {"model": "org/model", "revision": "0123abc", "weights": ""}
    named = identity.model_identity(engine_config().model_config, "mine")
    assert named["revision"] == "mine"


def test_unpinned_weights_are_refused_with_the_fix() -> None:
    config = engine_config(model_config__hf_config=object()).model_config
    with pytest.raises(UnsupportedEngineError, match="--revision with a commit"):
        identity.model_identity(config, "")


def test_local_folder_is_named_by_its_weights(tmp_path: Path) -> None:
    def weights(folder: str, content: bytes) -> str:
        model = tmp_path / folder / "model"
        model.mkdir(parents=True)
        (model / "weights.bin").write_bytes(content)
        config = engine_config(model_config__model=str(model)).model_config
        named = identity.model_identity(config, "")
        assert named["model"] == "model"
        return named["weights"]

    assert weights("a", b"1") == weights("b", b"1")
    assert weights("c", b"2") != weights("d", b"1")
    (tmp_path / "empty").mkdir()
    config = engine_config(model_config__model=str(tmp_path / "empty")).model_config
    with pytest.raises(_native.WeightsError, match="model_revision"):
        identity.model_identity(config, "")
    assert identity.model_identity(config, "v1")["revision"] == "v1"


def test_overrides_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(UnsupportedEngineError, match="pass it as a dictionary"):
        print_of(engine_config(model_config__hf_overrides=lambda config: config))


def test_quantized_cache_is_another_type_of_element() -> None:
    plain = identity.cache_dtype(engine_config())
    assert plain == "float32"
    assert identity.cache_dtype(engine_config(cache_config__cache_dtype="fp8")) == "fp8 of float32"
