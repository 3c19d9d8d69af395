"""What the unit tests share: descriptions of small engines, and a node of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tessera_kv.command import BINARY

WORD = "a" * 64


def document(groups: list[dict[str, Any]], hash_tokens: int = 4, **options: Any) -> dict[str, Any]:
    """The document of an engine with these cache groups and options."""
    return {
        "namespace": {"model": "m", "dtype": "float32", "layout_fingerprint": WORD},
        "groups": groups,
        "hash_tokens": hash_tokens,
        "options": options,
    }


def group(kind: Any = "full", block_tokens: int = 4) -> dict[str, Any]:
    return {"kind": kind, "block_tokens": block_tokens}


def caches_config(groups: dict[str, list[str]], num_blocks: int) -> Any:
    """What of vLLM's KVCacheConfig the description of memory reads."""
    return SimpleNamespace(
        num_blocks=num_blocks,
        kv_cache_groups=[SimpleNamespace(layer_names=names) for names in groups.values()],
    )


def engine_config(**changes: Any) -> Any:
    """What of vLLM's VllmConfig the connector reads; `changes` go by dotted path, _ for dots."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            model="org/model",
            revision=None,
            dtype=torch.float32,
            is_encoder_decoder=False,
            quantization=None,
            hf_overrides={},
            hf_config=SimpleNamespace(_commit_hash="0123abc"),
            hf_text_config=SimpleNamespace(rope_parameters={"rope_type": "default"}),
            max_model_len=4096,
            seed=0,
            get_total_num_kv_heads=lambda: 8,
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
            block_size=16,
            prefix_match_unit=None,
            enable_prefix_caching=True,
        ),
        parallel_config=SimpleNamespace(
            rank=0,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
        attention_config=SimpleNamespace(backend=None),
        device_config=SimpleNamespace(device_type="cpu"),
        load_config=SimpleNamespace(load_format="auto"),
        speculative_config=None,
        kv_transfer_config=SimpleNamespace(
            is_kv_producer=True, is_kv_consumer=True, kv_connector_extra_config={}
        ),
    )
    for path, value in changes.items():
        part, name = path.split("__")
        setattr(getattr(config, part), name, value)
    return config


@pytest.fixture
def node() -> Iterator[str]:
    """A node of its own, from the packed binary; its address."""
    command = [str(BINARY), "node", "--listen", "127.0.0.1:0", "--ram", "64MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield line.removeprefix("listening on ").strip()
        process.terminate()
        assert process.wait(timeout=20) == 0


def as_json(value: Any) -> str:
    return json.dumps(value)
