"""Directories of topics that are not in the catalog: removed if the topic was deleted, otherwise set aside.

(safety: topic-identity)
"""

from __future__ import annotations

import pytest

from ottla.broker.storage.data_layout import log_name
from ottla.broker.storage.journal import Mutation
from ottla.broker.storage.truncation import Truncation
from ottla.sim.disk import Keep
from tests.support.power_cut import PowerCut, PowerCutError
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import LogBench, key_of

KEEPS: list[Keep] = ["none", "some", "all"]
ASIDE = f"/data/set-aside/{log_name(key_of(0))}.journal"


# -- deleted topics --------------------------------------------------------------------------------------------------


async def deletion(keep: Keep, nth: int | None, *, flushed: bool) -> tuple[BrokerBench, int]:
    """Deletes a topic and cuts the power at that operation."""
    bench = BrokerBench()
    topic = await bench.create("t", 2, durability="disk" if flushed else "cache")
    await bench.create("other")
    for index in range(2):
        await bench.produce("t", index)
    if flushed:
        await bench.settle(6000)
    power = PowerCut(bench.disk, nth)
    try:
        assert await bench.until(bench.admin.delete_topic(topic)) is None
        await bench.settle(6000)
    except PowerCutError:
        bench.crash(keep)
        bench.start()
    return bench, power.operations


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_crash_at_any_operation_of_a_deletion(keep: Keep, flushed: bool) -> None:
    _, operations = await deletion(keep, None, flushed=flushed)
    assert operations > 10
    for nth in range(1, operations + 1):
        bench, _ = await deletion(keep, nth, flushed=flushed)
        assert bench.log_directories() == []
        assert not bench.disk.files.exists("/data/set-aside")
        assert bench.catalog.load().deleted == frozenset(), "nothing is left of it, not even a memory"
        bench.restart("none")
        assert bench.log_directories() == []


@pytest.mark.parametrize("keep", KEEPS)
async def test_a_crash_at_any_operation_of_the_start_that_removes_the_rest(keep: Keep) -> None:
    nth, started = 0, False
    while not started:
        nth += 1
        bench = BrokerBench()
        topic = await bench.create("t", 3)
        for index in range(3):
            await bench.produce("t", index)
        await bench.settle(6000)
        bench.catalog.delete_topic(topic.id)
        bench.crash("all")
        power = PowerCut(bench.disk, nth)
        try:
            bench.start()
            power.call_off()
            started = True
        except PowerCutError:
            bench.crash(keep)
            bench.start()
        assert bench.log_directories() == []
        assert not bench.disk.files.exists("/data/set-aside")
        assert bench.catalog.load().deleted == frozenset()
    assert nth > 30


async def test_the_catalog_forgets_deleted_topics_while_the_broker_runs() -> None:
    bench = BrokerBench()
    for number in range(20):
        topic = await bench.create("t", durability=("disk", "cache", "memory")[number % 3])
        await bench.produce("t")
        assert await bench.until(bench.admin.delete_topic(topic)) is None
        await bench.settle(20)
        assert bench.catalog.load().deleted == {topic.id}


async def test_what_could_not_be_removed_is_remembered() -> None:
    bench = BrokerBench()
    topics = [await bench.create(name) for name in "ab"]
    await bench.produce("a")
    bench.disk.faults.fail_sync(path="/data/logs")
    for topic in topics:
        assert await bench.until(bench.admin.delete_topic(topic)) is None
        await bench.settle()
    assert bench.catalog.load().deleted == {topic.id for topic in topics}
    bench.restart("none")
    assert bench.log_directories() == []
    assert not bench.disk.files.exists("/data/set-aside")
    assert bench.catalog.load().deleted == frozenset()


async def test_a_catalog_that_refuses_keeps_the_topic_and_what_it_knows() -> None:
    bench = BrokerBench()
    topics = [await bench.create(name) for name in "ab"]
    assert await bench.until(bench.admin.delete_topic(topics[0])) is None
    await bench.settle()
    bench.catalog.fail()
    assert await bench.until(bench.admin.delete_topic(topics[1])) is not None
    bench.catalog.fail(None)
    assert bench.catalog.load().deleted == {topics[0].id}
    assert await bench.until(bench.admin.delete_topic(topics[1])) is None
    assert bench.catalog.load().deleted == {topics[1].id}


async def test_without_word_of_it_in_the_journal_a_deletion_is_remembered() -> None:
    """The journal has failed, and still holds records of the topic."""
    bench = BrokerBench()
    topics = [await bench.create(name) for name in "ab"]
    await bench.produce("a")
    bench.disk.faults.fail_write(path="/journal/", count=None)
    await bench.produce("b")
    for topic in topics:
        assert await bench.until(bench.admin.delete_topic(topic)) is None
        await bench.settle()
    bench.restart("none")
    assert not bench.disk.files.exists("/data/set-aside")


def test_what_was_rescued_of_a_deleted_log_goes_too() -> None:
    bench = LogBench("disk")
    bench.disk.files.make_dirs(f"/data/rescued/{log_name(key_of(7))}")
    bench.disk.files.make_dirs(f"/data/logs/{log_name(key_of(7))}")
    for path in ("/data/rescued", "/data/logs", "/data"):
        bench.disk.files.sync_dir(path)
    bench.deleted = {key_of(7).topic_id}
    bench.restart("none")
    assert bench.disk.files.list_dir("/data/rescued") == []
    bench.deleted.clear()
    bench.restart("none")
    assert not bench.disk.files.exists("/data/set-aside"), "the catalog has forgotten it, and it came back"


# -- entries of the journal ------------------------------------------------------------------------------------------


def unclaimed() -> tuple[LogBench, list[bytes]]:
    """The journal has batches of log 0, and no topic claims it."""
    bench = LogBench("disk", "disk")
    bench.fill(0, batches=3)
    bench.flush()
    batches = bench.fill(0, batches=10)
    bench.fill(1, batches=5)
    del bench.configs[key_of(0)]
    return bench, batches


def kept(bench: LogBench) -> dict[str, bytes]:
    files = bench.disk.files
    return {name: files.read_file(f"{ASIDE}/{name}") for name in files.list_dir(ASIDE)} if files.exists(ASIDE) else {}


def test_entries_of_a_log_that_no_topic_claims_are_reported_and_kept() -> None:
    bench, batches = unclaimed()
    bench.restart("none")
    expected = {f"{3:020d}-{13:020d}.log": b"".join(batches)}
    assert kept(bench) == expected
    assert any("offsets 3 to 12" in line and ASIDE in line for line in bench.reports)
    bench.reports.clear()
    bench.restart("none")
    assert kept(bench) == expected
    assert bench.reports == []


@pytest.mark.parametrize("keep", KEEPS)
def test_a_crash_at_any_operation_of_the_start_that_keeps_them(keep: Keep) -> None:
    nth, started = 0, False
    while not started:
        nth += 1
        bench, batches = unclaimed()
        bench.crash(keep)
        power = PowerCut(bench.disk, nth)
        try:
            bench.start()
            power.call_off()
            started = True
        except PowerCutError:
            bench.crash(keep, seed=nth)
            bench.start()
        assert kept(bench) == {f"{3:020d}-{13:020d}.log": b"".join(batches)}
        assert len(bench.read_all(1)) == 5
    assert nth > 30


def test_what_was_taken_back_is_not_kept() -> None:
    bench = LogBench("disk")
    batches = bench.fill(batches=10)
    done: list[OSError | None] = []
    Truncation(bench.log(), bench.flusher, 6, done.append).begin()
    bench.settle()
    assert done == [None]
    batches = batches[:6] + bench.fill(batches=2)
    del bench.configs[key_of(0)]
    bench.restart("none")
    assert kept(bench) == {f"{0:020d}-{8:020d}.log": b"".join(batches)}


def test_entries_of_a_deleted_topic_are_not_kept() -> None:
    bench, _ = unclaimed()
    bench.deleted = {key_of(0).topic_id}
    bench.restart("none")
    assert kept(bench) == {}
    assert bench.reports == []


def test_the_journal_itself_may_say_that_the_log_was_deleted() -> None:
    bench, _ = unclaimed()
    bench.journal.append_mutation(bench.log(0), Mutation.DELETE, 0, lambda _: None)
    bench.settle()
    bench.restart("none")
    assert kept(bench) == {}


def test_a_moved_start_of_an_unknown_log_is_nothing_to_keep() -> None:
    bench = LogBench("disk")
    bench.fill(batches=3)
    bench.flush()
    bench.log().advance_start(2, lambda _: None)
    bench.settle()
    del bench.configs[key_of(0)]
    bench.restart("none")
    assert kept(bench) == {}
