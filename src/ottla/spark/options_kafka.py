"""The `kafka.*` options: those that map to a setting of the client, those that have no effect, and those that are
rejected.

The names are Kafka's. Settings of Kafka's own client without a counterpart here (socket buffers, heartbeats of a group
that nobody joins) are accepted and have no effect. Settings that would change what a job reads, writes or trusts are
rejected, with the reason.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from ottla.spark.options_text import OptionError, to_bool, to_int

PREFIX = "kafka."
SERVERS = "kafka.bootstrap.servers"
GROUP = "kafka.group.id"

Parser = Callable[[str, str], Any]


def _isolation(name: str, text: str) -> str:
    if text not in {"read_uncommitted", "read_committed"}:
        raise OptionError(name, text, "must be read_uncommitted or read_committed")
    return text


def _acks(name: str, text: str) -> str | int:
    known: dict[str, str | int] = {"all": "all", "-1": "all", "1": 1, "0": 0}
    if text not in known:
        raise OptionError(name, text, "must be all, 1 or 0")
    return known[text]


def _text(name: str, text: str) -> str:
    return text


_EVERYWHERE: dict[str, tuple[str, Parser]] = {
    "client.id": ("client_id", _text),
    "request.timeout.ms": ("request_timeout_ms", to_int),
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", to_int),
    "metadata.max.age.ms": ("metadata_max_age_ms", to_int),
}
FOR_CONSUMERS: dict[str, tuple[str, Parser]] = {
    **_EVERYWHERE,
    "isolation.level": ("isolation_level", _isolation),
    "check.crcs": ("check_crcs", to_bool),
    "client.rack": ("client_rack", _text),
    "fetch.max.bytes": ("fetch_max_bytes", to_int),
    "fetch.min.bytes": ("fetch_min_bytes", to_int),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", to_int),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", to_int),
}
FOR_PRODUCERS: dict[str, tuple[str, Parser]] = {
    **_EVERYWHERE,
    "acks": ("acks", _acks),
    "enable.idempotence": ("idempotence", to_bool),
    "compression.type": ("compression", _text),
    "linger.ms": ("linger_ms", to_int),
    "batch.size": ("batch_bytes", to_int),
    "buffer.memory": ("buffer_bytes", to_int),
    "max.request.size": ("max_request_bytes", to_int),
    "max.in.flight.requests.per.connection": ("max_in_flight", to_int),
    "delivery.timeout.ms": ("delivery_timeout_ms", to_int),
    "retry.backoff.ms": ("retry_backoff_ms", to_int),
    "transaction.timeout.ms": ("transaction_timeout_ms", to_int),
}

_REFUSED = {
    "auto.offset.reset": "set the start with startingOffsets; Spark continues from its checkpoint",
    "enable.auto.commit": "Spark's checkpoint has the offsets; set kafka.group.id to also commit them to a group",
    "key.deserializer": "keys are read as binary; cast the column",
    "value.deserializer": "values are read as binary; cast the column",
    "key.serializer": "keys are written unchanged; cast the column to string or binary",
    "value.serializer": "values are written unchanged; cast the column to string or binary",
    "interceptor.classes": "this client has no interceptors",
    "security.providers": "this client connects with PLAINTEXT only",
    "config.providers": "variables in values are not resolved",
    "partitioner.ignore.keys": "the key of a row always determines its partition",
    "partitioner.class": "rows use Java's default partitioner or the column partition",
    "transactional.id": "the query determines the transactional ids; ottla.delivery enables or disables transactions",
}
_SECURITY = ("sasl.", "ssl.")
_ELSEWHERE = frozenset({"bootstrap.servers", "group.id", "security.protocol"})
WITHOUT_EFFECT = frozenset(
    """
    allow.auto.create.topics auto.commit.interval.ms client.dns.lookup connections.max.idle.ms default.api.timeout.ms
    enable.metrics.push exclude.internal.topics group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms max.poll.interval.ms max.poll.records metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    retry.backoff.max.ms send.buffer.bytes session.timeout.ms share.acknowledgement.mode share.acquire.mode
    socket.connection.setup.timeout.max.ms compression.gzip.level compression.lz4.level compression.zstd.level
    max.block.ms metadata.max.idle.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    retries transaction.two.phase.commit.enable
    """.split()  # noqa: SIM905 - names of settings read better as text
)
"""Other settings of Kafka 4.3's consumer and producer: details of their buffers, groups, metrics and retries."""


def kafka_settings(options: Mapping[str, str], known: Mapping[str, tuple[str, Parser]]) -> dict[str, Any]:
    """Returns arguments for the consumer or producer. Raises OptionError for a rejected option."""
    settings: dict[str, Any] = {}
    for full_name, text in options.items():
        name = full_name.lower().removeprefix(PREFIX)
        if not full_name.lower().startswith(PREFIX):
            continue
        check_security(full_name, name, text)
        if name in _REFUSED:
            raise OptionError(full_name, text, f"is not supported: {_REFUSED[name]}")
        if name in known:
            argument, parse = known[name]
            settings[argument] = parse(full_name, text.strip())
        else:
            _check_slip(full_name, name)
    return settings


def _check_slip(full_name: str, name: str) -> None:
    """Rejects a name that is close to a Kafka setting but not one: it would silently have no effect."""
    everything = {*FOR_CONSUMERS, *FOR_PRODUCERS, *_REFUSED, *_ELSEWHERE, *WITHOUT_EFFECT}
    near = () if name in everything else difflib.get_close_matches(name, everything, n=1, cutoff=0.87)
    if near:
        raise OptionError(full_name, "", f"is not an option; did you mean {PREFIX}{near[0]}?")


def check_security(full_name: str, name: str, text: str) -> None:
    """Rejects encryption and authentication settings, because a user who asks for them must not be connected
    without."""
    if name == "security.protocol" and text.strip().upper() != "PLAINTEXT":
        raise OptionError(full_name, text, "is not supported: this client connects with PLAINTEXT only")
    if name.startswith(_SECURITY):
        shown = "..."  # it may be a password
        raise OptionError(full_name, shown, "is not supported: this client connects with PLAINTEXT only")


def bootstrap_servers(options: Mapping[str, str]) -> str:
    """Returns the option `kafka.bootstrap.servers`. Raises OptionError if it is missing."""
    servers = options.get(SERVERS, "").strip()
    if not servers:
        raise OptionError(SERVERS, "", 'must be given, for example "127.0.0.1:9092"')
    return servers
