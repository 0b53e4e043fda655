"""Settings for transactions, with Kafka's names and defaults. A part of the broker's configuration."""

from __future__ import annotations

from ottla.protocol.model.config_keys import ConfigKey, ConfigType, Range

_INT = ConfigType.INT

STATE_REPLICATION_FACTOR = "transaction.state.log.replication.factor"

TRANSACTION_KEYS = [
    ConfigKey(
        "transaction.max.timeout.ms",
        _INT,
        "900000",
        "Maximum timeout that a transactional producer may request.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether the first batch of a transaction in a partition is accepted only if the coordinator confirms that "
        "the transaction is ongoing. Without this check, a late batch may leave a transaction open forever.",
        dynamic=False,
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        "3600000",
        "How often the coordinator looks for transactional ids that have not been used for "
        "transactional.id.expiration.ms.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        _INT,
        "2",
        "Number of replicas of __transaction_state that must be in sync, set when it is created. If it has fewer "
        "replicas, all of them must be in sync.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        _INT,
        "50",
        "Number of partitions of __transaction_state when it is created. The transactional id determines its "
        "partition.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        STATE_REPLICATION_FACTOR,
        _INT,
        "3",
        "The replication factor of __transaction_state. If there are too few brokers when it is created, it starts "
        "with fewer replicas and gets the others when more brokers join. If this is set, transactions wait until "
        "there are enough brokers for a majority of the replicas.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        _INT,
        "104857600",
        "The segment size of __transaction_state when it is created.",
        Range(14),
        dynamic=False,
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        "604800000",
        "A transactional id without a transaction is removed after this time.",
        Range(1),
        dynamic=False,
    ),
]
