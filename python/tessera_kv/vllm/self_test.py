"""The self-test of a worker at start: what is saved from some blocks loads into others, bit by bit.

Called once, when block memory is registered and not yet used. The blocks are addressed twice, by
the native part through addresses and strides, and here through the tensors themselves, so that a
mistake in either shows before it can reach an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tessera_kv import _native
from tessera_kv.vllm import UnsupportedEngineError
from tessera_kv.vllm.data import Layer

# Two blocks of one object, out of order, and where they go; the others must stay as they are.
SOURCE = (3, 1)
TARGET = (4, 2)
WATCHED = range(6)


def self_test(
    copier: _native.BlockCopier,
    layers: list[Layer],
    kv_caches: Mapping[str, Any],
    num_blocks: int,
) -> None:
    """Raise if a block does not arrive as it was, or if anything beside it changes."""
    if num_blocks < len(WATCHED):
        return
    for group in sorted({layer["group"] for layer in layers}):
        names = [layer["name"] for layer in layers if layer["group"] == group]
        views = {name: blocks(kv_caches[name], num_blocks) for name in names}
        before = {name: snapshot(parts) for name, parts in views.items()}
        try:
            write_pattern(views)
            expected = {name: moved(snapshot(parts)) for name, parts in views.items()}
            copier.copy(group, SOURCE, TARGET)
            for name, parts in views.items():
                if not same(snapshot(parts), expected[name]):
                    raise UnsupportedEngineError(
                        f"the self-test of layer {name} failed: what was saved from its blocks did "
                        "not load into others unchanged. Report this model and its KV cache "
                        "layout; until then remove --kv-transfer-config"
                    )
        finally:
            for name, parts in views.items():
                restore(parts, before[name])


def blocks(cache: Any, num_blocks: int) -> list[torch.Tensor]:
    """Views of one layer with blocks along the first axis."""
    parts = cache if isinstance(cache, (list, tuple)) else [cache]
    views = []
    for part in parts:
        axis = 0 if part.shape[0] % num_blocks == 0 else 1
        views.append(part.unflatten(axis, (num_blocks, -1)).movedim(axis, 0))
    return views


def snapshot(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """The bytes of the watched blocks, copied."""
    return [part[: len(WATCHED)].clone(memory_format=torch.contiguous_format) for part in parts]


def restore(parts: list[torch.Tensor], saved: list[torch.Tensor]) -> None:
    """Put the watched blocks back as they were."""
    for part, content in zip(parts, saved, strict=True):
        part[: len(WATCHED)].copy_(content)


def moved(saved: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the watched blocks must be after the copy."""
    for part in saved:
        for source, target in zip(SOURCE, TARGET, strict=True):
            part[target] = part[source]
    return saved


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether all bytes are equal, whatever the element type."""
    pairs = zip(left, right, strict=True)
    return all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in pairs)


def write_pattern(views: Mapping[str, list[torch.Tensor]]) -> None:
    """Fill the watched blocks with bytes that are nowhere twice in a row."""
    generator = torch.Generator().manual_seed(0)
    for parts in views.values():
        for part in parts:
            window = part[: len(WATCHED)]
            size = window.numel() * window.element_size()
            pattern = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
            window.copy_(pattern.view(window.dtype).view(window.shape))
