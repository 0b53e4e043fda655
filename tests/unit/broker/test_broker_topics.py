"""Topics across a broker's lifetime: created, changed, deleted, created again, and loaded after a restart."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.disk import Keep
from tests.support.sim_broker import BrokerBench

CLASSES = ["disk", "cache", "memory"]


# -- create ----------------------------------------------------------------------------------------------------------


async def test_a_topic_is_there_after_a_crash_right_after_its_creation() -> None:
    bench = BrokerBench()
    topic = await bench.create("orders", 3, retention_ms="5000", durability="cache")
    bench.restart("none")
    again = bench.broker.topics.get("orders")
    assert again is not None
    assert (again.id, len(again.partitions), again.config) == (topic.id, 3, topic.config)


async def test_a_topic_that_the_catalog_does_not_take_is_not_there() -> None:
    bench = BrokerBench()
    bench.catalog.fail(errno.ENOSPC)
    refused = await bench.until(bench.admin.create_topic("orders", 1, {}))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.kafka_storage_error
    assert bench.broker.topics.get("orders") is None
    bench.catalog.fail(None)
    assert not isinstance(await bench.until(bench.admin.create_topic("orders", 1, {})), Refused)


async def test_one_name_is_created_once() -> None:
    bench = BrokerBench()
    outcomes = await bench.until(asyncio.gather(*(bench.admin.create_topic("a.b", 1, {}) for _ in range(5))))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert len(refused) == 4
    assert {refusal.error for refusal in refused} == {ErrorCode.topic_already_exists}


async def test_names_that_collide_are_refused_while_one_of_them_is_being_created() -> None:
    bench = BrokerBench()
    first, second = await bench.until(
        asyncio.gather(bench.admin.create_topic("a.b", 1, {}), bench.admin.create_topic("a_b", 1, {}))
    )
    assert not isinstance(first, Refused)
    assert isinstance(second, Refused)
    assert second.error is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(
    ("count", "replicas", "configs", "error"),
    [
        (0, 1, {}, ErrorCode.invalid_partitions),
        (-2, 1, {}, ErrorCode.invalid_partitions),
        (10_001, 1, {}, ErrorCode.invalid_partitions),
        (1, 2, {}, ErrorCode.invalid_replication_factor),
        (1, 0, {}, ErrorCode.invalid_replication_factor),
        (1, 1, {"retention.mss": "1"}, ErrorCode.invalid_config),
        (1, 1, {"retention.ms": "soon"}, ErrorCode.invalid_config),
        (1, 1, {"ottla.durability": "tape"}, ErrorCode.invalid_config),
    ],
)
async def test_what_is_refused(count: int, replicas: int, configs: dict[str, str], error: ErrorCode) -> None:
    bench = BrokerBench()
    for validate_only in (True, False):
        refused = await bench.until(
            bench.admin.create_topic("t", count, configs, replication_factor=replicas, validate_only=validate_only)
        )
        assert isinstance(refused, Refused)
        assert refused.error is error
    assert len(bench.broker.topics) == 0


async def test_validating_creates_nothing() -> None:
    bench = BrokerBench()
    assert not isinstance(await bench.until(bench.admin.create_topic("t", 1, {}, validate_only=True)), Refused)
    assert bench.broker.topics.get("t") is None
    assert bench.catalog.load().topics == []


async def test_first_use_creates_a_topic_if_that_is_allowed() -> None:
    bench = BrokerBench(num_partitions="4")
    first, second = await bench.until(asyncio.gather(bench.broker.ensure_topic("t"), bench.broker.ensure_topic("t")))
    created = [topic for topic in (first, second) if not isinstance(topic, Refused)]
    assert created
    assert len(created[0].partitions) == 4
    strict = BrokerBench(auto_create_topics_enable="false")
    refused = await strict.until(strict.broker.ensure_topic("t"))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.unknown_topic_or_partition


# -- the class is fixed (safety: topic-identity) ---------------------------------------------------------------------


@pytest.mark.parametrize("after", ["cache", "memory"])
async def test_a_new_default_does_not_change_the_class_of_a_topic(after: str) -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", value=b"kept")
    bench.restart("none", ottla_durability=after)
    topic = bench.broker.topics.get("t")
    assert topic is not None
    assert topic.config.durability == "disk"
    assert await bench.values("t") == [b"kept"]
    assert (await bench.create("u")).config.durability == after


async def test_the_class_cannot_be_altered() -> None:
    bench = BrokerBench()
    topic = await bench.create("t", durability="disk")
    refused = await bench.until(bench.admin.alter_topic_configs(topic, {"ottla.durability": "cache"}))
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_config
    assert await bench.until(bench.admin.alter_topic_configs(topic, {"retention.ms": "1"})) is None
    assert topic.config.durability == "disk"


# -- delete, and create again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("keep", ["none", "some", "all"])
async def test_a_topic_created_again_never_shows_old_data(durability: str, keep: Keep) -> None:
    bench = BrokerBench()
    old = await bench.create("t", durability=durability)
    for number in range(30):
        await bench.produce("t", value=b"old %d" % number, producer=(7, 0, number))
    assert await bench.until(bench.admin.delete_topic(old)) is None
    new = await bench.create("t", durability=durability)
    assert new.id != old.id
    assert await bench.values("t") == []
    assert bench.partition("t").log.start_offset == 0
    assert await bench.produce("t", value=b"new", producer=(7, 0, 0)) == 0, "what the old one knew of producers is gone"
    bench.restart(keep)
    expected = [b"new"] if durability == "disk" else [[], [b"new"]]
    values = await bench.values("t")
    assert values == expected or values in expected
    bench.restart("all")
    assert not [value for value in await bench.values("t") if value.startswith(b"old")]


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_deleted_topic_does_not_come_back(keep: Keep, flushed: bool) -> None:
    bench = BrokerBench()
    topic = await bench.create("t", 2)
    await bench.produce("t", 0)
    await bench.produce("t", 1)
    if flushed:
        await bench.settle(6000)
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    bench.restart(keep)
    assert bench.broker.topics.get("t") is None
    assert bench.broker.topics.by_id(topic.id) is None
    await bench.settle()
    assert bench.log_directories() == []


async def test_a_deleted_topic_is_not_set_aside_by_a_later_power_cut() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    await bench.produce("t")
    await bench.settle(6000)
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    await bench.settle()
    bench.restart("none")
    assert bench.log_directories() == []
    assert not bench.disk.files.exists("/data/set-aside")


async def test_deleting_frees_the_space() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    before = bench.disk.used_bytes
    for _ in range(50):
        await bench.produce("t", value=bytes(2000))
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    await bench.settle(6000)
    assert bench.log_directories() == []
    assert bench.disk.used_bytes < before + 600 * 1024, "the journal's ring may have grown"


async def test_who_waits_on_a_deleted_topic_is_told() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    bench.disk.stall("journal")
    appended = bench.append("t")
    assert not isinstance(appended, Refused)
    told: list[ErrorCode] = []
    topic.partitions[0].when_acknowledged(appended.end_offset, told.append)
    await bench.settle()
    assert told == []
    assert await bench.until(bench.admin.delete_topic(topic)) is None
    assert told == [ErrorCode.unknown_topic_or_partition]


async def test_deleting_twice() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    outcomes = await bench.until(asyncio.gather(bench.admin.delete_topic(topic), bench.admin.delete_topic(topic)))
    assert outcomes[0] is None
    assert outcomes[1] is not None
    assert outcomes[1].error is ErrorCode.unknown_topic_or_partition


async def test_a_topic_that_the_catalog_does_not_give_up_stays() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    await bench.produce("t", value=b"x")
    bench.catalog.fail(errno.EIO)
    refused = await bench.until(bench.admin.delete_topic(topic))
    assert refused is not None
    assert refused.error is ErrorCode.kafka_storage_error
    assert await bench.values("t") == [b"x"]


# -- changes are serialized ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["partitions", "configs"])
async def test_a_change_that_meets_a_deletion_does_not_bring_the_topic_back(change: str) -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    broker = bench.broker
    changing = (
        broker.metadata.admin.create_partitions(topic, 5)
        if change == "partitions"
        else broker.metadata.admin.alter_topic_configs(topic, {"retention.ms": "1"})
    )
    deleted, refused = await bench.until(asyncio.gather(broker.metadata.admin.delete_topic(topic), changing))
    assert deleted is None
    assert refused is not None
    assert refused.error is ErrorCode.unknown_topic_or_partition
    assert bench.catalog.load().topics == []
    bench.restart()
    assert len(bench.broker.topics) == 0


async def test_changes_at_the_same_time_are_all_kept() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    broker = bench.broker
    await bench.until(
        asyncio.gather(
            broker.metadata.admin.create_partitions(topic, 5),
            broker.metadata.admin.create_partitions(topic, 3),
            broker.metadata.admin.alter_topic_configs(topic, {"retention.ms": "77"}),
        )
    )
    bench.restart()
    again = bench.broker.topics.get("t")
    assert again is not None
    assert len(again.partitions) == 5
    assert again.config.retention_ms == 77


# -- partitions and configurations -----------------------------------------------------------------------------------


async def test_partitions_are_added_and_stay() -> None:
    bench = BrokerBench()
    topic = await bench.create("t", 2)
    await bench.produce("t", 1, value=b"one")
    version = bench.broker.topics.version
    assert await bench.until(bench.admin.create_partitions(topic, 4)) is None
    assert bench.broker.topics.version > version
    await bench.produce("t", 3, value=b"three")
    bench.restart("none")
    assert (await bench.values("t", 1), await bench.values("t", 3)) == ([b"one"], [b"three"])
    again = bench.broker.topics.get("t")
    assert again is not None
    for total in (0, 3, 4, 10_001):
        refused = await bench.until(bench.admin.create_partitions(again, total))
        assert refused is not None
        assert refused.error is ErrorCode.invalid_partitions
    assert await bench.until(bench.admin.create_partitions(again, 9, validate_only=True)) is None
    assert len(again.partitions) == 4


async def test_an_altered_retention_takes_effect() -> None:
    bench = BrokerBench()
    topic = await bench.create("t", segment_bytes="1024")
    for _ in range(20):
        await bench.produce("t", value=bytes(200))
    await bench.settle(20_000)
    assert bench.partition("t").log.start_offset == 0
    assert await bench.until(bench.admin.alter_topic_configs(topic, {"retention.ms": "5000"})) is None
    await bench.settle(2000)
    assert bench.partition("t").log.start_offset == 20


async def test_an_altered_size_limit_takes_effect() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    assert await bench.produce("t", value=bytes(5000)) == 0
    assert await bench.until(bench.admin.alter_topic_configs(topic, {"max.message.bytes": "1000"})) is None
    assert await bench.produce("t", value=bytes(5000)) is ErrorCode.message_too_large
    bench.restart()
    assert await bench.produce("t", value=bytes(5000)) is ErrorCode.message_too_large


async def test_a_brokers_dynamic_setting_reaches_topics_that_have_no_own() -> None:
    bench = BrokerBench()
    plain = await bench.create("plain")
    own = await bench.create("own", retention_ms="7")
    assert await bench.until(bench.admin.alter_broker_configs({"log.retention.ms": "5000"})) is None
    assert (plain.config.retention_ms, own.config.retention_ms) == (5000, 7)
    bench.restart()
    again = bench.broker.topics.get("plain")
    assert again is not None
    assert again.config.retention_ms == 5000


async def test_what_the_catalog_does_not_take_does_not_take_effect() -> None:
    bench = BrokerBench()
    topic = await bench.create("t")
    bench.catalog.fail(errno.ENOSPC)
    for change in (
        bench.admin.alter_topic_configs(topic, {"retention.ms": "1"}),
        bench.admin.create_partitions(topic, 5),
        bench.admin.alter_broker_configs({"log.retention.ms": "1"}),
    ):
        refused = await bench.until(change)
        assert refused is not None
        assert refused.error is ErrorCode.kafka_storage_error
    assert topic.config.retention_ms != 1
    assert len(topic.partitions) == 1
    assert bench.broker.context.dynamic_overrides == {}


# -- orphans ---------------------------------------------------------------------------------------------------------


async def test_a_directory_of_no_topic_is_set_aside_and_kept() -> None:
    bench = BrokerBench()
    await bench.create("t")
    await bench.produce("t", value=b"precious")
    await bench.settle(6000)
    (directory,) = bench.log_directories()
    bench.crash("none")
    # The catalog was lost, or is an older one.
    bench.catalog = type(bench.catalog)()
    bench.start()
    assert bench.log_directories() == []
    assert bench.disk.files.list_dir("/data/set-aside") == [directory]
    assert any("set-aside" in report for report in bench.reports)
    names = bench.disk.files.list_dir(f"/data/set-aside/{directory}")
    content = b"".join(
        bench.disk.files.read_file(f"/data/set-aside/{directory}/{name}") for name in names if name.endswith(".log")
    )
    assert b"precious" in content
