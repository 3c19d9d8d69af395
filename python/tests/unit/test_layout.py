"""Classes of cache groups, ranks, and the refusals that say what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import engine_config
from vllm.v1 import kv_cache_interface as vllm_specs

from tessera_kv.vllm import UnsupportedEngineError, layout, require_engine

ATTENTION = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
STATE = {"block_size": 64, "shapes": ((3, 4),), "dtypes": (torch.float32,)}


def full(**more: Any) -> Any:
    return vllm_specs.FullAttentionSpec(**ATTENTION, **more)


def full_in_one_shard() -> Any:
    """As engines describe it that know how many shards there are; older ones do not."""
    spec = full()
    object.__setattr__(spec, "max_tp_shards", 1)
    return spec


def latent() -> Any:
    return vllm_specs.MLAAttentionSpec(**{**ATTENTION, "num_kv_heads": 1})


def window(tokens: int, **more: Any) -> Any:
    return vllm_specs.SlidingWindowSpec(**ATTENTION, sliding_window=tokens, **more)


def state(**more: Any) -> Any:
    return vllm_specs.MambaSpec(**STATE, **{"mamba_cache_mode": "align", **more})


def uniform(*specs: Any) -> Any:
    named = {f"layer{index}": spec for index, spec in enumerate(specs)}
    return vllm_specs.UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=named)


def cache_group(spec: Any) -> Any:
    return vllm_specs.KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)


def test_every_known_spec_has_its_class() -> None:
    assert layout.group_kind(full()) == "full"
    assert layout.group_kind(full(sliding_window=32)) == "full"
    assert layout.group_kind(latent()) == "full"
    assert layout.group_kind(window(192)) == {"window": {"tokens": 192}}
    assert layout.group_kind(state()) == "state"
    assert layout.group_kind(uniform(full(), full())) == "full"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (vllm_specs.CrossAttentionSpec(**ATTENTION), "cross-attention"),
        (vllm_specs.EncoderOnlyAttentionSpec(**ATTENTION), "encoder caches"),
        (
            vllm_specs.ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64),
            "ChunkedLocalAttentionSpec",
        ),
        (vllm_specs.SinkFullAttentionSpec(**ATTENTION, sink_len=4), "SinkFullAttentionSpec"),
        (vllm_specs.RSWASpec(**ATTENTION, rswa_window=64), "RSWASpec"),
        (vllm_specs.CircularBufferSpec(**ATTENTION), "does not cache it by prefix"),
        (window(64, extra_retained_tokens=3), "speculative decoding"),
        (state(num_speculative_blocks=2), "speculative decoding"),
        (state(mamba_cache_mode="none"), "--mamba-cache-mode align"),
        (uniform(window(64), window(128)), "its layers need different tokens"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_exactly_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(UnsupportedEngineError) as refused:
        layout.group_kind(spec)
    assert message in str(refused.value)
    assert "-" in str(refused.value), "it names an option to change"


def test_unknown_spec_of_a_later_engine_is_refused_by_name() -> None:
    class NovelSpec(vllm_specs.FullAttentionSpec):
        """A subclass that this version has never seen."""

    with pytest.raises(UnsupportedEngineError, match="NovelSpec"):
        layout.group_kind(NovelSpec(**ATTENTION))


def test_latent_cache_is_one_for_all_tensor_ranks_and_heads_are_not() -> None:
    parallel = engine_config().parallel_config
    replicated = [
        layout.group(cache_group(spec), parallel)["replicated"]
        for spec in (latent(), full(), full_in_one_shard(), state(), state(tp_replicated=True))
    ]
    assert [axes["tp"] for axes in replicated] == [True, False, True, False, True]
    assert [axes["dcp"] for axes in replicated] == [False, False, False, True, True]


def test_context_parallel_groups_have_longer_blocks_where_they_are_sharded() -> None:
    parallel = engine_config(parallel_config__decode_context_parallel_size=2).parallel_config
    assert layout.group(cache_group(full()), parallel)["block_tokens"] == 32
    assert layout.group(cache_group(state()), parallel)["block_tokens"] == 64


@pytest.mark.parametrize(("ranks", "here"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_heads_of_the_whole_model_are_known_where_layers_have_their_part(
    ranks: int, here: int
) -> None:
    config = engine_config(parallel_config__tensor_parallel_size=ranks)
    attention = {**ATTENTION, "num_kv_heads": here}
    of_full = vllm_specs.FullAttentionSpec(**attention)
    of_window = vllm_specs.SlidingWindowSpec(**attention, sliding_window=64)
    assert layout.whole_heads(of_full, config) == 8
    assert layout.whole_heads(of_window, config) == 8
    assert layout.whole_heads(state(), config) is None
    other = vllm_specs.FullAttentionSpec(**{**attention, "num_kv_heads": here + 1})
    assert layout.whole_heads(other, config) is None
    assert layout.whole_heads(uniform(of_full, other), config) is None


def test_axis_of_heads_is_known_where_the_engine_names_its_layout() -> None:
    def axis(spec: Any, **more: Any) -> int | None:
        return layout.heads_axis("layer", cache_group(spec), SimpleNamespace(**more))

    assert axis(full(), kv_cache_layout="LBHNC") == 1
    assert axis(window(64), kv_cache_layout="LBNHC") == 1
    assert axis(full()) is None
    assert axis(full(), kv_cache_layout=None) is None
    assert axis(state(), kv_cache_layout="LBHNC") is None
    memory = torch.zeros((3, 2, 16, 8))
    assert layout.tensor("layer", memory, 1)["heads_axis"] == 1
    assert layout.tensor("layer", memory.flatten(2), 1)["heads_axis"] is None


def test_ranks_follow_the_order_of_the_engine() -> None:
    parallel = SimpleNamespace(
        tensor_parallel_size=4,
        pipeline_parallel_size=2,
        decode_context_parallel_size=2,
        prefill_context_parallel_size=1,
    )
    places = []
    for parallel.rank in range(8):
        place = layout.rank(parallel)
        places.append((place["pp"], place["tp"], place["dcp"]))
    assert places == [
        *[(0, 0, 0), (0, 1, 1), (0, 2, 0), (0, 3, 1)],
        *[(1, 0, 0), (1, 1, 1), (1, 2, 0), (1, 3, 1)],
    ]


@pytest.mark.parametrize("version", ["0.29.0", "0.9.2", "0.11.0rc1", "v0.29.1+cpu"])
def test_older_engine_is_refused_with_the_version_to_install(version: str) -> None:
    with pytest.raises(UnsupportedEngineError, match=r"pip install 'vllm>=0.30'"):
        require_engine(version)


@pytest.mark.parametrize("version", ["0.30.0", "0.32.0+cpu", "1.0.0", "0.1.dev1+gabc", "main"])
def test_newer_engine_is_taken(version: str) -> None:
    require_engine(version)


def test_cryptographic_hashes_are_stable_without_any_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    layout.require_stable_hashing("sha256")
    layout.require_stable_hashing("sha256_cbor")


def test_hashes_of_one_process_only_are_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    for algorithm in ("xxhash", "xxhash_cbor"):
        with pytest.raises(UnsupportedEngineError, match="sha256_cbor, or set PYTHONHASHSEED"):
            layout.require_stable_hashing(algorithm)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    layout.require_stable_hashing("xxhash")


def test_engine_without_chunked_prefill_claims_no_hit() -> None:
    config = engine_config(scheduler_config__enable_chunked_prefill=False)
    caches = vllm_specs.KVCacheConfig(9, [], [cache_group(full())])
    document = layout.engine_document(config, caches, options(), "0.32")
    assert not document["can_load"]
    assert document["can_save"]


def test_roles_are_honoured() -> None:
    caches = vllm_specs.KVCacheConfig(9, [], [cache_group(full())])
    config = engine_config(kv_transfer_config__is_kv_producer=False)
    document = layout.engine_document(config, caches, options(), "0.32")
    assert document["can_load"]
    assert not document["can_save"]


def test_speculative_decoding_is_said_in_words() -> None:
    caches = vllm_specs.KVCacheConfig(9, [], [cache_group(full())])
    config = engine_config()
    assert layout.engine_document(config, caches, options(), "0.32")["speculative"] == ""
    config.speculative_config = SimpleNamespace(
        method="eagle", model="org/draft", num_speculative_tokens=3
    )
    document = layout.engine_document(config, caches, options(), "0.32")
    assert document["speculative"] == "3 tokens of eagle, model org/draft"


def test_models_without_or_with_foreign_caches_are_refused() -> None:
    caches = vllm_specs.KVCacheConfig(9, [], [])
    with pytest.raises(UnsupportedEngineError, match="has no KV cache"):
        layout.engine_document(engine_config(), caches, options(), "0.32")
    with pytest.raises(UnsupportedEngineError, match="encoder-decoder"):
        layout.refuse_unsupported(engine_config(model_config__is_encoder_decoder=True))
    with pytest.raises(UnsupportedEngineError, match="--calculate-kv-scales"):
        layout.refuse_unsupported(engine_config(cache_config__calculate_kv_scales=True))
    foreign = vllm_specs.KVCacheGroupSpec(["layer"], full(), enable_kv_transfer=False)
    with pytest.raises(UnsupportedEngineError, match="rebuilt by the engine"):
        layout.group(foreign, engine_config().parallel_config)


def test_memory_elsewhere_than_on_the_host_is_refused() -> None:
    device_tensor = torch.empty(4, device="meta")
    with pytest.raises(UnsupportedEngineError, match="layer x has its cache on meta"):
        layout.tensor("x", device_tensor)


def options() -> Any:
    return SimpleNamespace(model_revision="")
