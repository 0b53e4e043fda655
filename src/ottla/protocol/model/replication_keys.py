"""Settings for replication throttles: which replicas of a topic are throttled, and to which rate on each broker.

The names are Kafka's, so `kafka-reassign-partitions --throttle` sets and removes them.
"""

from __future__ import annotations

from ottla.protocol.model.config_keys import LONG_MAX, ConfigKey, ConfigType, Range, ReplicaList

LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_REPLICAS = "follower.replication.throttled.replicas"
LEADER_THROTTLED_RATE = "leader.replication.throttled.rate"
FOLLOWER_THROTTLED_RATE = "follower.replication.throttled.rate"

THROTTLED_REPLICAS = (
    ConfigKey(
        FOLLOWER_THROTTLED_REPLICAS,
        ConfigType.LIST,
        "",
        f"The replicas that followers throttle to {FOLLOWER_THROTTLED_RATE} while they are not in sync. "
        "`kafka-reassign-partitions --throttle` sets it.",
        ReplicaList(),
    ),
    ConfigKey(
        LEADER_THROTTLED_REPLICAS,
        ConfigType.LIST,
        "",
        f"The replicas whose leader limits the data that it sends to out-of-sync followers to {LEADER_THROTTLED_RATE}. "
        "`kafka-reassign-partitions --throttle` sets it.",
        ReplicaList(),
    ),
)

THROTTLED_RATES = (
    ConfigKey(
        FOLLOWER_THROTTLED_RATE,
        ConfigType.LONG,
        str(LONG_MAX),
        "Maximum number of bytes per second that this broker fetches, in total, for the replicas in "
        f"{FOLLOWER_THROTTLED_REPLICAS} that are not in sync.",
        Range(0),
    ),
    ConfigKey(
        LEADER_THROTTLED_RATE,
        ConfigType.LONG,
        str(LONG_MAX),
        "Maximum number of bytes per second that this broker sends, in total, as the leader of the replicas in "
        f"{LEADER_THROTTLED_REPLICAS} to followers that are not in sync.",
        Range(0),
    ),
)

DIRECTORY_MOVE_RATE = ConfigKey(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    ConfigType.LONG,
    str(LONG_MAX),
    "Accepted for compatibility with Kafka's tools, without effect: a broker has one data directory, so replicas "
    "do not move between directories.",
    Range(0),
)
