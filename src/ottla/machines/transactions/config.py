"""Settings of the transaction coordinator, with Kafka's defaults, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings of the transaction coordinator."""

    timeout_max_ms: int = 15 * MINUTE_MS
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 7 * 24 * 60 * MINUTE_MS
    """transactional.id.expiration.ms"""
    id_expiration_check_interval_ms: int = 60 * MINUTE_MS
    """transaction.remove.expired.transaction.cleanup.interval.ms"""
    marker_backoff_min_ms: int = 20
    """Delay before a failed marker write is retried; doubles with each failure. Not configurable in Kafka."""
    marker_backoff_max_ms: int = 5_000
