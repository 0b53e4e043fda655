"""Rounds: load, failures, a restore elsewhere, and a comparison. The restored server is used for the next round."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import psycopg

from ottla.testing.broker_process import BrokerEndedError, BrokerProcess
from tests.processes.postgres.bench import Bench, Expected, compare, initialize
from tests.processes.postgres.world import SETTINGS, World

LOAD_S = (0.3, 2.0)
CONNECT_TIMEOUT_S = 240.0


@dataclass(slots=True)
class Outcome:
    findings: list[str] = field(default_factory=list)
    transactions: int = 0
    rounds: int = 0
    deaths: dict[str, int] = field(default_factory=dict)


class Rounds:
    def __init__(self, world: World, chance: Random, say: Callable[[str], None]) -> None:
        self._world = world
        self._chance = chance
        self._say = say
        self._expected = Expected()
        self.outcome = Outcome()

    def prepare(self) -> None:
        """Sets up the first server: its tables, its connector, and synchronous commits."""
        world = self._world
        initialize(world.binaries, world.server.url)
        world.connect()
        with psycopg.connect(world.server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'ottla'")
        world.server.stop()
        world.server.settings["synchronous_standby_names"] = SETTINGS["synchronous_standby_names"]
        world.server.start()
        self._wait_for_commit()

    def run(self, number: int) -> bool:
        """Runs a round. Returns True if all committed transactions are present."""
        world, began_s = self._world, time.monotonic()
        if number == 1 or self._chance.random() < 0.3:
            world.backup(*(["--keep", "2"] if self._chance.random() < 0.5 else []))
        bench = Bench(world.binaries, world.server.url, world.directory / f"round-{number}", number)
        try:
            deaths = self._load(bench)
            world.lose_server()
            self._expected.seen = bench.finish()
        finally:
            bench.kill()
        seen = sum(self._expected.seen.values())
        findings = self._restore(number)
        self.outcome.transactions += seen
        self.outcome.rounds += 1
        self.outcome.findings += findings
        self._say(
            f"round {number}: {seen} transactions seen committed, {', '.join(deaths) or 'no other deaths'}; "
            f"{'; '.join(findings) or 'all there'} ({time.monotonic() - began_s:.1f} s)"
        )
        return not findings

    def _load(self, bench: Bench) -> list[str]:
        """Runs load for a while, with random deaths of brokers and of the connector."""
        deaths: list[str] = []
        if self._chance.random() < 0.6:
            time.sleep(self._chance.uniform(0, 1))
            deaths += self._kill_a_broker()
        if self._chance.random() < 0.4:
            assert self._world.connector is not None
            self._world.connector.kill()
            self._world.connect()
            deaths.append("the connector killed")
            self.outcome.deaths["connector"] = self.outcome.deaths.get("connector", 0) + 1
        if self._chance.random() < 0.8:  # else the server may die before commits resume
            self._wait_for_commit()
        time.sleep(self._chance.uniform(*LOAD_S))
        assert bench.running, "pgbench ended before the server did"
        return deaths

    def _kill_a_broker(self) -> list[str]:
        """Kills a broker. It restarts in the background, also while the server dies and is restored."""
        number = self._chance.randrange(1, 4)
        broker = self._world.brokers.broker(number)
        if not broker.running or self._returning():
            return []
        if self._world.durability == "memory" and not self._world.has_all_replicas():
            return []
        broker.kill()
        self._thread = threading.Timer(self._chance.uniform(0.2, 2), _start, (broker,))
        self._thread.start()
        self.outcome.deaths["broker"] = self.outcome.deaths.get("broker", 0) + 1
        return [f"broker {number} killed"]

    _thread: threading.Timer | None = None

    def _returning(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def settle(self) -> None:
        """Waits until every broker runs again. One that did not start in time on a busy machine is retried."""
        if self._thread is not None:
            self._thread.join()
        for broker in self._world.brokers.brokers:
            if not broker.running:
                broker.start()

    def _restore(self, number: int) -> list[str]:
        world = self._world
        assert world.connector is not None
        world.connector.kill()
        world.server = restored = world.restore()
        # The comparison creates nothing, but hint bits and the like are WAL too, and no connector receives it yet.
        restored.settings["synchronous_standby_names"] = ""
        restored.spawn()
        restored.wait_until_recovered()
        findings = compare(restored.url, self._expected)
        restored.run(str(restored.binaries / "pg_amcheck"), "--heapallindexed", restored.url)
        restored.stop()
        checked = restored.run(str(restored.binaries / "pg_checksums"), "--check", "-D", restored.data_dir)
        if "Bad checksums:  0" not in checked:
            findings.append(f"pg_checksums: {checked}")
        restored.settings["synchronous_standby_names"] = SETTINGS["synchronous_standby_names"]
        restored.start()
        world.connect()
        self._wait_for_commit()
        self.settle()
        return findings

    def _wait_for_commit(self) -> None:
        """Waits until commits wait for the connector and return."""
        world, deadline_s = self._world, time.monotonic() + CONNECT_TIMEOUT_S
        with psycopg.connect(world.server.url, autocommit=True) as connection:
            while not connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall():
                assert world.connector is not None
                assert world.connector.running, f"the connector ended; it said:\n{world.connector.log()[-2000:]}"
                assert time.monotonic() < deadline_s, f"no connector came; it said:\n{world.connector.log()[-2000:]}"
                time.sleep(0.05)
            connection.execute("SELECT pg_logical_emit_message(true, 'ottla', 'here')")


def _start(broker: BrokerProcess) -> None:
    with contextlib.suppress(BrokerEndedError):
        broker.start()
