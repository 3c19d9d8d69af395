"""What travels between the two sides of the connector, and the documents of the native part.

The scheduler side sends one opaque plan a step; every worker side reads it. The documents are the
JSON objects that the native part parses strictly: they are built by `tessera_kv.vllm.layout` and
written down here, so that a field has one name on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)

# A group's answer to: what is needed of the tokens before a boundary?
GroupKind = str | dict[str, dict[str, int]]


@dataclass
class TesseraMetadata(KVConnectorMetadata):
    """The plan of one step, encoded by the native scheduler for the native workers.

    None: the workers have nothing to do in it, as in most steps.
    """

    plan: bytes | None


@dataclass
class PeerPlace(KVConnectorHandshakeMetadata):
    """Where other engines find a worker: its rank, its process start and its address.

    Every worker tells the scheduler side once, at start; tickets name it.
    """

    rank: int
    incarnation: str
    address: str


class Axes(TypedDict):
    """One flag per axis of the engine's parallelism."""

    tp: bool
    pp: bool
    dcp: bool
    pcp: bool


class Group(TypedDict):
    """One KV cache group."""

    kind: GroupKind
    block_tokens: int
    replicated: Axes


class Tensor(TypedDict):
    """One tensor of block memory; sizes and strides in bytes where their name says so."""

    address: int
    shape: list[int]
    strides_bytes: list[int]
    item_bytes: int
    storage_address: int
    storage_bytes: int
    dtype: str
    device: str
    heads_axis: int | None


class Layer(TypedDict):
    """The block memory of one layer, and the group whose block table addresses it."""

    name: str
    group: int
    tensors: list[Tensor]


Document = dict[str, Any]
