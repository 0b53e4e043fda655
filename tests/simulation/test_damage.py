"""Bits flip in a segment that no start-up reads: whoever meets the damage is served by others, and it is repaired."""

from __future__ import annotations

import pytest

from ottla.client.errors import CorruptBatchError
from ottla.log.file_log import FileLog
from ottla.records.batch import HEADER_BYTES
from ottla.sim.broker_host import DATA_DIR
from ottla.sim.disk_fault_plan import files_under
from ottla.sim.world import SimWorld
from tests.simulation.committed import read_batches
from tests.simulation.guarantees import GuaranteeBench

RECORDS = [b"number %d" % number for number in range(30)]


def damage(bench: GuaranteeBench, name: str) -> None:
    """In the first record, below the recovery point: a start-up reads the headers there, and no more."""
    bench.kill(name)
    bench.boot(name)
    bench.wait_until_in_sync()
    bench.kill(name)
    disk = bench.host(name).disk
    path = next(path for path, size in files_under(disk, DATA_DIR) if path.endswith(".log") and size)
    disk.damage(path, HEADER_BYTES + 5)
    bench.boot(name)
    bench.wait_until_in_sync()


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


def _log(bench: GuaranteeBench, name: str) -> FileLog:
    partition = bench.partition(name)
    assert partition is not None
    assert isinstance(partition.log, FileLog)
    return partition.log
