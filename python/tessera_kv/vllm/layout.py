"""Describes the engine's cache to the native part, and refuses what cannot be kept exactly.

Called at start by both sides of the connector. `engine_document` translates vLLM's configuration
into the one JSON document that scheduler and workers share; `layers` translates tensors into
addresses and strides. All arithmetic on them is native. The invariant: what is not known to be
saved and loaded exactly stops the start, with a message that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tessera_kv.vllm import UnsupportedEngineError
from tessera_kv.vllm.data import Axes, Document, Group, GroupKind, Layer, Tensor
from tessera_kv.vllm.identity import cache_dtype, fingerprint, model_identity

# By the name of the exact class: a subclass may need other tokens than its parent, and some
# classes exist in some versions only.
FULL = ("FullAttentionSpec", "MLAAttentionSpec")
LATENT = ("MLAAttentionSpec", "SlidingWindowMLASpec")
WINDOW = ("SlidingWindowSpec", "SlidingWindowMLASpec")
STATE = ("MambaSpec",)
ENCODER = ("CrossAttentionSpec", "EncoderOnlyAttentionSpec")

# Kinds of devices whose memory the native part can fence and copy, by torch's names.
DEVICES = ("cpu", "cuda")


def engine_document(vllm_config: Any, kv_cache_config: Any, options: Any, version: str) -> Document:
    """Build the document that scheduler and workers share; only `rank` differs between them.

    `options` are the parsed options of the native part, `version` is the engine's.
    """
    parallel = vllm_config.parallel_config
    transfer = vllm_config.kv_transfer_config
    refuse_unsupported(vllm_config)
    groups = [group(spec, parallel) for spec in kv_cache_config.kv_cache_groups]
    if not groups:
        raise UnsupportedEngineError(
            "this model has no KV cache, so there is nothing to keep: remove --kv-transfer-config"
        )
    hashing = hash_tokens(vllm_config, kv_cache_config)
    return {
        "namespace": {
            **model_identity(vllm_config.model_config, options.model_revision),
            "dtype": cache_dtype(vllm_config),
            "layout_fingerprint": fingerprint(vllm_config, kv_cache_config, groups, version),
        },
        "groups": groups,
        "heads": [
            whole_heads(spec.kv_cache_spec, vllm_config) for spec in kv_cache_config.kv_cache_groups
        ],
        "hash_tokens": hashing,
        "topology": {
            "tp": parallel.tensor_parallel_size,
            "pp": parallel.pipeline_parallel_size,
            "dcp": parallel.decode_context_parallel_size,
            "pcp": getattr(parallel, "prefill_context_parallel_size", 1),
        },
        "speculative": speculation(vllm_config),
        "can_load": transfer.is_kv_consumer and can_continue_prefix(vllm_config),
        "can_save": transfer.is_kv_producer,
        "options": transfer.kv_connector_extra_config,
    }


def speculation(vllm_config: Any) -> str:
    """What guesses tokens, in words that engines compare which hand over to each other."""
    config = vllm_config.speculative_config
    if config is None:
        return ""
    return f"{config.num_speculative_tokens} tokens of {config.method}, model {config.model}"


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise if the engine's configuration as a whole cannot be served exactly."""
    if vllm_config.model_config.is_encoder_decoder:
        raise UnsupportedEngineError(
            "encoder-decoder models have cross-attention caches, which depend on more than the "
            "hashed tokens: remove --kv-transfer-config"
        )
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise UnsupportedEngineError(
            "the scales of this fp8 cache come from the first prompt of each process, so blocks of "
            "two processes are not comparable: remove --calculate-kv-scales"
        )
    require_stable_hashing(vllm_config.cache_config.prefix_caching_hash_algo)


def require_stable_hashing(algorithm: str) -> None:
    """Raise unless two processes compute equal hashes for equal blocks.

    The engine is asked instead of a list of algorithms: it derives the seed of the first block
    from a fixed text, or anew for each process.
    """
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed

    hash_function = get_hash_fn_by_name(algorithm)
    if resolve_none_hash_seed(hash_function) != resolve_none_hash_seed(hash_function):
        raise UnsupportedEngineError(
            f"--prefix-caching-hash-algo {algorithm} gives every process hashes of its own, so no "
            "process finds what another saved: use sha256 or sha256_cbor, or set PYTHONHASHSEED "
            "to the same number for every engine"
        )


def can_continue_prefix(vllm_config: Any) -> bool:
    """Whether the engine can compute the rest of a prompt whose beginning was loaded."""
    return bool(vllm_config.scheduler_config.enable_chunked_prefill)


def hash_tokens(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens for each entry of `request.block_hashes`, as the engine resolves them."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])


def group(spec: Any, parallel: Any) -> Group:
    """Describe one KV cache group."""
    from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size

    if not getattr(spec, "enable_kv_transfer", True) or getattr(spec, "host_resident", False):
        raise unknown(spec.kv_cache_spec, "its blocks are rebuilt by the engine")
    dcp = parallel.decode_context_parallel_size
    return {
        "kind": group_kind(spec.kv_cache_spec),
        "block_tokens": resolve_dcp_kv_block_size(spec.kv_cache_spec, dcp),
        "replicated": replicated(spec.kv_cache_spec),
    }


def layer_specs(spec: Any) -> list[Any]:
    """The specs of the layers of a group: one for all, or one for each."""
    each = getattr(spec, "kv_cache_specs", None)
    return [spec] if each is None else list(each.values())


def group_kind(spec: Any) -> GroupKind:
    """Which tokens before a boundary the group needs, the same for all its layers."""
    kinds = [layer_kind(layer) for layer in layer_specs(spec)]
    if not kinds or any(kind != kinds[0] for kind in kinds):
        raise unknown(spec, "its layers need different tokens")
    return kinds[0]


def whole_heads(spec: Any, vllm_config: Any) -> int | None:
    """KV heads of the whole model in each layer of a group, None where its layers have none.

    Blocks of engines of unequal tensor parallel size are cut by them.
    """
    layers = layer_specs(spec)
    if any(type(layer).__name__ not in FULL + WINDOW for layer in layers):
        return None
    total = int(vllm_config.model_config.get_total_num_kv_heads())
    here = max(1, total // vllm_config.parallel_config.tensor_parallel_size)
    return total if all(slots(layer) == here for layer in layers) else None


def slots(spec: Any) -> int | None:
    """Heads of a layer on this rank, None if its memory counts something else."""
    heads = int(spec.num_kv_heads)
    return heads if getattr(spec, "num_head_slots", None) in (None, heads) else None


def layer_kind(spec: Any) -> GroupKind:
    """Which tokens before a boundary one layer needs."""
    name = type(spec).__name__
    if name in ENCODER:
        raise UnsupportedEngineError(
            f"{name}: cross-attention and encoder caches depend on more than the hashed tokens: "
            "remove --kv-transfer-config"
        )
    if not getattr(spec, "prefix_cacheable", True):
        raise unknown(spec, "the engine itself does not cache it by prefix")
    if name in FULL:
        return "full"
    if name in WINDOW:
        if getattr(spec, "extra_retained_tokens", 0):
            raise speculative(name)
        return {"window": {"tokens": spec.sliding_window}}
    if name in STATE:
        return state_kind(spec, name)
    raise unknown(spec, "it is not known which tokens it needs")


def state_kind(spec: Any, name: str) -> GroupKind:
    """A recurrent state, if the engine keeps one at block boundaries."""
    if spec.num_speculative_blocks:
        raise speculative(name)
    if spec.mamba_cache_mode != "align":
        raise UnsupportedEngineError(
            f"{name} in mode {spec.mamba_cache_mode!r} keeps no state at block boundaries: set "
            "--enable-prefix-caching and --mamba-cache-mode align"
        )
    return "state"


def speculative(name: str) -> UnsupportedEngineError:
    """The refusal of states that hold tokens which may yet be rejected."""
    return UnsupportedEngineError(
        f"{name}: with speculative decoding its blocks hold states of tokens that may be rejected, "
        "which cannot be saved exactly: remove --speculative-config, or --kv-transfer-config"
    )


def unknown(spec: Any, reason: str) -> UnsupportedEngineError:
    """The refusal of a cache whose rules are not known."""
    return UnsupportedEngineError(
        f"KV cache of type {type(spec).__name__} cannot be kept exactly ({reason}): remove "
        "--kv-transfer-config, or ask for support and give this type's name"
    )


def replicated(spec: Any) -> Axes:
    """The axes on which all ranks hold the same bytes; where that is not known, they do not."""
    layers = layer_specs(spec)

    def everywhere(holds: Iterable[bool]) -> bool:
        return all(holds)

    return {
        "tp": everywhere(
            type(layer).__name__ in LATENT
            or getattr(layer, "max_tp_shards", None) == 1
            or getattr(layer, "tp_replicated", False)
            for layer in layers
        ),
        "pp": False,
        "dcp": everywhere(type(layer).__name__ in STATE for layer in layers),
        "pcp": False,
    }


def rank(parallel: Any) -> dict[str, int]:
    """Place this worker along each axis of parallelism."""
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    pcp_size = getattr(parallel, "prefill_context_parallel_size", 1)
    place = parallel.rank % (pp_size * pcp_size * tp_size)
    return {
        "tp": place % tp_size,
        "pcp": place // tp_size % pcp_size,
        "pp": place // (tp_size * pcp_size),
        "dcp": place % tp_size % parallel.decode_context_parallel_size,
    }


def layers(kv_caches: Mapping[str, Any], kv_cache_config: Any) -> list[Layer]:
    """Describe the block memory of every layer that has blocks of its own.

    A layer that shares the cache of another is the same tensor once more, and is left out.
    """
    found: list[Layer] = []
    for index, cache_group in enumerate(kv_cache_config.kv_cache_groups):
        seen: set[str] = set()
        for name in sorted(set(cache_group.layer_names)):
            if name not in kv_caches:
                raise UnsupportedEngineError(
                    f"the engine registered no memory for layer {name} of KV cache group {index}: "
                    "report this model"
                )
            axis = heads_axis(name, cache_group, kv_cache_config)
            tensors = [tensor(name, part, axis) for part in parts(kv_caches[name])]
            identity = json.dumps(tensors, sort_keys=True)
            if identity not in seen:
                seen.add(identity)
                found.append({"name": name, "group": index, "tensors": tensors})
    return found


def parts(cache: Any) -> list[Any]:
    """The tensors of one layer: usually one, for some states several."""
    return list(cache) if isinstance(cache, (list, tuple)) else [cache]


def heads_axis(layer: str, cache_group: Any, kv_cache_config: Any) -> int | None:
    """Which axis of a layer's tensors counts its heads; None where the engine does not say so.

    An engine that names its layout gives every attention layer the axes of blocks, heads, tokens
    and content, whatever their order in memory.
    """
    if getattr(kv_cache_config, "kv_cache_layout", None) is None:
        return None
    spec = cache_group.kv_cache_spec
    spec = getattr(spec, "kv_cache_specs", {}).get(layer, spec)
    return 1 if type(spec).__name__ in FULL + WINDOW else None


def tensor(layer: str, cache: Any, heads_axis: int | None = None) -> Tensor:
    """Describe one tensor; it is neither read nor copied."""
    if cache.device.type not in DEVICES:
        raise UnsupportedEngineError(
            f"layer {layer} has its cache on {cache.device}; this version moves caches in memory "
            "of the host or of an NVIDIA GPU only: run vLLM there, or remove --kv-transfer-config"
        )
    item_bytes = cache.element_size()
    storage = cache.untyped_storage()
    return {
        "address": cache.data_ptr(),
        "shape": list(cache.shape),
        "strides_bytes": [stride * item_bytes for stride in cache.stride()],
        "item_bytes": item_bytes,
        "dtype": str(cache.dtype),
        "storage_address": storage.data_ptr(),
        "storage_bytes": storage.nbytes(),
        "device": cache.device.type,
        "heads_axis": heads_axis if cache.dim() == 4 else None,
    }
