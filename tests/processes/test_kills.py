"""Repeated kill -9 under load: no acknowledged record is missing, duplicated or reordered.

Half of the kills keep the page cache, as for any killed process. The other half are power cuts: the broker keeps
unsynced data in its own memory (`--disk volatile`), so that the kill discards it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

import pytest

from ottla.testing.broker_process import BrokerProcess
from ottla.testing.ledger import Findings, Ledger
from tests.processes.admin_load import AdminLoad
from tests.processes.conftest import StartBroker
from tests.processes.load import Load, identify
from tests.processes.traffic import create_topic, ends, read_all

ROUNDS = 6
KILLS_PER_ROUND = 5
LOAD_S = (0.3, 1.3)

PARTITIONS = {"plain": 2, "small-segments": 2, "short-lived": 2, "trimmed": 1, "page-cache": 1}
TRIMMED = ("trimmed", 0)
CACHE_PARTITIONS = [("page-cache", 0)]
RETENTION = {"log.retention.check.interval.ms": "200"}
SETTINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"ottla.journal.bytes": "8388608", "ottla.journal.file.bytes": "1048576", "ottla.flush.interval.ms": "100"},
    {"ottla.tail.cache.bytes": "65536", "ottla.flush.interval.ms": "300"},
)


class Siege:
    """A data directory whose broker is loaded, killed, restarted and read back several times."""

    def __init__(self, broker: BrokerProcess, chance: random.Random, *, power_cut: bool) -> None:
        self.broker = broker
        self.chance = chance
        self.power_cut = power_cut
        self.ledger = Ledger()
        self.read = 0
        self.first_offsets: dict[tuple[str, int], int] = {}
        create_topic(broker.bootstrap, "plain", PARTITIONS["plain"])
        create_topic(broker.bootstrap, "small-segments", PARTITIONS["small-segments"], segment_bytes=str(1 << 20))
        create_topic(
            broker.bootstrap,
            "short-lived",
            PARTITIONS["short-lived"],
            segment_bytes=str(1 << 19),
            retention_bytes=str(1 << 19),
        )
        create_topic(broker.bootstrap, "trimmed", PARTITIONS["trimmed"])
        create_topic(broker.bootstrap, "page-cache", PARTITIONS["page-cache"], ottla_durability="cache")
        self.load = Load(
            broker.bootstrap, PARTITIONS, self.ledger, chance, without=CACHE_PARTITIONS if power_cut else ()
        )
        self.admin = AdminLoad(
            broker.bootstrap, random.Random(chance.random()), TRIMMED, lambda: self.ledger.last_offset(TRIMMED)
        )

    def kill_once(self) -> None:
        self.load.resume()
        self.admin.resume()
        time.sleep(self.chance.uniform(*LOAD_S))
        self.broker.kill()
        self.load.pause()
        self.broker.start()
        self.admin.pause()
        self.load.settle()
        self.check()
        if self.chance.random() < 0.3:
            self.load.renew()

    def check(self) -> None:
        places = [(topic, index) for topic, count in PARTITIONS.items() for index in range(count)]
        total = Findings()
        for where, records in read_all(self.broker.bootstrap, places).items():
            first = self._first_offset(where)
            found = [each for each in identify(records) if each[0] >= first]
            findings = self.ledger.compare(where, found, start_offset=first)
            if self.power_cut and where in CACHE_PARTITIONS:
                # A power cut may lose data that only the page cache had, but never from the middle.
                findings.missing = findings.misplaced = 0
                self.ledger.rewind(where, found)
            total.add(findings)
        assert total.ok, f"{total}\n" + "\n".join(total.problems)
        assert not self.admin.problems()
        unexpected = {name: count for name, count in self.load.failures.items() if not name.startswith("plain")}
        assert not unexpected, f"an idempotent producer lost records: {unexpected}"
        self.read = total.read

    def _first_offset(self, where: tuple[str, int]) -> int:
        """Returns zero, except where retention or DeleteRecords removed records, which must never return.

        Determined after the read: retention may delete what a reader was about to read.
        """
        if where[0] not in ("short-lived", "trimmed"):
            return 0
        first, _ = ends(self.broker.bootstrap, *where)
        assert first >= self.first_offsets.get(where, 0), f"{where}: removed records came back"
        if where == TRIMMED:
            confirmed, asked = self.admin.trimmed
            assert confirmed <= first <= asked, f"{where} begins at {first}, deleted up to {confirmed} (or {asked})"
        self.first_offsets[where] = first
        return first

    def end(self) -> None:
        self.load.end()
        self.admin.end()


@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.parametrize("death", ["kill", "power-cut"])
def test_nothing_acknowledged_is_lost(start_broker: StartBroker, seed: int, death: str, round_number: int) -> None:
    chance = random.Random(f"{seed} {death} {round_number}")
    power_cut = death == "power-cut"
    broker = start_broker(
        config={**RETENTION, **chance.choice(SETTINGS)}, arguments=("--disk", "volatile") if power_cut else ()
    )
    siege = Siege(broker, chance, power_cut=power_cut)
    for kill in range(KILLS_PER_ROUND):
        siege.kill_once()
        print(f"kill {kill + 1}: {siege.ledger.count()} acknowledged, {siege.read} read back, all in place")
    siege.end()
    assert all(siege.first_offsets[where, 0] > 0 for where in ("short-lived", "trimmed")), "nothing was removed"
    assert siege.ledger.count() > 1000, "the load was too small to prove anything"
    assert broker.stop() == 0
