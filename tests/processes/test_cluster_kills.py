"""Brokers of a cluster are killed under load, one after the other and two at once, also with everything unsynced lost:
no acknowledged record is missing, doubled or reordered, and writing goes on.
"""

from __future__ import annotations

import random
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
PARTITIONS = {"disk": 3, "cache": 2}
WITHOUT_ACKS_1 = WRITERS[:3]
"""acks=1 promises nothing when a leader dies."""


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
                "broker.session.timeout.ms": "3000",
            },
        )
        for number in range(1, BROKERS + 1)
    ]


def check(bootstrap: str, ledger: Ledger) -> int:
    places = [(topic, index) for topic, count in PARTITIONS.items() for index in range(count)]
    total = Findings()
    for where, records in read_all(bootstrap, places).items():
        total.add(ledger.compare(where, identify(records)))
    assert total.ok, f"{total}\n" + "\n".join(total.problems)
    return total.read


@pytest.mark.parametrize("death", ["kill", "power-cut"])
def test_nothing_acknowledged_is_lost(start_broker: StartBroker, tmp_path: Path, seed: int, death: str) -> None:
    chance = random.Random(f"{seed} cluster {death}")
    arguments = ("--disk", "volatile") if death == "power-cut" else ()
    brokers = start_cluster(start_broker, tmp_path, arguments)
    bootstrap = ",".join(broker.bootstrap for broker in brokers)
    for durability, count in PARTITIONS.items():
        create_replicated(bootstrap, durability, count, BROKERS, ottla_durability=durability)
    ledger = Ledger()
    load = Load(bootstrap, PARTITIONS, ledger, chance, writers=WITHOUT_ACKS_1)
    for kill in range(KILLS):
        load.resume()
        time.sleep(chance.uniform(0.3, 1.0))
        # Two at once only where nothing depends on one that is left: the page cache of two is lost with their power.
        count = 2 if death == "kill" and chance.random() < 0.3 else 1
        dead = chance.sample(brokers, count)
        for broker in dead:
            broker.kill()
        time.sleep(chance.uniform(0.3, 1.5))
        for broker in dead:
            broker.start()
        load.pause()
        load.settle()
        print(f"kill {kill + 1} of {count}: {ledger.count()} acknowledged, {check(bootstrap, ledger)} read back")
    load.end()
    assert ledger.count() > 1000, "the load was too small to prove anything"
    for broker in brokers:
        assert broker.stop(40) == 0
