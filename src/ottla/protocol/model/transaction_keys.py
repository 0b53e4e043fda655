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
        "The longest time-out that a transactional producer may ask for.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether the first batch of a transaction in a partition is taken only if the transaction's coordinator says "
        "that the transaction goes on. Without it, a batch that comes late may leave a transaction open for ever.",
        dynamic=False,
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        "3600000",
        "How often the coordinator looks for transactional ids that nobody has used for "
        "transactional.id.expiration.ms.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        _INT,
        "2",
        "How many replicas of __transaction_state must be in sync, when it is created. If it has fewer replicas, all "
        "of them.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        _INT,
        "50",
        "The partitions of __transaction_state, when it is created. A transactional id belongs to one of them by its "
        "name.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        STATE_REPLICATION_FACTOR,
        _INT,
        "3",
        "The replicas of __transaction_state. If brokers are missing when it is created, it gets fewer, and the others "
        "when more brokers join. If this is set, transactions wait until there are brokers for a majority of it.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        _INT,
        "104857600",
        "The segment size of __transaction_state, when it is created.",
        Range(14),
        dynamic=False,
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        _INT,
        "604800000",
        "A transactional id without a transaction is forgotten after this time.",
        Range(1),
        dynamic=False,
    ),
]
