"""Brokers of a cluster are killed under load, one after another and two at once, also with all unsynced data lost: no
acknowledged record is missing, duplicated or reordered, and writes continue."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ledger import Findings, Ledger
from tests.processes.conftest import StartBroker
from tests.processes.load import WRITERS, Load, identify
from tests.processes.traffic import create_replicated, read_all

BROKERS = 3
KILLS = 4
PAUSES = 3
SESSION_MS = 3000
PARTITIONS = {"disk": 3, "cache": 2}
IDEMPOTENT = WRITERS[:2]
"""acks=1 promises nothing when a leader dies. A producer without idempotence reorders records when a leader moves:
librdkafka resends batches that the old leader rejected after batches that the new one has accepted."""


def start_cluster(start_broker: StartBroker, directory: Path, arguments: tuple[str, ...]) -> list[BrokerProcess]:
    return [
        start_broker(
            data=directory / f"broker-{number}",
            arguments=arguments,
            config={
                "node.id": str(number),
                "ottla.coordination": f"sqlite:{directory / 'coordination'}",
                "ottla.host.shared": "true",
                "default.replication.factor": str(BROKERS),
                "broker.session.timeout.ms": str(SESSION_MS),
            },
        )
        for number in range(1, BROKERS + 1)
    ]


class Siege:
    def __init__(self, brokers: list[BrokerProcess], chance: random.Random) -> None:
        self.brokers = brokers
        self.chance = chance
        self.ledger = Ledger()
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers)
        for durability, count in PARTITIONS.items():
            create_replicated(self.bootstrap, durability, count, BROKERS, ottla_durability=durability)
        self.load = Load(self.bootstrap, PARTITIONS, self.ledger, chance, writers=IDEMPOTENT)

    def load_for(self, least_s: float, most_s: float) -> None:
        self.load.resume()
        time.sleep(self.chance.uniform(least_s, most_s))

    def kill(self, count: int) -> None:
        dead = self.chance.sample(self.brokers, count)
        for broker in dead:
            broker.kill()
        time.sleep(self.chance.uniform(0.3, 1.5))
        for broker in dead:
            broker.start()

    def pause(self) -> None:
        """Pauses a broker beyond its session: others take over, and the resumed broker must not continue as leader."""
        broker = self.chance.choice(self.brokers)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            time.sleep(self.chance.uniform(0.5, 1.5) * SESSION_MS / 1000)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        time.sleep(0.5)

    def check(self) -> None:
        self.load.pause()
        self.load.settle()
        places = [(topic, index) for topic, count in PARTITIONS.items() for index in range(count)]
        total = Findings()
        for where, records in read_all(self.bootstrap, places).items():
            total.add(self.ledger.compare(where, identify(records)))
        assert total.ok, f"{total}\n" + "\n".join(total.problems)
        print(f"{self.ledger.count()} acknowledged, {total.read} read back, all in place")

    def end(self) -> None:
        self.load.end()
        assert self.ledger.count() > 1000, "the load was too small to prove anything"
        for broker in self.brokers:
            assert broker.stop(40) == 0


@pytest.mark.parametrize("death", ["kill", "power-cut"])
def test_nothing_acknowledged_is_lost(start_broker: StartBroker, tmp_path: Path, seed: int, death: str) -> None:
    chance = random.Random(f"{seed} cluster {death}")
    arguments = ("--disk", "volatile") if death == "power-cut" else ()
    siege = Siege(start_cluster(start_broker, tmp_path, arguments), chance)
    for _ in range(KILLS):
        siege.load_for(0.3, 1.0)
        # Two at once only without a power cut: the page caches of two replicas would be lost together.
        siege.kill(2 if death == "kill" and chance.random() < 0.3 else 1)
        siege.check()
    siege.end()


def test_a_broker_that_was_paused_does_not_go_on_as_before(
    start_broker: StartBroker, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(f"{seed} cluster pause")
    siege = Siege(start_cluster(start_broker, tmp_path, ()), chance)
    for _ in range(PAUSES):
        siege.load_for(0.3, 1.0)
        siege.pause()
    siege.check()
    siege.end()
