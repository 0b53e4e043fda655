"""Settings for back-pressure: limits on unhandled, unacknowledged and unwritten data, beyond which clients wait."""

from __future__ import annotations

from ottla.protocol.model.config_keys import ConfigKey, ConfigType, Range

MIB = 1 << 20

BACK_PRESSURE_LIMITS = (
    ConfigKey(
        "ottla.unacknowledged.max.bytes",
        ConfigType.LONG,
        str(64 * MIB),
        "Maximum number of bytes that this broker has appended as a leader and that its in-sync replicas have not "
        "acknowledged yet; above it, producers wait. The effective limit is lower if replicas acknowledge slowly.",
        Range(MIB),
        dynamic=False,
    ),
    ConfigKey(
        "ottla.unwritten.max.bytes",
        ConfigType.LONG,
        str(256 * MIB),
        "Maximum memory for records that are not written to their segments yet, in addition to the tail cache. "
        "Producers wait when half of it is used; records are rejected when all of it is used.",
        Range(MIB),
        dynamic=False,
    ),
    ConfigKey(
        "queued.max.request.bytes",
        ConfigType.LONG,
        str(256 * MIB),
        "Maximum number of bytes of requests that are not handled yet, over all connections. Above it, connections "
        "that send large requests wait; small requests, and requests of other brokers, are still read.",
        Range(-1),
        dynamic=False,
    ),
)
