"""Configurations through the protocol: reading them with their sources, replacing and changing them."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER = 2, 4
SET, REMOVE, APPEND, SUBTRACT = range(4)
FROM_TOPIC, DYNAMIC, STATIC, DEFAULT = 1, 2, 4, 5


async def _describe(caller: Caller, type_: int, name: str, *keys: str, version: int = 4) -> Any:
    resource = {"resource_type": type_, "resource_name": name, "configuration_keys": list(keys) or None}
    values: dict[str, Any] = {"resources": [resource], "include_synonyms": True}
    if version >= 3:
        values["include_documentation"] = True
    reply = await caller.call(DESCRIBE, version, **values)
    return reply.results[0]


async def _alter(caller: Caller, type_: int, name: str, configs: dict[str, str | None], **values: Any) -> Any:
    pairs = [{"name": key, "value": value} for key, value in configs.items()]
    resource = {"resource_type": type_, "resource_name": name, "configs": pairs}
    reply = await caller.call(ALTER, 2, resources=[resource], **{"validate_only": False, **values})
    return reply.responses[0]


async def _change(caller: Caller, type_: int, name: str, *changes: tuple[int, str, str | None], **values: Any) -> Any:
    configs = [{"name": key, "config_operation": operation, "value": value} for operation, key, value in changes]
    resource = {"resource_type": type_, "resource_name": name, "configs": configs}
    reply = await caller.call(INCREMENTAL, 1, resources=[resource], **{"validate_only": False, **values})
    return reply.responses[0]


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_configuration_with_its_sources(version: int) -> None:
    async with calling(log_segment_bytes="2097152", log_retention_hours="2") as caller:
        await caller.create_topic("t", max_message_bytes="2000")
        result = await _describe(caller, TOPIC, "t", version=version)
        assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.none, TOPIC, "t")
        configs = {each.name: each for each in result.configs}
        values = {name: (each.value, each.config_source) for name, each in configs.items()}
        assert values["max.message.bytes"] == ("2000", FROM_TOPIC)
        assert values["segment.bytes"] == ("2097152", STATIC)
        assert values["retention.ms"] == ("7200000", STATIC)
        assert values["cleanup.policy"] == ("delete", DEFAULT)
        assert values["min.insync.replicas"] == ("1", DEFAULT)
        synonyms = [(each.name, each.value, each.source) for each in configs["max.message.bytes"].synonyms]
        assert synonyms == [("max.message.bytes", "2000", FROM_TOPIC), ("message.max.bytes", "1048588", DEFAULT)]
        assert configs["ottla.durability"].read_only
        assert not configs["segment.bytes"].read_only
        if version >= 3:
            assert configs["segment.bytes"].config_type == 3
            assert configs["segment.bytes"].documentation


async def test_only_the_keys_that_were_asked_for() -> None:
    async with calling() as caller:
        await caller.create_topic("t")
        result = await _describe(caller, TOPIC, "t", "retention.ms", "no.such.key")
        assert [each.name for each in result.configs] == ["retention.ms"]


async def test_the_brokers_configuration() -> None:
    async with calling(num_partitions="3") as caller:
        assert (await _change(caller, BROKER, "1", (SET, "log.retention.ms", "5000"))).error_code is ErrorCode.none
        result = await _describe(caller, BROKER, "1")
        values = {each.name: (each.value, each.config_source, each.read_only) for each in result.configs}
        assert values["num.partitions"] == ("3", STATIC, False)
        assert values["log.retention.ms"] == ("5000", DYNAMIC, False)
        assert values["socket.request.max.bytes"] == ("104857600", DEFAULT, True)
        defaults = await _describe(caller, BROKER, "")
        assert [(each.name, each.value) for each in defaults.configs] == [("log.retention.ms", "5000")]


@pytest.mark.parametrize(
    ("type_", "name", "error"),
    [
        (TOPIC, "missing", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "in/valid", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (8, "1", ErrorCode.invalid_request),
    ],
)
async def test_resources_that_are_not_there(type_: int, name: str, error: ErrorCode) -> None:
    async with calling() as caller:
        assert (await _describe(caller, type_, name)).error_code is error
        assert (await _alter(caller, type_, name, {})).error_code is error
        assert (await _change(caller, type_, name)).error_code is error


async def test_alter_replaces_every_override() -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t", retention_ms="1000", segment_bytes="4096", ottla_durability="memory")
        result = await _alter(caller, TOPIC, "t", {"retention.ms": "2000"}, validate_only=True)
        assert result.error_code is ErrorCode.none
        assert topic.config.retention_ms == 1000
        assert (await _alter(caller, TOPIC, "t", {"retention.ms": "2000"})).error_code is ErrorCode.none
        assert (topic.config.retention_ms, topic.config.segment_bytes) == (2000, 1 << 30)
        assert topic.config.durability == "memory"  # not in the request, but kept


@pytest.mark.parametrize(
    ("configs", "error"),
    [
        ({"retention.ms": "never"}, ErrorCode.invalid_config),
        ({"retention.ms": None}, ErrorCode.invalid_config),
        ({"no.such.key": "1"}, ErrorCode.invalid_config),
        ({"ottla.durability": "memory"}, ErrorCode.invalid_config),
        ({"ottla.durability": "disk"}, ErrorCode.none),
    ],
)
async def test_alter_checks(configs: dict[str, str | None], error: ErrorCode) -> None:
    async with calling() as caller:
        await caller.create_topic("t")
        result = await _alter(caller, TOPIC, "t", configs)
        assert result.error_code is error
        assert bool(result.error_message) == (error is not ErrorCode.none)


async def test_incremental_changes() -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t", retention_ms="1000", segment_bytes="4096")
        result = await _change(
            caller,
            TOPIC,
            "t",
            (SET, "max.message.bytes", "3000"),
            (REMOVE, "segment.bytes", None),
            (APPEND, "cleanup.policy", "compact"),
        )
        assert result.error_code is ErrorCode.none
        assert topic.overrides == {
            "ottla.durability": "disk",
            "retention.ms": "1000",
            "max.message.bytes": "3000",
            "cleanup.policy": "delete,compact",
        }
        assert topic.config.cleanup_policy == {"compact", "delete"}
        await _change(caller, TOPIC, "t", (SUBTRACT, "cleanup.policy", "delete"))
        assert topic.config.cleanup_policy == {"compact"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([(SET, "retention.ms", "x")], ErrorCode.invalid_config),
        ([(SET, "retention.ms", None)], ErrorCode.invalid_request),
        ([(APPEND, "retention.ms", "1")], ErrorCode.invalid_config),
        ([(SUBTRACT, "cleanup.policy", "delete")], ErrorCode.invalid_config),
        ([(9, "retention.ms", "1")], ErrorCode.invalid_request),
        ([(SET, "retention.ms", "1"), (REMOVE, "retention.ms", None)], ErrorCode.invalid_request),
        ([(SET, "no.such.key", "1")], ErrorCode.invalid_config),
        ([(SET, "ottla.durability", "cache")], ErrorCode.invalid_config),
    ],
)
async def test_incremental_checks(changes: list[tuple[int, str, str | None]], error: ErrorCode) -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t")
        result = await _change(caller, TOPIC, "t", *changes)
        assert result.error_code is error
        assert result.error_message
        assert topic.overrides.keys() <= {"ottla.durability"}


async def test_what_the_broker_takes_only_at_its_start() -> None:
    async with calling() as caller:
        result = await _change(caller, BROKER, "1", (SET, "node.id", "5"))
        assert result.error_code is ErrorCode.invalid_request
        unknown = await _change(caller, BROKER, "1", (SET, "log.retention.m", "5"))
        assert unknown.error_code is ErrorCode.invalid_config
        assert "log.retention.ms" in unknown.error_message


async def test_a_broker_default_reaches_the_topics() -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t")
        await _alter(caller, BROKER, "", {"log.retention.ms": "4000"})
        assert topic.config.retention_ms == 4000
        await _alter(caller, BROKER, "", {})
        assert topic.config.retention_ms == 604_800_000


async def test_a_resource_that_is_named_twice_is_left_alone() -> None:
    async with calling() as caller:
        topic = await caller.create_topic("t")
        pairs = [{"name": "retention.ms", "value": "1"}]
        resource = {"resource_type": TOPIC, "resource_name": "t", "configs": pairs}
        reply = await caller.call(ALTER, 2, resources=[resource, resource], validate_only=False)
        assert {each.error_code for each in reply.responses} == {ErrorCode.invalid_request}
        assert topic.config.retention_ms == 604_800_000
