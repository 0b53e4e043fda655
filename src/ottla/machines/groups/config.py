"""Settings of the group coordinator, with Kafka's names and defaults, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MINUTE_MS = 60_000
NO_LIMIT = 0x7FFFFFFF


class MigrationPolicy(StrEnum):
    """group.consumer.migration.policy: the directions in which a group with members may change its protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        """True if a classic group may become a consumer group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        """True if a consumer group may become a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the group coordinator."""

    session_timeout_min_ms: int = 6_000
    """group.min.session.timeout.ms; this and the next three belong to the classic protocol."""
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    size_max: int = NO_LIMIT
    new_member_join_timeout_ms: int = 5 * MINUTE_MS
    """A new member that waits for its first generation cannot send heartbeats. Kafka's value; not configurable."""
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * MINUTE_MS
    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms; this and the following belong to the consumer protocol."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_size_max: int = NO_LIMIT
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Available assignors; the first is the default."""
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
