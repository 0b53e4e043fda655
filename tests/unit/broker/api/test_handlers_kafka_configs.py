"""Topic settings as Kafka's own tools use them: MirrorMaker copies them, kafka-reassign-partitions sets throttles."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling

DESCRIBE, INCREMENTAL = 32, 44
TOPIC, BROKER = 2, 4
SET, REMOVE = 0, 1
FROM_TOPIC, DYNAMIC, STATIC, DEFAULT = 1, 2, 4, 5
LONG_MAX = str(2**63 - 1)

INERT = {
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
}


async def _described(caller: Caller, type_: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": type_, "resource_name": name, "configuration_keys": None}
    reply = await caller.call(DESCRIBE, 4, resources=[resource], include_synonyms=True, include_documentation=False)
    return {each.name: each for each in reply.results[0].configs}


async def _change(caller: Caller, type_: int, name: str, operation: int, **configs: str | None) -> Any:
    entries = [
        {"name": key.replace("_", "."), "config_operation": operation, "value": value} for key, value in configs.items()
    ]
    resource = {"resource_type": type_, "resource_name": name, "configs": entries}
    reply = await caller.call(INCREMENTAL, 1, resources=[resource], validate_only=False)
    return reply.responses[0]


def _synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


async def test_settings_of_tiered_storage_are_taken_at_the_values_that_leave_it_off() -> None:
    async with calling() as caller:
        await caller.create_topic("t", 1, **{name.replace(".", "_"): value for name, value in INERT.items()})
        configs = await _described(caller, TOPIC, "t")
        assert {name: configs[name].value for name in INERT} == INERT
        assert {configs[name].config_source for name in INERT} == {FROM_TOPIC}
        await _change(caller, TOPIC, "t", REMOVE, remote_storage_enable=None)
        assert (await _described(caller, TOPIC, "t"))["remote.storage.enable"].config_source == DEFAULT


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("local.retention.bytes", "1000"),
        ("local.retention.ms", "1000"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("remote.storage.enable", "true"),
    ],
)
async def test_tiered_storage_is_refused_with_the_reason(name: str, value: str) -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t")
        result = await _change(caller, TOPIC, "t", SET, **{name.replace(".", "_"): value})
        assert result.error_code is ErrorCode.invalid_config
        assert name in result.error_message
        assert "tiered storage" in result.error_message
        assert topic.overrides.keys() <= {"ottla.durability"}


@pytest.mark.parametrize("name", ["leader_replication_throttled_replicas", "follower_replication_throttled_replicas"])
async def test_lists_of_throttled_replicas_are_checked_as_in_kafka(name: str) -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t")
        for value in ("*", "0:1", " 0:1 , 1:2 ", "0:1,0:2,0:3", ""):
            assert (await _change(caller, TOPIC, "t", SET, **{name: value})).error_code is ErrorCode.none, value
            assert topic.overrides[name.replace("_", ".")] == value
        for value in ("none", "0:x", "0", "0:1,*", "-1:1", "0:1:2"):
            refused = await _change(caller, TOPIC, "t", SET, **{name: value})
            assert refused.error_code is ErrorCode.invalid_config, value
            assert "0:1" in refused.error_message  # shows a valid value
        assert (await _change(caller, TOPIC, "t", REMOVE, **{name: None})).error_code is ErrorCode.none


async def test_mirror_maker_leaves_the_settings_of_ottla_alone() -> None:
    """It copies settings that are neither read-only nor sensitive, to a cluster that rejects topics with unknown ones;
    and an archive group of one cluster has no meaning in the other."""
    async with calling() as caller:
        await caller.create_topic("t", ottla_durability="cache", ottla_archive_group="archive", retention_ms="1000")
        configs = await _described(caller, TOPIC, "t")
        assert configs["ottla.archive.group"].value == "archive"
        copied = {name for name, each in configs.items() if not each.read_only and not each.is_sensitive}
        assert "retention.ms" in copied
        assert [name for name in copied if name.startswith("ottla.")] == []
        # The flag is for tools that copy settings: the setting can still be altered.
        assert (await _change(caller, TOPIC, "t", SET, ottla_archive_group="other")).error_code is ErrorCode.none


async def test_synonyms_of_a_broker_without_settings() -> None:
    async with calling() as caller:
        await caller.create_topic("t")
        configs = await _described(caller, TOPIC, "t")
        assert _synonyms(configs["flush.ms"]) == [("log.flush.scheduler.interval.ms", LONG_MAX, DEFAULT)]
        assert _synonyms(configs["segment.ms"]) == [("log.roll.hours", "168", DEFAULT)]
        assert _synonyms(configs["segment.jitter.ms"]) == [("log.roll.jitter.hours", "0", DEFAULT)]
        assert _synonyms(configs["retention.ms"]) == [("log.retention.hours", "168", DEFAULT)]
        assert _synonyms(configs["remote.storage.enable"]) == []
        assert configs["segment.ms"].value == configs["retention.ms"].value == "604800000"


async def test_synonyms_have_the_value_that_was_given_in_its_own_unit() -> None:
    given = {"log_retention_minutes": "600", "log_roll_hours": "2", "log_roll_ms": "5000", "log_flush_interval_ms": "7"}
    async with calling(**given) as caller:
        topic = await caller.create_topic("t")
        await _change(caller, BROKER, "", SET, log_flush_interval_ms="9")
        configs = await _described(caller, TOPIC, "t")
        assert _synonyms(configs["retention.ms"]) == [
            ("log.retention.minutes", "600", STATIC),
            ("log.retention.hours", "168", DEFAULT),
        ]
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("36000000", STATIC)
        assert _synonyms(configs["segment.ms"]) == [
            ("log.roll.ms", "5000", STATIC),
            ("log.roll.hours", "2", STATIC),
            ("log.roll.hours", "168", DEFAULT),
        ]
        assert _synonyms(configs["flush.ms"]) == [
            ("log.flush.interval.ms", "9", DYNAMIC),
            ("log.flush.interval.ms", "7", STATIC),
            ("log.flush.scheduler.interval.ms", LONG_MAX, DEFAULT),
        ]
        assert (topic.config.segment_ms, topic.config.flush_ms) == (5000, 9)


async def test_the_flush_scheduler_interval_counts_where_nothing_else_is_given() -> None:
    async with calling(log_flush_scheduler_interval_ms="3000") as caller:
        topic = await caller.create_topic("t")
        assert topic.config.flush_ms == 3000


async def test_the_brokers_units_have_kafkas_defaults() -> None:
    async with calling(log_retention_minutes="600") as caller:
        configs = await _described(caller, BROKER, "1")
        assert {name: configs[name].value for name in ("log.retention.ms", "log.roll.ms", "log.flush.interval.ms")} == {
            "log.retention.ms": None,
            "log.roll.ms": None,
            "log.flush.interval.ms": None,
        }
        assert (configs["log.retention.hours"].value, configs["log.roll.hours"].value) == ("168", "168")
        assert configs["log.flush.scheduler.interval.ms"].value == LONG_MAX
        assert _synonyms(configs["log.retention.minutes"]) == [
            ("log.retention.minutes", "600", STATIC),
            ("log.retention.hours", "168", DEFAULT),
        ]
        assert _synonyms(configs["log.retention.ms"]) == []
        assert configs["log.retention.minutes"].read_only
        assert not configs["log.retention.ms"].read_only


async def test_rates_of_throttles_are_dynamic_settings_of_a_broker() -> None:
    async with calling() as caller:
        rates = {"leader_replication_throttled_rate": "1000", "follower_replication_throttled_rate": "2000"}
        moves = {"replica_alter_log_dirs_io_max_bytes_per_second": "5"}
        assert (await _change(caller, BROKER, "1", SET, **rates, **moves)).error_code is ErrorCode.none
        config = caller.broker.config
        assert config.leader_replication_throttled_rate == 1000
        assert config.follower_replication_throttled_rate == 2000
        described = await _described(caller, BROKER, "1")
        assert described["leader.replication.throttled.rate"].value == "1000"
        assert described["leader.replication.throttled.rate"].config_source == DYNAMIC
        refused = await _change(caller, BROKER, "1", SET, leader_replication_throttled_rate="-1")
        assert refused.error_code is ErrorCode.invalid_config
        removed = dict.fromkeys([*rates, *moves])
        assert (await _change(caller, BROKER, "1", REMOVE, **removed)).error_code is ErrorCode.none
        assert caller.broker.config.leader_replication_throttled_rate == int(LONG_MAX)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("create.topic.policy.class.name", "would not be enforced"),
        ("ssl.engine.factory.class", "loads no classes of Java"),
        ("log.retentoin.ms", "Did you mean log.retention.ms?"),
    ],
)
async def test_a_running_broker_does_not_take_what_would_be_unsafe_or_unknown(name: str, reason: str) -> None:
    async with calling() as caller:
        refused = await _change(caller, BROKER, "1", SET, **{name.replace(".", "_"): "4"})
        assert refused.error_code is ErrorCode.invalid_config
        assert reason in refused.error_message
        assert name not in await _described(caller, BROKER, "1")


async def test_a_running_broker_takes_settings_of_kafka_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka's test 0081 sets this one."""
    async with calling() as caller:
        changed = await _change(caller, BROKER, "1", SET, sasl_kerberos_min_time_before_relogin="58000")
        assert changed.error_code is ErrorCode.none
    assert "sasl.kerberos.min.time.before.relogin was set on a running broker and has no effect" in caplog.text
