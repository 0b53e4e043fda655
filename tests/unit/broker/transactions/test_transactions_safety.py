"""The safety rules for producers and coordinators applied to transactions, with a test for each sentence (safety:
duplicates, produce-order, coordinators, last-stable-offset). The others are in test_cluster_transactions.py (a
connection waits for its first batch; a truncated marker reopens the transaction) and in
test_cluster_transaction_coordinator.py (no marker before the decision, no end before all markers)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.machines.groups.placement import partition_of
from ottla.net.apis import ClientApi
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.sim.world import SimWorld
from tests.support.sim_cluster import ClusterBench
from tests.support.transactional_session import END_TXN, Reached, Session
from tests.unit.broker.cluster.test_cluster_transaction_coordinator import committed

NONE = ErrorCode.none
TOPIC = "orders"
STATE_PARTITIONS = 3
DESCRIBE_TRANSACTIONS = ClientApi(65, "DescribeTransactions", (0, 0))
A_WHILE_S = 2.0
"""Less than a broker's session and than replica.lag.time.max.ms."""


@pytest.fixture
def bench() -> Iterator[ClusterBench]:
    with SimWorld(1) as world:
        properties = {"transaction.state.log.num.partitions": str(STATE_PARTITIONS)}
        bench = ClusterBench(world, properties=properties)
        bench.run(bench.create(TOPIC))
        bench.until_in_sync(TOPIC)
        yield bench


@pytest.fixture(params=[0, 2])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def begun(bench: ClusterBench, version: int) -> Session:
    """Begins a transaction whose coordinator also leads the topic."""
    leader = bench.leader(TOPIC)
    for number in range(100):
        session = Session(bench, f"writer-{number}", version=version)
        if bench.run(session.coordinator()) == leader:
            break

    async def begin() -> None:
        assert await session.init() is NONE
        assert await session.produce(TOPIC, b"1") is NONE

    bench.run(begin())
    return session


def state_index(session: Session) -> int:
    return partition_of(session.name, STATE_PARTITIONS)


def cut_off(bench: ClusterBench, number: int) -> Any:
    others = [bench.name(each) for each in bench.ids if each != number]
    return bench.world.network.cut([bench.name(number)], others)


def lose_lease(bench: ClusterBench, number: int) -> None:
    cluster = bench.cluster(number)
    assert cluster.membership.lease is not None
    bench.store.lose_lease(cluster.membership.lease.id)


def end_of(session: Session, *, commit: bool) -> tuple[ClientApi, dict[str, Any]]:
    version = 5 if session.version >= 2 else 3
    producer_id, producer_epoch = session.producer
    body = {"producer_id": producer_id, "producer_epoch": producer_epoch, "committed": commit}
    return ClientApi(END_TXN, "EndTxn", (version, version)), {"transactional_id": session.name, **body}


async def answered_in_a_while(*asked: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in asked]
    await asyncio.sleep(A_WHILE_S)
    return futures


# -- a duplicate waits for what the original waits for (safety: duplicates) ----------------------------------------


def test_a_retried_end_waits_for_the_decision(bench: ClusterBench, version: int) -> None:
    session = begun(bench, version)
    coordinator = bench.leader(TOPIC)
    fault = cut_off(bench, coordinator)
    end = end_of(session, commit=True)
    both = bench.run(answered_in_a_while(bench.ask(coordinator, *end), bench.ask(coordinator, *end)))
    assert dict(bench.broker(coordinator).transactions.state_counts()) == {"PrepareCommit": 1}
    assert [each.done() for each in both] == [False, False]
    fault.heal()
    told = sorted(reply.error_code for reply in bench.run(_all(both)))
    # The retry gets a retriable error until the transaction is complete.
    assert told in ([NONE, NONE], [NONE, ErrorCode.concurrent_transactions])
    assert bench.run(committed(bench, TOPIC, 1)) == [b"1"]


async def _all(futures: list[asyncio.Future[Any]]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*futures), 60)


@pytest.mark.parametrize("what", ["batch", "marker"])
def test_a_retry_in_the_log_waits_for_what_is_there(bench: ClusterBench, what: str) -> None:
    leader = bench.leader(TOPIC)
    session = begun(bench, 2)
    fault = cut_off(bench, leader)
    producer_id, epoch = session.producer
    reached = Reached(bench, leader, TOPIC)

    def again() -> Awaitable[Any]:
        if what == "batch":
            send: dict[str, Any] = {
                "producer": (producer_id, epoch, 1),
                "version": 12,
                "transactional_id": session.name,
            }
            return reached.run(lambda peer: peer.produce(b"2", **send))
        marker: dict[str, Any] = {"commit": True, "coordinator_epoch": 100, "transaction_version": 2}
        return reached.run(lambda peer: peer.end((producer_id, epoch + 1), **marker))

    both = bench.run(answered_in_a_while(again(), again()))
    assert bench.partition(leader, TOPIC).log.end_offset == 2, "it is there once"
    assert [each.done() for each in both] == [False, False]
    fault.heal()
    first, second = bench.run(_all(both))
    assert first == second
    assert bench.partition(leader, TOPIC).log.end_offset == 2


def test_what_is_known_of_transactions_outlives_their_records(bench: ClusterBench) -> None:
    """The records of a transaction are deleted and the broker is restarted: the transaction is still open, and a
    producer fenced by a deleted marker still is."""
    session, leader = begun(bench, 2), bench.leader(TOPIC)
    other = Session(bench, "other", version=2)
    producers = []

    async def write() -> None:
        assert await other.init() is NONE
        assert await other.produce(TOPIC, b"other") is NONE
        producers.append(other.producer)
        assert await other.end(commit=False) is NONE

    async def delete() -> None:
        body: dict[str, Any] = {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 3}]}]}
        body["timeout"] = timedelta(seconds=10)
        reply = await bench.ask(leader, ClientApi(21, "DeleteRecords", (2, 2)), body)
        assert not reply.topics[0].partitions[0].error_code
        await asyncio.sleep(30)  # until the state is written and segments are deleted

    bench.run(write())
    bench.until(lambda: bench.partition(leader, TOPIC).high_watermark == 3)
    bench.run(delete())
    bench.kill(leader)
    bench.boot(leader)
    bench.until_in_sync(TOPIC)
    for number in bench.ids:
        partition = bench.partition(number, TOPIC)
        assert partition.log.start_offset == 3
        assert [each.producer_id for each in partition.log.transactions.open_transactions()] == [session.producer[0]]

    async def late() -> ErrorCode:
        reached = Reached(bench, bench.leader(TOPIC), TOPIC)
        late: dict[str, Any] = {"producer": (*producers[0], 1), "version": 12, "transactional_id": "other"}
        return ErrorCode((await reached.run(lambda peer: peer.produce(b"late", **late))).error)

    assert bench.run(late()) is ErrorCode.invalid_producer_epoch


# -- coordinators apply at append (safety: coordinators) -----------------------------------------------------------


def test_a_failed_append_reverts(bench: ClusterBench, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is not in the log, so it must have no effect: the coordinator reloads its log."""
    session = begun(bench, version)
    coordinator = bench.leader(TOPIC)
    log = bench.partition(coordinator, STATE_TOPIC, state_index(session)).log
    refusal = log.refusal
    refused: list[int] = []

    def once(size: int, *records: int) -> Refused | None:
        if records and not refused:
            refused.append(size)
            return Refused(ErrorCode.kafka_storage_error, "a test refuses it")
        return refusal(size, *records)

    monkeypatch.setattr(type(log), "refusal", lambda _, *asked: once(*asked))
    end = log.end_offset
    reply = bench.run(bench.ask(coordinator, *end_of(session, commit=True)))
    assert refused
    assert reply.error_code is ErrorCode.not_coordinator
    assert log.end_offset == end
    bench.until(lambda: dict(bench.broker(coordinator).transactions.state_counts()) == {"Ongoing": 1})
    assert bench.run(session.end(commit=False)) is NONE
    assert bench.run(committed(bench, TOPIC, 0)) == []


def test_an_answer_that_is_not_committed_does_not_leave(bench: ClusterBench, version: int) -> None:
    """A coordinator is isolated and another takes over: decisions of the old one alone do not count, and it has not
    replied to them."""
    session = begun(bench, version)
    old = bench.leader(TOPIC)
    fault = cut_off(bench, old)
    (ending,) = bench.run(answered_in_a_while(bench.ask(old, *end_of(session, commit=True))))
    assert not ending.done()
    lose_lease(bench, old)
    bench.until(ending.done)
    assert ending.result().error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
    fault.heal()
    assert bench.run(session.end(commit=False)) is NONE
    assert bench.run(committed(bench, TOPIC, 0)) == []
    partitions = [bench.partition(number, TOPIC) for number in bench.ids]
    bench.until(lambda: not any(each.log.transactions.open_transactions() for each in partitions))


def test_reads_see_committed_state_only(bench: ClusterBench, version: int) -> None:
    session = begun(bench, version)
    coordinator = bench.leader(TOPIC)
    fault = cut_off(bench, coordinator)
    describe = (DESCRIBE_TRANSACTIONS, {"transactional_ids": [session.name]})
    (ending,) = bench.run(answered_in_a_while(bench.ask(coordinator, *end_of(session, commit=True))))
    (reading,) = bench.run(answered_in_a_while(bench.ask(coordinator, *describe)))
    assert not ending.done()
    assert not reading.done()
    fault.heal()
    _, described = bench.run(_all([ending, reading]))
    assert described.transaction_states[0].transaction_state == "PrepareCommit"
