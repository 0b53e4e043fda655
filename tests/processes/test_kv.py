"""The key-value store whose only durability is a log: stores and brokers are killed with -9 at random, and paused.

Every acknowledged value is in the log, once and in order, and the state equals a replay of the log.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.recovery import KafkaLog, RowTables, SnapshotStore, recover
from ottla.recovery.entries import Kind, decode
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ports import reserve_ports
from tests.processes.kv_stores import KvProcess, Writers, ask

BROKERS = 3
KILLS = 6
TAKE_OVER_S = "0.8"


class Brokers:
    def __init__(self, directory: Path, count: int) -> None:
        ports = reserve_ports(count)
        self.wal_servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        cluster = {
            "ottla.coordination": f"sqlite:{directory / 'coordination'}",
            "ottla.host.shared": "true",
            "default.replication.factor": str(count),
            "broker.session.timeout.ms": "3000",
        }
        self.all = [
            BrokerProcess(
                directory / f"broker-{number}",
                config={"ottla.wal.port": str(port), "node.id": str(number), **(cluster if count > 1 else {})},
            )
            for number, port in enumerate(ports, 1)
        ]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.all)

    def start(self) -> None:
        for broker in self.all:
            if not broker.running:
                broker.start()

    def kill(self) -> None:
        for broker in self.all:
            if broker.running:
                broker.kill()


@contextmanager
def world(directory: Path, brokers: int, stores: int, *arguments: str) -> Iterator[tuple[Brokers, list[KvProcess]]]:
    """The first store leads."""
    cluster = Brokers(directory, brokers)
    kv: list[KvProcess] = []
    try:
        cluster.start()
        for number in range(stores):
            kv.append(KvProcess(cluster.wal_servers, directory, f"kv-{number}", "--replicas", str(brokers), *arguments))
            kv[-1].start(*(["--follow"] if number else []))
        yield cluster, kv
    finally:
        for store in kv:
            store.kill()
        cluster.kill()


def leader_of(stores: list[KvProcess]) -> KvProcess:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for store in stores:
            try:
                if ask(store.port, "POSITION").endswith(" leads"):
                    return store
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError("nobody leads:\n" + "\n".join(store.log() for store in stores))


def check(writers: Writers, bootstrap: str, stores: list[KvProcess], snapshots: Path | None = None) -> None:
    """Compares with the log itself, read by a Kafka client, and with the leader's state."""
    in_log: dict[str, list[int]] = {}

    async def read() -> tuple[int, dict[bytes, bytes]]:
        log = KafkaLog(bootstrap, "kv")
        start = (await log.tail()).start_offset
        async for chunk in log.read_chunks(start):
            for entry in chunk:
                kind, _, _, key, image = decode(entry.data, entry.offset)
                if kind == Kind.PUT:
                    in_log.setdefault(key.decode(), []).append(int(image))
        tables = RowTables()
        await recover(log, tables, snapshots=None if snapshots is None else SnapshotStore(snapshots))
        return start, tables.rows

    start, rows = asyncio.run(read())
    assert writers.count > 0
    for key, values in writers.acknowledged.items():
        found = in_log.get(key, [])
        assert found == sorted(set(found)), f"doubled or reordered: {key}"
        if start == 0:
            assert set(values) <= set(found), f"lost: {key}, {sorted(set(values) - set(found))}"
        assert values[-1] <= int(rows[key.encode()]) <= writers.attempted[key], f"lost: {key}"
    leader = leader_of(stores)
    for key in writers.acknowledged:
        assert ask(leader.port, f"GET {key}") == f"VALUE {rows[key.encode()].decode()}"


@pytest.mark.timeout(280)
def test_stores_and_brokers_that_are_killed_lose_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{seed} kv")
    with world(tmp_path, BROKERS, 2, "--take-over-after", TAKE_OVER_S) as (cluster, stores):
        writers = Writers(stores, chance, threads=4)
        for number in range(KILLS):
            writers.wait_for(chance.randrange(1, 150))
            match number % 3:
                case 0:
                    victim = leader_of(stores)
                    victim.kill()
                    writers.wait_for(20)  # the other store has taken over
                    victim.start("--follow")
                case 1:
                    broker = chance.choice(cluster.all)
                    broker.kill()
                    writers.wait_for(20)
                    broker.start()
                case _:
                    victim = leader_of(stores)
                    victim.pause()
                    writers.wait_for(20)
                    victim.resume()  # it does not know that it was replaced and is fenced
                    writers.wait_for(20)
        writers.stop()
        check(writers, cluster.bootstrap, stores)


@pytest.mark.timeout(200)
def test_everything_is_killed_and_started_again(tmp_path: Path, seed: int) -> None:
    """With snapshots, after which the log is trimmed: the store recovers from both."""
    chance = random.Random(f"{seed} kv, everything")
    snapshots = tmp_path / "snapshots"
    with world(tmp_path, 1, 1, "--snapshots", str(snapshots)) as (cluster, stores):
        writers = Writers(stores, chance, threads=3)
        for _ in range(3):
            writers.wait_for(chance.randrange(50, 150))
            assert ask(stores[0].port, "SNAPSHOT").startswith("OK ")
            writers.wait_for(chance.randrange(1, 50))
            cluster.kill()
            stores[0].kill()
            cluster.start()
            stores[0].start()
        writers.wait_for(10)
        writers.stop()
        check(writers, cluster.bootstrap, stores, snapshots)


def test_a_view_of_the_past(tmp_path: Path) -> None:
    with world(tmp_path, 1, 1) as (_, (store,)):
        offsets = [int(ask(store.port, f"PUT k {number}").split()[1]) for number in range(5)]
        assert ask(store.port, "DEL k").startswith("OK ")
        assert ask(store.port, "GET k") == "NONE"
        for number, offset in enumerate(offsets):
            assert ask(store.port, f"AT {offset + 1} k") == f"VALUE {number}"
        assert ask(store.port, f"AT {offsets[0]} k") == "NONE"
        assert ask(store.port, "AT 1000000 k").startswith("ERROR PointNotReachedError: the log ends at offset ")
        assert ask(store.port, "PUT k").startswith("ERROR say PUT key value")
