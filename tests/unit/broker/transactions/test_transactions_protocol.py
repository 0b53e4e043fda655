"""Transactions in a partition through the protocol: batches, markers, readers. Without a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import NamedTuple

import pytest
import pytest_asyncio

from ottla.broker.partition.transaction_verification import VerificationRequest
from ottla.machines.transactions.records import TopicPartition
from ottla.protocol.model.errors import ErrorCode
from tests.support.handlers_caller import Caller, calling
from tests.support.transactional_peer import READ_UNCOMMITTED, Peer

NONE = ErrorCode.none
LATEST = -1
DELETE_RECORDS = 21


class Bench(NamedTuple):
    caller: Caller
    peer: Peer


@pytest_asyncio.fixture(params=["disk", "cache", "memory"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with calling(ottla_durability=request.param, transaction_partition_verification_enable="false") as caller:
        topic = await caller.create_topic("t", 2)
        yield Bench(caller, Peer(caller.send, "t", topic.id, caller.broker.clock.now_ms))


# -- readers -------------------------------------------------------------------------------------------------------


async def test_an_open_transaction_is_not_committed(bench: Bench) -> None:
    _, peer = bench
    assert (await peer.produce(b"plain", producer=(1, 0, 0), transactional=False)).error == NONE
    assert (await peer.produce(b"a", b"b", producer=(7, 0, 0))).base_offset == 1
    assert (await peer.produce(b"later", producer=(1, 0, 1), transactional=False)).base_offset == 3
    read = await peer.fetch()
    assert (read.values, read.aborted, read.ends) == ([b"plain"], [], (1, 4))
    assert (await peer.fetch(offset=2)).values == [], "nothing above the last stable offset"
    dirty = await peer.fetch(isolation=READ_UNCOMMITTED)
    assert (dirty.values, dirty.aborted, dirty.ends) == ([b"plain", b"a", b"b", b"later"], None, (1, 4))


@pytest.mark.parametrize("version", range(4, 19))
async def test_aborted_transactions_in_every_version(bench: Bench, version: int) -> None:
    _, peer = bench
    await peer.produce(b"gone", producer=(7, 0, 0))
    await peer.produce(b"stays", producer=(8, 0, 0), transactional_id="other")
    assert await peer.end((8, 0), commit=True) == [NONE]
    assert (await peer.fetch(version=version)).ends == (0, 3)
    assert await peer.end((7, 0), commit=False) == [NONE]
    read = await peer.fetch(version=version)
    assert (read.values, read.aborted, read.ends) == ([b"gone", b"stays"], [(7, 0)], (4, 4))
    assert (await peer.fetch(isolation=READ_UNCOMMITTED, version=version)).aborted is None
    assert await peer.committed() == [b"stays"]


async def test_a_reader_that_waits_is_woken_by_the_marker(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    waiting = asyncio.ensure_future(peer.fetch(wait_ms=60_000))
    await asyncio.sleep(0.02)
    await peer.produce(b"b", producer=(7, 0, 1))
    await asyncio.sleep(0.02)
    assert not waiting.done(), "there is more, and nothing of it is committed"
    assert await peer.end((7, 0), commit=True) == [NONE]
    read = await asyncio.wait_for(waiting, 30)
    assert (read.values, read.ends) == ([b"a", b"b"], (3, 3))


async def test_the_oldest_open_transaction_holds_all_others_back(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"slow", producer=(7, 0, 0))
    for sequence, number in enumerate(range(3)):
        await peer.produce(b"quick %d" % number, producer=(8, 0, sequence), transactional_id="other", version=11)
        assert await peer.end((8, 0), commit=True) == [NONE]
    assert (await peer.fetch()).values == []
    await peer.end((7, 0), commit=False)
    assert await peer.committed() == [b"quick 0", b"quick 1", b"quick 2"]
    assert await peer.committed(max_bytes=1) == [b"quick 0", b"quick 1", b"quick 2"], "batch by batch"


async def test_latest_for_readers_of_committed_records(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"plain", producer=(1, 0, 0), transactional=False)
    await peer.produce(b"a", producer=(7, 0, 0))
    assert await peer.list_offset(LATEST) == 1
    assert await peer.list_offset(LATEST, READ_UNCOMMITTED) == 2
    assert await peer.list_offset(0, READ_UNCOMMITTED) == 0
    await peer.end((7, 0), commit=True)
    assert await peer.list_offset(LATEST) == 3


async def test_deleted_records_do_not_hold_readers_back(bench: Bench) -> None:
    """The log starts above the first record of an open transaction, so nothing of it is left to wait for."""
    caller, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    await peer.produce(b"plain", producer=(1, 0, 0), transactional=False)
    partition = {"partition_index": 0, "offset": 1}
    topics = [{"name": "t", "partitions": [partition]}]
    await caller.call(DELETE_RECORDS, 2, topics=topics, timeout=timedelta(seconds=30))
    assert (await peer.fetch(offset=1)).ends == (1, 2), "from the start on, it is open still"
    assert await peer.end((7, 0), commit=False) == [NONE]
    read = await peer.fetch(offset=1)
    assert (read.values, read.aborted, read.ends) == ([b"plain"], [(7, 0)], (3, 3))


# -- markers -------------------------------------------------------------------------------------------------------


async def test_a_marker_that_comes_again_is_not_written_again(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    for _ in range(3):
        assert await peer.end((7, 1), commit=True, transaction_version=2) == [NONE]
    assert (await peer.fetch()).ends == (2, 2)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_marker_that_comes_again_changes_nothing(bench: Bench, version: int) -> None:
    """Before transaction version 2 it may belong to another transaction: it is written, and committed records stay."""
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    for _ in range(3):
        assert await peer.end((7, 0), commit=True, version=version) == [NONE]
    assert await peer.end((7, 0), commit=False, version=version) == [NONE], "an abort of nothing"
    assert await peer.committed() == [b"a"]


async def test_a_marker_without_a_transaction(bench: Bench) -> None:
    """The partition was added, but nothing was produced to it."""
    _, peer = bench
    assert await peer.end((7, 0), commit=True) == [NONE]
    read = await peer.fetch()
    assert (read.values, read.aborted, read.error) == ([], [], NONE)


async def test_a_coordinator_that_is_no_longer_the_one(bench: Bench) -> None:
    """Markers of lower coordinator epochs are rejected (safety: last-stable-offset)."""
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    assert await peer.end((7, 0), commit=False, coordinator_epoch=5) == [NONE]
    assert (await peer.produce(b"b", producer=(7, 0, 1), version=11)).error == NONE
    assert await peer.end((7, 0), commit=True, coordinator_epoch=4) == [ErrorCode.transaction_coordinator_fenced]
    assert (await peer.fetch()).last_stable_offset == 2
    assert await peer.end((7, 0), commit=True, coordinator_epoch=5) == [NONE]
    assert await peer.committed() == [b"b"]


async def test_a_marker_of_an_earlier_epoch(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"a", producer=(7, 3, 0))
    assert await peer.end((7, 2), commit=True) == [ErrorCode.invalid_producer_epoch]
    assert (await peer.fetch()).values == []


async def test_markers_for_many_partitions(bench: Bench) -> None:
    _, peer = bench
    for partition in range(2):
        await peer.produce(b"%d" % partition, producer=(7, 0, 0), partition=partition)
    unknown = ErrorCode.unknown_topic_or_partition
    assert await peer.end((7, 0), commit=True, partitions=(1, 5, 0)) == [NONE, unknown, NONE]
    assert [await peer.committed(partition) for partition in range(2)] == [[b"0"], [b"1"]]
    assert await peer.end((7, 0), commit=True, topic="nowhere") == [unknown]


# -- producers -----------------------------------------------------------------------------------------------------


async def test_a_producer_that_was_fenced_by_a_marker(bench: Bench) -> None:
    """Its transaction timed out and was aborted with the next epoch."""
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    assert await peer.end((7, 1), commit=False) == [NONE]
    assert (await peer.produce(b"b", producer=(7, 0, 1))).error == ErrorCode.invalid_producer_epoch
    assert (await peer.produce(b"c", producer=(7, 1, 1))).error == ErrorCode.out_of_order_sequence_number
    assert (await peer.produce(b"d", producer=(7, 1, 0))).error == NONE
    await peer.end((7, 2), commit=True, transaction_version=2)
    assert await peer.committed() == [b"d"]


async def test_records_outside_of_the_open_transaction(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    outside = await peer.produce(b"b", producer=(7, 0, 1), transactional=False)
    assert outside.error == ErrorCode.invalid_txn_state
    await peer.end((7, 0), commit=True)
    assert (await peer.produce(b"b", producer=(7, 0, 1), transactional=False)).error == NONE


async def test_a_new_epoch_while_the_old_transaction_is_open(bench: Bench) -> None:
    _, peer = bench
    await peer.produce(b"a", producer=(7, 0, 0))
    assert (await peer.produce(b"b", producer=(7, 1, 0))).error == ErrorCode.invalid_txn_state


async def test_a_retry_in_a_transaction(bench: Bench) -> None:
    _, peer = bench
    first = await peer.produce(b"a", producer=(7, 0, 0))
    assert (await peer.produce(b"a", producer=(7, 0, 0))).base_offset == first.base_offset
    await peer.end((7, 0), commit=True)
    again = await peer.produce(b"a", producer=(7, 0, 0))
    assert (again.error, again.base_offset) == (NONE, first.base_offset), "also after the end"
    assert await peer.committed() == [b"a"]
    assert (await peer.fetch()).ends == (2, 2), "and it has begun nothing"


async def test_a_transactional_batch_needs_a_transactional_id(bench: Bench) -> None:
    _, peer = bench
    result = await peer.produce(b"a", producer=(7, 0, 0), transactional_id=None)
    assert result.error == ErrorCode.transactional_id_authorization_failed


async def test_a_transactional_batch_needs_a_producer(bench: Bench) -> None:
    _, peer = bench
    assert (await peer.produce(b"a", producer=(-1, -1, -1))).error == ErrorCode.invalid_record


# -- verification by the coordinator (KIP-890) ---------------------------------------------------------------------


class Coordinators:
    """A coordinator that replies when the test releases it."""

    def __init__(self, error: ErrorCode = NONE) -> None:
        self.asked: list[VerificationRequest] = []
        self.error = error
        self.answers = asyncio.Event()
        self.answers.set()

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append(asked)
        await self.answers.wait()
        return dict.fromkeys(asked.partitions, self.error)


@pytest.mark.parametrize(("version", "transaction_version"), [(11, 0), (12, 2), (13, 2)])
async def test_the_first_batch_asks(bench: Bench, version: int, transaction_version: int) -> None:
    caller, peer = bench
    coordinators = caller.broker.verifier = Coordinators()
    for sequence in range(3):
        await peer.produce(b"a", producer=(7, 0, sequence), version=version)
    await peer.produce(b"a", producer=(7, 0, 2), version=version)
    (asked,) = coordinators.asked
    assert asked == VerificationRequest("tx", 7, 0, frozenset({TopicPartition("t", 0)}), transaction_version)
    await peer.end((7, 0), commit=True)
    await peer.produce(b"a", producer=(7, 0, 2), version=version)
    assert len(coordinators.asked) == 1, "not for a retry"


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (ErrorCode.invalid_txn_state, 12, ErrorCode.invalid_txn_state),
        (ErrorCode.concurrent_transactions, 11, ErrorCode.not_enough_replicas),
        (ErrorCode.concurrent_transactions, 12, ErrorCode.concurrent_transactions),
        (ErrorCode.not_coordinator, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.network_exception, 9, ErrorCode.not_enough_replicas),
        (ErrorCode.producer_fenced, 12, ErrorCode.producer_fenced),
    ],
)
async def test_what_the_coordinator_refuses(bench: Bench, said: ErrorCode, version: int, told: ErrorCode) -> None:
    caller, peer = bench
    coordinators = caller.broker.verifier = Coordinators(said)
    assert (await peer.produce(b"a", producer=(7, 0, 0), version=version)).error == told
    assert (await peer.fetch()).ends == (0, 0)
    coordinators.error = NONE
    assert (await peer.produce(b"a", producer=(7, 0, 0), version=version)).error == NONE


async def test_a_marker_comes_while_the_coordinator_is_asked(bench: Bench) -> None:
    """The batch is late: appended now, it would begin a transaction that is never ended."""
    caller, peer = bench
    coordinators = caller.broker.verifier = Coordinators()
    coordinators.answers.clear()
    late = asyncio.ensure_future(peer.produce(b"late", producer=(7, 0, 0), version=11))
    await asyncio.sleep(0)
    assert await peer.end((7, 0), commit=False) == [NONE]
    coordinators.answers.set()
    assert (await late).error == ErrorCode.invalid_txn_state
    assert (await peer.fetch()).ends == (1, 1)


class OneAfterAnother:
    """A coordinator whose replies are released one by one."""

    def __init__(self, *errors: ErrorCode) -> None:
        self._errors = list(errors)
        self.first = asyncio.Event()

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        error = self._errors.pop(0)
        await self.first.wait()
        return dict.fromkeys(asked.partitions, error)


@pytest.mark.parametrize("second", [NONE, ErrorCode.invalid_producer_epoch])
async def test_the_marker_of_the_transaction_before_comes_meanwhile(bench: Bench, second: ErrorCode) -> None:
    """With version 2 an epoch is one transaction, so the coordinator can be asked again."""
    caller, peer = bench
    coordinators = caller.broker.verifier = OneAfterAnother(NONE, second)
    early = asyncio.ensure_future(peer.produce(b"early", producer=(7, 1, 0), version=12))
    await asyncio.sleep(0)
    assert await peer.end((7, 1), commit=True, transaction_version=2) == [NONE]
    coordinators.first.set()
    assert (await early).error == second
    assert (await peer.fetch()).ends == ((1, 2) if second is NONE else (1, 1))


class MarkersMeanwhile:
    """Coordinators that take over one after the other: each sends the marker of the previous transaction."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.asked = 0

    async def verify(self, asked: VerificationRequest) -> Mapping[TopicPartition, ErrorCode]:
        self.asked += 1
        told = await self._peer.end((7, 1), commit=True, coordinator_epoch=self.asked, transaction_version=2)
        assert told == [NONE]
        return {}


async def test_a_guard_that_was_not_verified_is_worth_nothing(bench: Bench) -> None:
    """Each time the previous guard is removed, the new one needs a verification of its own, also the last."""
    caller, peer = bench
    coordinators = caller.broker.verifier = MarkersMeanwhile(peer)
    told = (await peer.produce(b"early", producer=(7, 1, 0), version=12)).error
    assert told == ErrorCode.concurrent_transactions
    assert (await peer.fetch()).ends == (coordinators.asked, coordinators.asked), "nothing but markers"


async def test_a_transaction_that_begins_before_the_last_one_is_complete(bench: Bench) -> None:
    caller, peer = bench
    early = ErrorCode.concurrent_transactions
    coordinators = caller.broker.verifier = OneAfterAnother(early, early, NONE)
    coordinators.first.set()
    assert (await peer.produce(b"early", producer=(7, 1, 0), version=12)).error == NONE
    caller.broker.verifier = Coordinators(early)
    assert (await peer.produce(b"x", producer=(8, 1, 0), version=12, transactional_id="y")).error == early


# -- operators -----------------------------------------------------------------------------------------------------


async def test_producers_are_described(bench: Bench) -> None:
    caller, peer = bench
    now_ms = caller.broker.clock.now_ms()
    await peer.produce(b"a", producer=(1, 4, 0), transactional=False)
    await peer.produce(b"b", b"c", producer=(7, 2, 0))
    plain, open_ = await peer.describe()
    assert (plain.producer_id, plain.producer_epoch, plain.last_sequence) == (1, 4, 0)
    assert (plain.coordinator_epoch, plain.current_txn_start_offset) == (-1, -1)
    assert (open_.producer_id, open_.producer_epoch, open_.last_sequence) == (7, 2, 1)
    assert (open_.coordinator_epoch, open_.current_txn_start_offset) == (-1, 1)
    assert open_.last_timestamp >= now_ms
    await peer.end((7, 2), commit=True, coordinator_epoch=9)
    _, ended = await peer.describe()
    assert (ended.coordinator_epoch, ended.current_txn_start_offset, ended.last_sequence) == (9, -1, 1)


async def test_producers_of_a_partition_that_is_not_there(bench: Bench) -> None:
    _, peer = bench
    response = await peer.call(61, 0, topics=[{"name": "t", "partition_indexes": [9]}])
    found = response.topics[0].partitions[0]
    assert (found.error_code, found.active_producers) == (ErrorCode.unknown_topic_or_partition, ())
