"""Bits flip in a segment after startup has read it: readers use other replicas, and the log is repaired."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.journal.recovery import recover
from ottla.client.admin.admin import Admin
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import CorruptBatchError
from ottla.client.producer.producer import Producer
from ottla.protocol.records.batch import HEADER_BYTES
from ottla.sim.broker_host import DATA_DIR
from ottla.sim.disk_fault_plan import files_under
from ottla.sim.world import SimWorld
from tests.simulation.committed import read_batches
from tests.simulation.guarantees import TOPIC, GuaranteeBench

RECORDS = [b"number %d" % number for number in range(30)]


def damage(bench: GuaranteeBench, name: str, *, at_the_start_in_another: bool = False) -> None:
    """Damages the first record after a start, so that it is not cached and no startup finds the damage."""
    topic_id = _log(bench, name).key.topic_id.hex
    bench.kill(name)
    if at_the_start_in_another:
        bench.boot(name)  # writes its segments from the journal
        bench.wait_until_in_sync()
        bench.kill(name)
        bench.host(name).disk.damage(
            next(path for path in _segments(bench, name) if topic_id not in path), 16, mask=0xFF
        )
    bench.boot(name)
    bench.wait_until_in_sync()
    bench.host(name).disk.damage(next(path for path in _segments(bench, name) if topic_id in path), HEADER_BYTES + 5)


def _segments(bench: GuaranteeBench, name: str) -> list[str]:
    return [path for path, size in files_under(bench.host(name).disk, DATA_DIR) if path.endswith(".log") and size]


def make_leader(bench: GuaranteeBench, name: str) -> None:
    for _ in range(10):
        leader = bench.leader()
        if leader == name:
            return
        bench.kill(leader)
        bench.wait_for_another_leader(leader)
        bench.boot(leader)
        bench.wait_until_in_sync()
    raise AssertionError(f"{name} does not lead")


def test_a_leader_that_finds_damage_gives_way_and_is_built_anew() -> None:
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        assert bench.write(RECORDS) == RECORDS
        name = bench.leader()
        damage(bench, name)
        make_leader(bench, name)
        assert not _log(bench, name).damages, "it would have been found at the start"
        with pytest.raises(CorruptBatchError):
            bench.read()
        bench.wait_for_another_leader(name)
        assert list(bench.read().values()) == RECORDS
        bench.wait_until_in_sync()
        contents = [list(read_batches(_log(bench, each), 0, len(RECORDS))) for each in bench.names]
        assert contents[0] == contents[1] == contents[2]


def test_a_leader_that_finds_damage_gives_way_though_its_start_has_found_some_elsewhere() -> None:
    """Found by seed 21 of the transactions simulation: damage reported for one log at registration was applied to all
    logs, and the leader of a damaged log stayed leader."""
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        world.run(create_another(bench), timeout_s=30)
        assert bench.write(RECORDS) == RECORDS
        world.run(write_to_another(bench), timeout_s=30)
        name = bench.leader()
        damage(bench, name, at_the_start_in_another=True)
        make_leader(bench, name)
        assert not _log(bench, name).damages, "it would have been found at the start"
        with pytest.raises(CorruptBatchError):
            bench.read()
        bench.wait_for_another_leader(name)
        assert list(bench.read().values()) == RECORDS


def test_a_consumer_that_met_damage_and_asks_again_gets_everything() -> None:
    """Found by seed 246 of the cluster simulation: the consumer's loop was not notified of the retry."""
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        assert bench.write(RECORDS) == RECORDS
        name = bench.leader()
        damage(bench, name)
        make_leader(bench, name)
        assert world.run(read_in_spite_of_damage(bench), timeout_s=60) == RECORDS


async def read_in_spite_of_damage(bench: GuaranteeBench) -> list[bytes | None]:
    found: list[bytes | None] = []
    complaints = 0
    async with Consumer(bench.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, 0)])
        while len(found) < len(RECORDS):
            await asyncio.sleep(0.5)  # the failure is pending until the next read
            try:
                found += [record.value for record in await consumer.fetch_records(100)]
            except CorruptBatchError:
                complaints += 1
    assert complaints, "nobody met the damage"
    return found


def _log(bench: GuaranteeBench, name: str) -> FileLog:
    partition = bench.partition(name)
    assert partition is not None
    assert isinstance(partition.log, FileLog)
    return partition.log


def test_a_broker_whose_journal_lost_entries_of_nobody_knows_which_log_leads_nothing_before_it_has_them_again() -> None:
    """The last records of a log were in a block whose header is lost: the log by itself looks complete.

    (safety: journal-blocks)
    """
    with SimWorld(1) as world:
        bench = GuaranteeBench(world, brokers=3, min_insync=2, durability="disk")
        world.run(create_another(bench), timeout_s=30)
        assert bench.write(RECORDS) == RECORDS
        world.run_for(1.0)
        world.run(write_to_another(bench), timeout_s=30)
        world.run_for(1.0)
        name = bench.leader()
        bench.kill(*bench.names)
        lose_a_block(bench, name)
        bench.boot(name)
        world.run_until(lambda: _has_recovered(bench, name), timeout_s=10)
        bench.kill(name)  # before it could report the damage, and its new checkpoint covers it
        bench.boot(name)
        world.run_for(5.0)
        log = _log(bench, name)
        assert (log.end_offset, log.damages) == (len(RECORDS) - 1, []), "it can be seen: this shows nothing"
        assert bench.leaders() == [], "the others have everything"
        bench.boot(*(other for other in bench.names if other != name))
        bench.wait_until_in_sync()
        assert list(bench.read().values()) == RECORDS
        contents = [list(read_batches(_log(bench, each), 0, len(RECORDS))) for each in bench.names]
        assert contents[0] == contents[1] == contents[2]


def _has_recovered(bench: GuaranteeBench, name: str) -> bool:
    broker = bench.programs[name].broker
    assert not bench.programs[name].broker_is_in()
    return broker is not None and broker.context.store.flusher is not None


async def create_another(bench: GuaranteeBench) -> None:
    async with Admin(bench.bootstrap) as admin:
        await admin.create_topic("another", partitions=1, replication_factor=3)


async def write_to_another(bench: GuaranteeBench) -> None:
    async with Producer(bench.bootstrap) as producer:
        await producer.send("another", b"the last block of every journal", partition=0)


def lose_a_block(bench: GuaranteeBench, name: str) -> None:
    """Destroys the last block but one: the last block names it as durable. The segments have neither."""
    disk = bench.host(name).disk
    blocks = recover(disk.files, f"{DATA_DIR}/journal", bench.programs[name].journal_id, 0).blocks
    path, offset = blocks[-2].path, blocks[-2].header.offset
    disk.damage(path, offset + 9, mask=0xFF, length=4)
