"""Broker settings of Apache Kafka 4.3 that Ottla does not have, with the reason for each.

Most of them tune machinery that Ottla does not contain: a broker accepts them and reports that they have no effect.
Others promise something that Ottla would not keep, such as access control. A broker that ignored those would be open,
or lose its limits, without anybody noticing. It therefore refuses to start with them.
"""

from __future__ import annotations

from typing import NamedTuple


class IneffectiveSettings(NamedTuple):
    """Settings that are accepted and have no effect."""

    reason: str
    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()


class UnsafeSettings(NamedTuple):
    """Settings with which a broker refuses to start."""

    reason: str
    """What a user would wrongly rely on, and what to do."""
    names: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    harmless: tuple[tuple[str, str], ...] = ()
    """Names with a value that matches what Ottla does anyway. An empty value always does."""


def _names(text: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(prefix + word for word in text.split())


WITHOUT_EFFECT = (
    IneffectiveSettings(
        "a broker runs on one event loop, without Kafka's thread pools and queues",
        _names(
            "background.threads num.io.threads num.network.threads num.recovery.threads.per.data.dir "
            "num.replica.alter.log.dirs.threads num.replica.fetchers log.cleaner.threads "
            "group.coordinator.background.threads group.coordinator.threads queued.max.requests "
            "delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests "
            "producer.purgatory.purge.interval.requests"
        ),
    ),
    IneffectiveSettings(
        "buffers, timers and retries of Kafka's own implementation",
        _names(
            "add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms "
            "group.coordinator.append.linger.ms group.coordinator.cached.buffer.max.bytes "
            "log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.flush.offset.checkpoint.interval.ms "
            "log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms offsets.commit.timeout.ms "
            "offsets.load.buffer.size offsets.topic.compression.codec producer.id.expiration.check.interval.ms "
            "replica.high.watermark.checkpoint.interval.ms server.max.startup.time.ms "
            "transaction.abort.timed.out.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size "
            "unclean.leader.election.interval.ms unstable.api.versions.enable unstable.feature.versions.enable"
        ),
    ),
    IneffectiveSettings(
        "the operating system chooses the size of socket buffers",
        _names(
            "replica.socket.receive.buffer.bytes socket.listen.backlog.size socket.receive.buffer.bytes "
            "socket.send.buffer.bytes"
        ),
    ),
    IneffectiveSettings(
        "replication chooses its own sizes and times",
        _names(
            "replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes "
            "replica.fetch.wait.max.ms replica.socket.timeout.ms request.timeout.ms "
            "socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms"
        ),
    ),
    IneffectiveSettings(
        "clusters use the store in ottla.coordination instead of a KRaft quorum",
        _names(
            "broker.heartbeat.interval.ms controlled.shutdown.enable controller.listener.names "
            "controller.performance.always.log.threshold.ms controller.performance.sample.period.ms "
            "controller.socket.timeout.ms early.start.listeners initial.broker.registration.timeout.ms "
            "internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes "
            "internal.metadata.max.batch.size.in.bytes metadata.log.dir "
            "metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms "
            "metadata.log.segment.bytes metadata.log.segment.ms "
            "metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms"
        ),
        prefixes=("controller.quorum.",),
    ),
    IneffectiveSettings(
        "Kafka 4 does not use ZooKeeper either; for a cluster, set ottla.coordination=zookeeper:HOST:PORT",
        (),
        prefixes=("zookeeper.",),
    ),
    IneffectiveSettings(
        "removed from Kafka in version 3 or 4",
        _names(
            "auto.include.jmx.reporter broker.id.generation.enable control.plane.listener.name "
            "controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms inter.broker.protocol.version "
            "log.message.downconversion.enable log.message.format.version log.message.timestamp.difference.max.ms "
            "offsets.commit.required.acks reserved.broker.max.id"
        ),
        prefixes=("password.encoder.",),
    ),
    IneffectiveSettings(
        "metrics are served to Prometheus at ottla.metrics.port",
        _names(
            "kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters metrics.num.samples "
            "metrics.recording.level metrics.sample.window.ms telemetry.max.bytes"
        ),
    ),
    IneffectiveSettings(
        "connections are limited by max.connections only, and there are no client quotas",
        _names(
            "connection.failed.authentication.delay.ms controller.quota.window.num "
            "controller.quota.window.size.seconds max.connection.creation.rate max.connections.per.ip "
            "max.connections.per.ip.overrides quota.window.num "
            "quota.window.size.seconds"
        ),
    ),
    IneffectiveSettings(
        "throttles are measured over one second",
        _names(
            "num size.seconds",
            prefix="replication.quota.window.",
        ),
    ),
    IneffectiveSettings(
        "a broker has one data directory",
        _names(
            "alter.log.dirs.replication.quota.window.num alter.log.dirs.replication.quota.window.size.seconds "
            "cordoned.log.dirs log.dir.failure.timeout.ms"
        ),
    ),
    IneffectiveSettings(
        "Kerberos is not available",
        _names(
            "kinit.cmd min.time.before.relogin principal.to.local.rules service.name ticket.renew.jitter "
            "ticket.renew.window.factor",
            prefix="sasl.kerberos.",
        ),
    ),
    IneffectiveSettings(
        "these values are fixed for consumer groups",
        _names(
            "consumer.assignment.interval.ms consumer.max.assignment.interval.ms consumer.max.heartbeat.interval.ms "
            "consumer.max.session.timeout.ms consumer.min.assignment.interval.ms consumer.min.heartbeat.interval.ms "
            "consumer.min.session.timeout.ms consumer.regex.refresh.interval.ms coordinator.rebalance.protocols",
            prefix="group.",
        ),
    ),
    IneffectiveSettings(
        "share groups and streams groups are not available",
        _names("share.fetch.purgatory.purge.interval.requests"),
        prefixes=("group.share.", "group.streams.", "share.coordinator."),
    ),
    IneffectiveSettings(
        "tiered storage is not available",
        _names(
            "follower.fetch.last.tiered.offset.enable remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms"
        ),
        prefixes=("remote.log.", "rlmm.config.", "rsm.config."),
    ),
)

UNSAFE = (
    UnsafeSettings(
        "Ottla does not have this part of SASL: it has PLAIN and SCRAM, without delegation tokens and without classes "
        "of Kafka. Remove the setting. Users and passwords of a listener belong into "
        "listener.name.NAME.MECHANISM.sasl.jaas.config",
        _names(
            "delegation.token.expiry.check.interval.ms delegation.token.expiry.time.ms delegation.token.master.key "
            "delegation.token.max.lifetime.ms delegation.token.secret.key principal.builder.class "
            "sasl.client.callback.handler.class sasl.jaas.config sasl.mechanism.controller.protocol "
            "sasl.server.callback.handler.class"
        ),
        prefixes=("sasl.",),
    ),
    UnsafeSettings(
        "Ottla's TLS is OpenSSL's and loads no classes of Java. Remove the setting",
        _names("security.providers ssl.engine.factory.class ssl.provider ssl.trustmanager.algorithm"),
        prefixes=("ssl.",),
        harmless=(("ssl.trustmanager.algorithm", "PKIX"),),
    ),
    UnsafeSettings(
        "Ottla does not load classes of Kafka, so the policy would not be enforced. Remove the setting",
        _names("alter.config.policy.class.name client.quota.callback.class create.topic.policy.class.name"),
    ),
    UnsafeSettings(
        "Ottla does not resolve variables in values. Write the values into the file, and remove the setting",
        _names("config.providers"),
        prefixes=("config.providers.",),
    ),
    UnsafeSettings(
        "tiered storage is not available, so records would stay on this broker's disk only. Remove the setting",
        _names("remote.log.storage.system.enable"),
        harmless=(("remote.log.storage.system.enable", "false"),),
    ),
    UnsafeSettings(
        "two-phase commit is not available. Remove the setting",
        _names("transaction.two.phase.commit.enable"),
        harmless=(("transaction.two.phase.commit.enable", "false"),),
    ),
    UnsafeSettings(
        "every broker can become the controller, and there are no dedicated controllers. Remove the setting",
        _names("process.roles"),
        harmless=(
            ("process.roles", "broker"),
            ("process.roles", "broker,controller"),
            ("process.roles", "controller,broker"),
        ),
    ),
)

OF_THE_PROCESS = UnsafeSettings(
    "set it in the configuration file of `ottla up` or `ottla broker`",
    _names(
        "advertised.listeners broker.id inter.broker.listener.name listener.security.protocol.map listeners log.dir "
        "log.dirs security.inter.broker.protocol"
    ),
)
"""Settings that a broker started by a program takes as arguments. If they were ignored, a listener that should be
encrypted would not be."""
