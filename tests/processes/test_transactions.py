"""A broker killed in the middle of transactions recovers its open and aborted transactions."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ottla.client.admin.admin import Admin
from ottla.testing.broker_process import BrokerProcess
from tests.conformance.test_transactions_raw import NONE, by_librdkafka, raw_peer, write_transactions

TOPIC = "t"


@pytest.mark.parametrize("durability", ["disk", "cache"])
def test_a_kill_loses_nothing_of_transactions(tmp_path: Path, durability: str) -> None:
    async def before(broker: BrokerProcess) -> list[bytes]:
        configs = {"ottla.durability": durability, "segment.bytes": "16384"}
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=1, configs=configs)
        async with raw_peer(broker.bootstrap, TOPIC) as peer:
            committed = await write_transactions(peer, random.Random(6), 120)
            assert (await peer.produce(b"open", producer=(5, 0, 0), version=9)).error == NONE
            return committed

    async def after(broker: BrokerProcess) -> None:
        async with raw_peer(broker.bootstrap, TOPIC) as peer:
            (open_,) = (each for each in await peer.describe() if each.current_txn_start_offset >= 0)
            assert open_.producer_id == 5
            assert (await peer.produce(b"more", producer=(5, 0, 1), version=9)).error == NONE
            assert await peer.end((5, 0), commit=True, version=1) == [NONE]

    with BrokerProcess(tmp_path / "data", config={"transaction.partition.verification.enable": "false"}) as broker:
        committed = asyncio.run(before(broker))
        assert by_librdkafka(broker.bootstrap, TOPIC, "read_committed") == committed
        for _ in range(2):
            broker.kill()
            broker.start()
            assert by_librdkafka(broker.bootstrap, TOPIC, "read_committed") == committed
        asyncio.run(after(broker))
        assert by_librdkafka(broker.bootstrap, TOPIC, "read_committed") == [*committed, b"open", b"more"]
        broker.stop()
        assert "Traceback" not in broker.log()
