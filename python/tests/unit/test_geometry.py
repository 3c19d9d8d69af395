"""Byte round trips through every layout that the engine can produce, and the refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import as_json, caches_config, document, group

from tessera_kv import _native
from tessera_kv.vllm import layout
from tessera_kv.vllm.self_test import blocks, self_test

NUM_BLOCKS = 7


def dense(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def strided(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> torch.Tensor:
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    return torch.zeros(reach + offset + 8).as_strided(shape, strides, offset)


def blocks_first(count: int = NUM_BLOCKS) -> list[Any]:
    return [dense(count, 2, 4, 8), dense(count, 2, 4, 8)]


def keys_and_values_first(count: int = NUM_BLOCKS) -> list[Any]:
    return [dense(2, count, 4, 2, 8, dtype=torch.bfloat16)]


def padded(count: int = NUM_BLOCKS) -> list[Any]:
    return [strided((count, 2, 4, 8), (96, 32, 8, 1), offset=5)]


def transposed(count: int = NUM_BLOCKS) -> list[Any]:
    return [dense(count, 4, 2, 8).transpose(1, 2)]


def heads_outside(count: int = NUM_BLOCKS) -> list[Any]:
    return [dense(2, count, 4, 8).transpose(0, 1)]


def packed_by_block(count: int = NUM_BLOCKS) -> list[Any]:
    storage = dense(count, 3, 2, 4, 8)
    return [storage[:, 0], storage[:, 1], storage[:, 2]]


def kernel_tiles(count: int = NUM_BLOCKS) -> list[Any]:
    return [dense(count * 2, 2, 2, 8), dense(2, count * 2, 2, 2, 8)]


def state_table(count: int = NUM_BLOCKS) -> list[Any]:
    content, stride = 200, 240
    storage = torch.zeros(count * stride, dtype=torch.int8)
    return [storage.as_strided((count, 1, 1, content), (stride, content, content, 1))]


def state_parts(count: int = NUM_BLOCKS) -> list[Any]:
    return [[dense(count, 3, 8, dtype=torch.bfloat16), dense(count, 2, 4, 4)]]


LAYOUTS = [
    blocks_first,
    keys_and_values_first,
    padded,
    transposed,
    heads_outside,
    packed_by_block,
    kernel_tiles,
    state_table,
    state_parts,
]


def copier(caches: dict[str, Any], groups: dict[str, list[str]], count: int = NUM_BLOCKS) -> Any:
    described = layout.layers(caches, caches_config(groups, count))
    text = as_json(document([group() for _ in groups]))
    memory = _native.BlockCopier(text, as_json(described), count, list(caches.values()))
    return memory, described


def one_group(layers: list[Any], count: int = NUM_BLOCKS) -> tuple[Any, list[Any], dict[str, Any]]:
    caches = {f"layer{index}": layer for index, layer in enumerate(layers)}
    memory, described = copier(caches, {"only": list(caches)}, count)
    return memory, described, caches


def fill(layer: Any, block: int, count: int, value: int) -> int:
    """Write a pattern into one block through the tensors; its bytes."""
    size = 0
    for part in blocks(layer, count):
        window = part[block]
        pattern = torch.arange(window.numel() * window.element_size()) * 7 + value
        pattern = pattern.to(torch.uint8)
        size += pattern.numel()
        window.copy_(pattern.view(window.dtype).view(window.shape))
    return size


@pytest.mark.parametrize("make", LAYOUTS)
def test_self_test_passes_and_leaves_memory_as_it_was(make: Any) -> None:
    memory, described, caches = one_group(make())
    self_test(memory, described, caches, NUM_BLOCKS)
    for layer in caches.values():
        for part in blocks(layer, NUM_BLOCKS):
            assert not part.view(torch.uint8 if part.dtype == torch.int8 else part.dtype).any()


@pytest.mark.parametrize("make", LAYOUTS)
def test_blocks_load_into_another_engine_with_other_memory(make: Any) -> None:
    """Saved from fragmented blocks of one engine, loaded into others of a larger one."""
    here, _, caches = one_group(make())
    larger = NUM_BLOCKS + 4
    there, _, others = one_group(make(larger), larger)
    expected = 0
    for index, name in enumerate(caches):
        for saved, loaded in ((5, 2), (1, 9)):
            value = 10 * index + saved
            expected += fill(caches[name], saved, NUM_BLOCKS, value)
            fill(others[name], loaded, larger, value)
    payload = here.copy(0, [5, 1], [3, 2])
    assert len(payload) == expected
    assert payload == there.copy(0, [2, 9], [4, 6])


def test_wrong_addressing_fails_the_self_test() -> None:
    """The self-test compares with the tensors, so a description of other memory is found out."""
    caches = {"layer0": dense(NUM_BLOCKS, 2, 4, 8)}
    described = layout.layers(caches, caches_config({"only": ["layer0"]}, NUM_BLOCKS))
    tensor = described[0]["tensors"][0]
    tensor["address"] += 4
    tensor["shape"][0] -= 0
    tensor["storage_bytes"] += 4
    spare = torch.zeros(NUM_BLOCKS * 64 + 8)
    for key in ("address", "storage_address"):
        tensor[key] = spare.data_ptr()
    tensor["storage_bytes"] = spare.untyped_storage().nbytes()
    text = as_json(document([group()]))
    memory = _native.BlockCopier(text, as_json(described), NUM_BLOCKS, [spare])
    with pytest.raises(Exception, match="self-test of layer layer0 failed"):
        self_test(memory, described, caches, NUM_BLOCKS)


def test_groups_may_alias_one_storage_and_layers_of_a_group_may_not() -> None:
    storage = dense(NUM_BLOCKS, 2, 4, 8)
    caches = {"a": storage, "b": storage.view(NUM_BLOCKS, 2, 4, 8)[:, :1]}
    copier(caches, {"one": ["a"], "two": ["b"]})
    with pytest.raises(_native.LayoutError, match="overlap"):
        copier(caches, {"one": ["a", "b"]})


def test_layer_that_shares_the_cache_of_another_is_saved_once() -> None:
    storage = dense(NUM_BLOCKS, 2, 4, 8)
    described = layout.layers(
        {"a": storage, "b": storage}, caches_config({"one": ["b", "a"]}, NUM_BLOCKS)
    )
    assert [layer["name"] for layer in described] == ["a"]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (dense(1, 2, 4, 8).expand(NUM_BLOCKS, 2, 4, 8), "crosses into the next block"),
        (strided((NUM_BLOCKS, 2, 4, 8), (60, 32, 8, 1)), "crosses into the next block"),
        (strided((NUM_BLOCKS, 2, 4, 8), (96, 30, 8, 1)), "elements of one block overlap"),
        (dense(NUM_BLOCKS + 1, 2, 4, 8), "no leading axis is a multiple"),
    ],
)
def test_memory_that_is_not_made_of_blocks_is_refused_with_its_shape(
    tensor: torch.Tensor, message: str
) -> None:
    with pytest.raises(_native.LayoutError) as refused:
        one_group([tensor])
    assert message in str(refused.value)
    assert "layer layer0" in str(refused.value)
    assert str(list(tensor.shape)) in str(refused.value)


def test_layer_without_memory_is_refused() -> None:
    with pytest.raises(Exception, match="registered no memory for layer gone"):
        layout.layers({}, caches_config({"one": ["gone"]}, NUM_BLOCKS))
