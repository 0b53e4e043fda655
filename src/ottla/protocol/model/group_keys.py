"""Settings for consumer groups, with Kafka's names and defaults. A part of the broker's configuration."""

from __future__ import annotations

from ottla.protocol.model.config_keys import INT_MAX, ConfigKey, ConfigType, OneOf, Range

_STRING, _INT, _LONG, _LIST = ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.LIST

ASSIGNORS = "group.consumer.assignors"
OFFSETS_REPLICATION_FACTOR = "offsets.topic.replication.factor"

DEVELOPMENT_DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}
"""Defaults for brokers on one machine that are used to try things out: nobody has to wait for members that never join.
Kafka's quick start sets this too."""

GROUP_KEYS = [
    ConfigKey(
        ASSIGNORS,
        _LIST,
        "uniform,range",
        "The assignors that members of the consumer protocol may choose; the first is used for members that choose "
        "none.",
        OneOf(("uniform", "range")),
        dynamic=False,
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        "5000",
        "The heartbeat interval that the broker gives to members of the consumer protocol.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "group.consumer.max.size",
        _INT,
        str(INT_MAX),
        "Maximum number of members in a group of the consumer protocol.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        _STRING,
        "bidirectional",
        "The direction in which a group with members may change between the classic and the consumer protocol.",
        OneOf(("bidirectional", "upgrade", "downgrade", "disabled")),
        dynamic=False,
    ),
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        "45000",
        "A member of the consumer protocol that sends no heartbeat for this long is removed from its group.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        _INT,
        "3000",
        "How long the first rebalance of a classic group waits for more members. It is 0 with `ottla up` and in tests.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "group.max.session.timeout.ms",
        _INT,
        "1800000",
        "Maximum session timeout that a member of a classic group may request.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "group.max.size", _INT, str(INT_MAX), "Maximum number of members in a classic group.", Range(1), dynamic=False
    ),
    ConfigKey(
        "group.min.session.timeout.ms",
        _INT,
        "6000",
        "Minimum session timeout that a member of a classic group may request.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "offset.metadata.max.bytes",
        _INT,
        "4096",
        "Maximum length of the metadata that a consumer may commit with an offset.",
        Range(0),
        dynamic=False,
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        _LONG,
        "600000",
        "How often the coordinator looks for committed offsets that have expired.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "offsets.retention.minutes",
        _INT,
        "10080",
        "How long committed offsets are kept after the last member of a group has left or, without members, after "
        "the commit.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "offsets.topic.num.partitions",
        _INT,
        "50",
        "Number of partitions of __consumer_offsets when it is created. The name of a group determines its partition.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        OFFSETS_REPLICATION_FACTOR,
        ConfigType.INT,
        "3",
        "The replication factor of __consumer_offsets. If there are too few brokers when it is created, it starts "
        "with fewer replicas and gets the others when more brokers join. If this is set, groups wait until there are "
        "enough brokers for a majority of the replicas.",
        Range(1),
        dynamic=False,
    ),
    ConfigKey(
        "offsets.topic.segment.bytes",
        _INT,
        "104857600",
        "The segment size of __consumer_offsets when it is created.",
        Range(14),
        dynamic=False,
    ),
]
