"""The benchmark's producers write and commit the reported records, and report errors."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from ottla.bench import transactional_load, transactions_librdkafka
from ottla.bench.calls import Caller
from ottla.bench.group_members import connect
from ottla.bench.transactional_load import RECORDS_A_BATCH, batch_sizes
from ottla.bench.transactional_producer import (
    ConcurrentTransactionsError,
    ProducerRefusedError,
    TransactionalProducer,
    batch_of,
)
from ottla.bench.transactions import SUBJECTS, Drive, Runs, case_of
from ottla.broker.transactions.marker_sender import MarkerSender, Report
from ottla.machines.transactions.effects import WriteMarkers
from ottla.testing import Cluster

SIZES = (0, 1, 40)


@pytest.mark.parametrize("drive", [transactional_load.drive, transactions_librdkafka.drive])
def test_what_is_measured(drive: Drive) -> None:
    with Cluster() as cluster, Caller(int(cluster.bootstrap_servers.rpartition(":")[2])) as caller:
        for size in SIZES:
            topic = f"t-{size}"
            caller.create_topics([topic], 2, {})
            found = drive(cluster.bootstrap_servers, os.getpid(), topic, size, 2, 0.1)
            ended = sum(found.latencies.values())
            assert found.records > 0
            assert found.records == ended * size if size else not ended
            assert found.offsets_taken > 0
            assert found.seconds >= 0.1
            while caller.end_offset(topic) < found.offsets_taken:  # the last marker may be in flight
                pass
            assert caller.end_offset(topic) == found.offsets_taken


@pytest.mark.parametrize("drive", [transactional_load.drive, transactions_librdkafka.drive])
def test_a_plain_load_writes_something_even_if_its_time_is_over_at_once(drive: Drive) -> None:
    with Cluster() as cluster, Caller(int(cluster.bootstrap_servers.rpartition(":")[2])) as caller:
        caller.create_topics(["t"], 1, {})
        assert drive(cluster.bootstrap_servers, os.getpid(), "t", 0, 1, 0.0).records > 0


def test_batches_of_a_transaction() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(RECORDS_A_BATCH) == [RECORDS_A_BATCH]
    assert batch_sizes(2 * RECORDS_A_BATCH + 1) == [RECORDS_A_BATCH, RECORDS_A_BATCH, 1]


async def test_a_refusal_is_no_transaction() -> None:
    with Cluster() as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        zombie = TransactionalProducer(await connect(port), "t", 0, "id")
        with Caller(port) as caller:
            caller.create_topics(["t"], 1, {})
        await zombie.begin()
        other = TransactionalProducer(await connect(port), "t", 0, "id")
        await other.begin()
        await zombie.write(batch_of(b"x", 1, 0, transactional=True), 1)
        with pytest.raises(ProducerRefusedError, match="invalid_producer_epoch"):
            await zombie.settle()
        with pytest.raises(ProducerRefusedError, match="producer_fenced"):
            await zombie.commit()
        for producer in (zombie, other):
            producer.close()


async def write_one(producer: TransactionalProducer, batch: bytearray) -> bool:
    await producer.write(batch, 1)
    try:
        await producer.settle()
    except ConcurrentTransactionsError:
        return False
    return True


def delayed_markers(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    may_go = threading.Event()
    send = MarkerSender.send

    async def send_later(self: MarkerSender, effect: WriteMarkers, report: Report) -> None:
        while not may_go.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)
        await send(self, effect, report)

    monkeypatch.setattr(MarkerSender, "send", send_later)
    return may_go


async def test_a_transaction_that_comes_too_early_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.api.produce_in_transaction.PAUSES_MS", (1.0,))
    may_go = delayed_markers(monkeypatch)
    with Cluster() as cluster:
        port = int(cluster.bootstrap_servers.rpartition(":")[2])
        with Caller(port) as caller:
            caller.create_topics(["t"], 1, {})
        producer = TransactionalProducer(await connect(port), "t", 0, "id")
        await producer.begin()
        batch = batch_of(b"x", 1, 0, transactional=True)
        await producer.write(batch, 1)
        await producer.settle()
        await producer.commit()
        for _ in range(3):
            await producer.write(batch, 1)
        with pytest.raises(ConcurrentTransactionsError):
            await producer.settle()
        await producer.begin_again()
        assert producer.offsets_taken == 2
        may_go.set()
        while not await write_one(producer, batch):
            await producer.begin_again()
        await producer.commit()
        assert producer.offsets_taken == 4
        producer.close()


def test_a_share_is_of_the_same_repetition() -> None:
    runs = Runs()
    for plain, rate in ((100, 50), (10, 1)):
        runs.found[0].append(transactional_load.TransactionResult(plain, 1.0))
        runs.found[1000].append(transactional_load.TransactionResult(rate, 1.0))
    assert runs.shares(1000) == [0.5, 0.1]
    assert case_of(1000) == "1,000 records a transaction"
    assert len({subject.name for subject in SUBJECTS}) == len(SUBJECTS)
