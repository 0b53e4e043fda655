"""Tests change data capture: a database changes at random while connectors and brokers are killed with -9 at random; at
the end a replica, and tables built by the pipeline, equal the source row by row.

    python -m tests.connect.cdc --changes 1000000 --seed 1
    python -m tests.connect.cdc --changes 100000 --seed 1 --brokers 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
import psutil
import psycopg
import pyarrow.parquet as pq

from ottla.bench.quotients import rate
from ottla.testing.broker_process import BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses
from tests.connect.change_topics import check_transactions, column_kinds, expected_rows, normal_row
from tests.connect.connectors import Connector, ottla, wait_until
from tests.connect.workload import TABLES, WHOLE_ROWS, Workload, set_up, table_hash
from tests.support.postgres_server import PostgresServer

PREFIX = "proof"
LAST_EVENT = -1


@dataclass
class Report:
    seed: int
    changes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    """Kills of connectors: workers and supervisors."""
    broker_kills: int = 0
    seconds: float = 0.0
    """From the first change until the replica has the last one."""
    changes_per_s: float = 0.0
    records: int = 0
    source_cpu_s: float = 0.0
    sink_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    materialized: dict[str, int] = field(default_factory=dict)


class Brokers(ClusterProcesses):
    """A killed broker restarts after a while; no two are down at once."""

    kills = 0
    _cpu_s = 0.0
    _returning: threading.Timer | None = None

    def kill_one(self, place: int, away_s: float) -> None:
        if self._returning is None or not self._returning.is_alive():
            broker = self.brokers[place]
            self._cpu_s += _cpu_s(broker)
            broker.kill()
            self.kills += 1
            self._returning = threading.Timer(away_s, broker.start)
            self._returning.start()

    def all_back(self) -> None:
        if self._returning is not None:
            self._returning.join()

    def cpu_s(self) -> float:
        """CPU time of all brokers so far, including killed ones."""
        return self._cpu_s + sum(_cpu_s(broker) for broker in self.brokers)


def _cpu_s(broker: BrokerProcess) -> float:
    used = psutil.Process(broker.pid).cpu_times()
    return float(used.user + used.system)


@dataclass
class World:
    server: PostgresServer
    brokers: Brokers
    source: Connector
    sink: Connector
    directory: Path

    @property
    def source_url(self) -> str:
        return self.server.url_of("source")

    @property
    def target_url(self) -> str:
        return self.server.url_of("target")

    @property
    def kills(self) -> int:
        return self.source.kills + self.sink.kills


@contextlib.contextmanager
def world(directory: Path, broker_count: int = 1) -> Iterator[World]:
    with PostgresServer(settings={"wal_level": "logical", "max_wal_size": "4GB"}) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE source")
            connection.execute("CREATE DATABASE target")
        set_up(server.url_of("source"))
        session = {"broker.session.timeout.ms": "6000"}
        with Brokers(directory / "brokers", broker_count, config=session, ready_timeout_s=240) as brokers:
            common = ["--prefix", PREFIX, "-b", brokers.bootstrap]
            tables = [word for table in TABLES for word in ("--table", table)]
            source = Connector(
                directory / "source.log",
                "postgres-cdc",
                "--name",
                "proof",
                "--url",
                server.url_of("source"),
                *tables,
                *common,
            )
            sink = Connector(
                directory / "sink.log",
                "postgres-sink",
                "--name",
                "replica",
                "--url",
                server.url_of("target"),
                *common,
                "--apply-schema-changes",
            )
            try:
                yield World(server, brokers, source, sink, directory)
            finally:
                source.end()
                sink.end()
                brokers.all_back()


class Killer(threading.Thread):
    """Kills workers, sometimes a supervisor, and brokers if there are several, until it is stopped."""

    def __init__(self, world: World, seed: int, every_s: float) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._chance = random.Random(seed)
        self._every_s = every_s
        self.enough = threading.Event()
        self.has_topics = threading.Event()
        """The topics have a replica on each broker, so they can be created only while all are up."""

    def run(self) -> None:
        brokers = self._world.brokers
        while not self.enough.wait(self._every_s * self._chance.uniform(0.2, 1.8)):
            if self.has_topics.is_set() and len(brokers.brokers) > 1 and self._chance.random() < 0.5:
                brokers.kill_one(self._chance.randrange(len(brokers.brokers)), self._chance.uniform(0.2, 4))
                continue
            victim = self._chance.choice([self._world.source, self._world.source, self._world.sink])
            if self._chance.random() < 0.2:
                victim.kill()
                victim.start()
            else:
                victim.kill_worker()


def run(
    world: World,
    changes: int,
    seed: int,
    kill_every_s: float | None,
    kills_min: int = 0,
    broker_kills_min: int = 0,
) -> Report:
    """Changes the source, kills connectors and brokers, waits for the replica, and compares. Makes more changes than
    requested if the required number of kills takes longer."""
    report = Report(seed)
    killer = None if kill_every_s is None else Killer(world, seed, kill_every_s)
    with psycopg.connect(world.source_url, autocommit=True) as connection:
        workload = Workload(connection, seed)
        while workload.changes < changes // 20:
            workload.step()
        begun_s = time.monotonic()
        world.source.start()
        world.sink.start()
        if killer is not None:
            killer.start()
        wait_until(lambda: _streams(connection), f"changes are streamed; {world.source.log_path}", 300)
        if killer is not None:
            killer.has_topics.set()
        while workload.changes < changes or world.kills < kills_min or world.brokers.kills < broker_kills_min:
            workload.step()
            _bound_backlog(connection)
        report.changes, report.kinds = workload.changes, workload.kinds
        if killer is not None:
            killer.enough.set()
            killer.join()
            world.brokers.all_back()
        connection.execute("INSERT INTO events VALUES (%s, 'the last one')", [LAST_EVENT])
    wait_until(lambda: _has_last(world.target_url), f"the replica has the last change; {world.sink.log[-2000:]}", 3600)
    report.seconds = round(time.monotonic() - begun_s, 1)
    report.changes_per_s = round(rate(report.changes, report.seconds))
    report.kills, report.broker_kills = world.kills, world.brokers.kills
    report.source_cpu_s, report.sink_cpu_s = round(world.source.cpu_s(), 1), round(world.sink.cpu_s(), 1)
    report.broker_cpu_s = round(world.brokers.cpu_s(), 1)
    for table in TABLES:
        expected, found = table_hash(world.source_url, table), table_hash(world.target_url, table)
        # After a restarted snapshot one table may have the last change before the other tables are complete.
        deadline_s = time.monotonic() + 120
        while found != expected and time.monotonic() < deadline_s:
            time.sleep(1)
            found = table_hash(world.target_url, table)
        assert expected == found, f"{table}: the source has {expected}, the replica {found}"
        report.rows[table] = found[0]
    report.records = asyncio.run(check_transactions(world.brokers.bootstrap, PREFIX))
    return report


def _bound_backlog(connection: psycopg.Connection[object], bytes_max: int = 512 * 1024 * 1024) -> None:
    """Delays the writer while the connector is far behind, to bound the disk space."""
    while True:
        row = connection.execute(
            "SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)), 0) "
            "FROM pg_replication_slots"
        ).fetchone()
        assert row is not None
        if row[0] < bytes_max:  # type: ignore[index] # a row of one number
            return
        time.sleep(0.2)


def _streams(connection: psycopg.Connection[object]) -> bool:
    return connection.execute("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'").fetchone() is not None


def _has_last(url: str) -> bool:
    with psycopg.connect(url) as connection:
        try:
            return connection.execute("SELECT 1 FROM events WHERE id = %s", [LAST_EVENT]).fetchone() is not None
        except psycopg.errors.UndefinedTable:
            return False


def materialize(world: World, table: str) -> int:
    """Builds a table by the pipeline and compares it with the source, row by row. Returns the row count."""
    place = world.directory / "tables" / table
    topic = f"{PREFIX}.public.{table}"
    said = ottla(
        *["pipeline", "materialize", topic, "--table", str(place), "--envelope", "debezium", "--json"],
        *["-b", world.brokers.bootstrap],
    )
    assert said.returncode == 0, said.stderr
    snapshot = json.loads(said.stdout)
    values = pq.read_table(place / snapshot["path"], columns=["_value"]).column("_value").to_pylist()
    kinds = column_kinds(world.source_url, table)
    found = dict(normal_row(kinds, orjson.loads(value)) for value in values)
    assert len(found) == len(values), f"{table}: a row is there twice"
    expected = expected_rows(world.source_url, table)
    wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    assert not wrong, f"{table}: {len(wrong)} rows differ: {expected.get(wrong[0])} became {found.get(wrong[0])}"
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kill-every", type=float, default=5.0, metavar="SECONDS", help="0: nobody is killed")
    parser.add_argument("--brokers", type=int, default=1, help="with several, they are killed too, one at a time")
    parser.add_argument("--no-materialize", action="store_true")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ottla-cdc-"))
    try:
        with world(directory, chosen.brokers) as built:
            report = run(built, chosen.changes, chosen.seed, chosen.kill_every or None)
            print(json.dumps(asdict(report), indent=2), flush=True)
            for table in () if chosen.no_materialize else WHOLE_ROWS:
                report.materialized[table] = materialize(built, table)
        print(json.dumps({"materialized": report.materialized}), flush=True)
        return 0
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
