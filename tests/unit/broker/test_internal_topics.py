"""Internal topics always have the durability class `disk` (safety: topic-identity)."""

from __future__ import annotations

import pytest

from ottla.broker.storage.file_log import FileLog
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.sim_broker import BrokerBench

INTERNAL = ["__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize("name", INTERNAL)
@pytest.mark.parametrize("default", ["cache", "memory"])
async def test_a_brokers_default_does_not_apply_to_them(name: str, default: str) -> None:
    bench = BrokerBench(ottla_durability=default)
    other = await bench.create("other")
    topic = await bench.create(name, cleanup_policy="compact")
    assert (other.config.durability, topic.config.durability) == (Durability(default), Durability.DISK)
    bench.restart("none", ottla_durability="memory")
    log = bench.partition(name).log
    assert isinstance(log, FileLog)
    assert log.config.durability is Durability.DISK


@pytest.mark.parametrize("name", INTERNAL)
@pytest.mark.parametrize("durability", ["cache", "memory", " memory "])
async def test_another_class_is_refused(name: str, durability: str) -> None:
    bench = BrokerBench()
    refused = await bench.until(bench.admin.create_topic(name, 1, {"ottla.durability": durability}))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_config
    assert "always of the class disk" in (refused.message or "")
    assert bench.broker.topics.get(name) is None


async def test_their_own_class_may_be_named() -> None:
    topic = await BrokerBench(ottla_durability="cache").create(INTERNAL[0], durability="disk")
    assert topic.config.durability is Durability.DISK


async def test_they_are_created_as_disk_by_those_who_ask_for_them() -> None:
    bench = BrokerBench(ottla_durability="memory")
    topic = await bench.until(bench.broker.ensure_topic(INTERNAL[0]))
    assert not isinstance(topic, Refused)
    assert topic.config.durability is Durability.DISK


async def test_they_stay_disk() -> None:
    bench = BrokerBench(ottla_durability="cache")
    topic = await bench.create(INTERNAL[0])
    refused = await bench.until(bench.admin.alter_topic_configs(topic, {"ottla.durability": "cache"}))
    assert refused is not None
    assert refused.error is ErrorCode.invalid_config
    assert await bench.until(bench.admin.alter_topic_configs(topic, {"retention.ms": "5"})) is None
    assert topic.config.durability is Durability.DISK


async def test_other_settings_of_them_are_checked_as_always() -> None:
    bench = BrokerBench()
    refused = await bench.until(bench.admin.create_topic(INTERNAL[0], 1, {"ottla.durability": "tape"}))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_config
