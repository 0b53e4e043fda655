"""Translates the broker's configuration for the transaction coordinator."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.coordinators.internal_topic import TopicPlan
from ottla.machines.transactions.config import TransactionConfig
from ottla.protocol.model.broker_config import BrokerConfig
from ottla.protocol.model.transaction_keys import STATE_REPLICATION_FACTOR

STATE_TOPIC = "__transaction_state"


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """Returns the configuration of the transaction coordinator's machine."""
    return TransactionConfig(
        timeout_max_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        id_expiration_check_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
    )


def state_topic_plan(config: BrokerConfig) -> TopicPlan:
    """Returns the configured properties of `__transaction_state`."""

    def configs(replication_factor: int) -> Mapping[str, str]:
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(min(config.transaction_state_log_min_isr, replication_factor)),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }

    return TopicPlan(
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        STATE_REPLICATION_FACTOR,
        configs,
    )
