"""What must be equal before two engines share a block, as far as the engine's configuration says.

Called at start by `tessera_kv.vllm.layout`. Everything here is equal on the scheduler and on every
worker of one engine, and is taken from what the user configured, never from objects that loading a
model changes. What a worker alone can see (strides, orders inside a block) is compared object by
object in the native part.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from tessera_kv import _native
from tessera_kv.vllm import UnsupportedEngineError
from tessera_kv.vllm.data import Group

# Rotary embeddings whose values depend on how long the model may become.
LENGTH_DEPENDENT_ROPE = ("longrope", "su", "dynamic")


def model_identity(model_config: Any, revision: str) -> dict[str, str]:
    """Name the weights: a local folder by its contents, a model of a hub by its commit.

    `revision` is the user's own name for them, and takes part wherever it is given.
    """
    model = str(model_config.model)
    folder = Path(model)
    if folder.is_dir():
        weights = "" if revision else _native.weights_fingerprint(str(folder))
        return {"model": folder.name, "revision": revision, "weights": weights}
    commit = getattr(model_config.hf_config, "_commit_hash", None)
    named = revision or commit or model_config.revision
    if not named:
        raise UnsupportedEngineError(
            f"the weights of {model} are not pinned, so two engines may hold different ones under "
            'one name: pass --revision with a commit, or set the option "model_revision"'
        )
    return {"model": model, "revision": str(named), "weights": ""}


def cache_dtype(vllm_config: Any) -> str:
    """Name the element type: the model's own, unless the cache has another."""
    configured = str(vllm_config.cache_config.cache_dtype)
    model = str(vllm_config.model_config.dtype).removeprefix("torch.")
    return model if configured == "auto" else f"{configured} of {model}"


def fingerprint(vllm_config: Any, kv_cache_config: Any, groups: list[Group], version: str) -> str:
    """Digest of all that decides what the bytes of a block mean, in hexadecimal digits."""
    model = vllm_config.model_config
    facts = {
        # The inner order of a block belongs to the attention kernels of a release.
        "engine": version,
        "groups": groups,
        "order": inner_order(kv_cache_config),
        "device": device(vllm_config),
        "attention": str(getattr(vllm_config.attention_config, "backend", None)),
        "quantization": str(model.quantization),
        "overrides": overrides(model),
        "dummy": dummy_seed(vllm_config),
        "length": length(model),
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def inner_order(kv_cache_config: Any) -> str:
    """The order of heads, tokens and content inside a block.

    Where layers and blocks stand in the layout's name says only how far apart blocks are.
    """
    name = getattr(kv_cache_config, "kv_cache_layout", None) or ""
    return "".join(letter for letter in str(name) if letter not in "LB")


def device(vllm_config: Any) -> str:
    """The kind of device; on a CPU also the instructions that decide how keys are packed."""
    kind = str(vllm_config.device_config.device_type)
    if kind != "cpu":
        return kind
    import torch

    checks = ("_is_amx_tile_supported", "_is_avx512_supported")
    features = [name for name in checks if getattr(torch.cpu, name, bool)()]
    return " ".join([kind, platform.machine(), *features])


def overrides(model: Any) -> str:
    """What the user changed in the model's configuration."""
    given = model.hf_overrides
    if callable(given):
        raise UnsupportedEngineError(
            "hf_overrides is a function, so two engines cannot be told to hold the same model: "
            "pass it as a dictionary"
        )
    return json.dumps(given, sort_keys=True, default=str)


def dummy_seed(vllm_config: Any) -> str:
    """Weights that no file holds are as good as their seed."""
    if str(vllm_config.load_config.load_format) != "dummy":
        return ""
    return f"seed {vllm_config.model_config.seed}"


def length(model: Any) -> int:
    """The longest sequence, where it takes part in the rotary embedding."""
    config = model.hf_text_config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = json.dumps(rope, default=str)
    used = any(f'"{kind}"' in kinds for kind in LENGTH_DEPENDENT_ROPE)
    return int(model.max_model_len) if used else 0
