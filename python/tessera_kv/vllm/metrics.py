"""Metrics of the connector, for vLLM's log and for Prometheus. Nothing here ever raises.

Each side is asked once a step by how much its values have changed; that travels through vLLM to its
front end, where equal names of all ranks are added up. Changes of a gauge add up as well: its value
in Prometheus is the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.logger import init_logger

from tessera_kv import _native

logger = init_logger("vllm.tessera")

# Values that rise and fall. All others only grow.
GAUGES = frozenset(
    {
        "staging_bytes_used",
        "peer_offered_bytes",
        "peer_claimed_bytes",
        "peer_quarantined_bytes",
        "peer_connections",
    }
)

# What the periodic line of vLLM's log shows, as far as it happened.
LOGGED = (
    "lookups",
    "lookup_hits",
    "hit_tokens",
    "bytes_loaded",
    "bytes_saved",
    "saves_skipped",
    "loads_failed_on_any_rank",
    "integrity_failures",
    "peer_takes",
    "peer_transfers_failed",
)


class Side(Protocol):
    """A side of the connector, as far as metrics are concerned."""

    def changes(self) -> dict[str, int] | None:
        """By how much counters have changed since the last call."""


class TesseraStats(KVConnectorStats):
    """What changed, by name."""

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> TesseraStats:
        """Add what another rank or an interval before counted."""
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log shows of an interval."""
        return {name: self.data[name] for name in LOGGED if self.data.get(name)}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data


def read(side: Side | None) -> TesseraStats | None:
    """What changed on a side since the last reading; None if nothing did."""
    try:
        changed = side.changes() if side is not None else None
    except Exception:
        # A metric is never worth a step.
        logger.debug("Tessera's counters cannot be read", exc_info=True)
        return None
    return TesseraStats(data=changed) if changed else None


class TesseraPromMetrics(KVConnectorPromMetrics):
    """One Prometheus metric for each native value, `vllm:tessera_NAME`.

    The prefix is the engine's, which shows and unregisters only what bears it.
    """

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """Register every name there is, so that a counter is there before it first counts."""
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, gauge = metric_types[Counter], metric_types[Gauge]
        self._metrics: dict[int, dict[str, Any]] = {index: {} for index in per_engine_labelvalues}
        for name in _native.metric_names():
            metric = (gauge if name in GAUGES else counter)(
                name=f"vllm:tessera_{name}",
                documentation=f"Tessera: {name.replace('_', ' ')}.",
                labelnames=labelnames,
            )
            for index, labels in per_engine_labelvalues.items():
                self._metrics[index][name] = metric.labels(*labels)

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        """Record what one engine counted."""
        try:
            for name, change in transfer_stats_data.items():
                self._metrics[engine_idx][name].inc(change)
        except Exception:
            logger.debug("Tessera's metrics cannot be recorded", exc_info=True)
