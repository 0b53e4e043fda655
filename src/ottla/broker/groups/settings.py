"""Translates the broker's configuration for the group coordinator."""

from __future__ import annotations

from ottla.broker.coordinators.internal_topic import TopicPlan
from ottla.machines.groups.config import MINUTE_MS, GroupConfig, MigrationPolicy
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.group_keys import OFFSETS_REPLICATION_FACTOR


def group_config(config: BrokerConfig) -> GroupConfig:
    """Returns the configuration of the group coordinator's machine."""
    return GroupConfig(
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        size_max=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_size_max=config.group_consumer_max_size,
        consumer_assignors=config.group_consumer_assignors,
        migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
    )


def offsets_topic_plan(config: BrokerConfig) -> TopicPlan:
    """Returns the configured properties of `__consumer_offsets`."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }
    return TopicPlan(
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        OFFSETS_REPLICATION_FACTOR,
        lambda _: configs,
    )
