"""The transactional producer against a broker that fails by script: its requests, and its handling of the replies."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client import OffsetAndMetadata, Producer, TopicPartition
from ottla.client.errors import (
    BrokerRefusedError,
    ClientError,
    CommitFailedError,
    DeliveryError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionUnresolvedError,
)
from ottla.client.groups.offsets import GroupProgress
from ottla.client.groups.steps import Identity
from ottla.client.producer.placement import Placement
from ottla.protocol.model.errors import ErrorCode
from tests.support.client_scripted_broker import TOPIC, Fault
from tests.support.scripted_transactions import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    INIT,
    PRODUCE,
    ScriptedTransactions,
)

BOTH = pytest.mark.parametrize("version", [1, 2])
AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    None,
)

MEMBER = Identity("member", 7, "static")


def producing(broker: ScriptedTransactions, **settings: Any) -> Producer:
    return Producer(broker.bootstrap, transactional_id="x", **{"retry_backoff_ms": 5, **settings})


def reader(member: Identity | None = MEMBER) -> Any:
    """The part of a consumer that a transaction uses."""
    offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(5, "note")}
    return SimpleNamespace(progress=lambda chosen: GroupProgress("group", offsets, lambda: member))


async def write(producer: Producer, value: bytes, consumer: Any = None, then: Exception | None = None) -> None:
    """A transaction with one record, sent without waiting, and the offsets of a consumer."""
    async with producer.transaction() as transaction:
        await transaction.enqueue(TOPIC, value)
        if consumer is not None:
            await transaction.send_offsets(consumer)
        if then is not None:
            raise then


async def test_what_is_asked_with_transaction_version_2() -> None:
    """Nothing is added in advance, and each transaction has its own epoch and sequences."""
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        for _ in range(2):
            async with producer.transaction() as transaction:
                await transaction.send(TOPIC, b"a")
                await transaction.send(TOPIC, b"b")
                await transaction.send_offsets(reader())
        assert broker.asked_keys == [INIT, PRODUCE, PRODUCE, COMMIT_OFFSETS, END, PRODUCE, PRODUCE, COMMIT_OFFSETS, END]
        assert [each.version for each in broker.asked[1:5]] == [13, 13, 5, 5]
        assert [each.epoch for each in broker.asked] == [-1, 0, 0, 0, 0, 1, 1, 1, 1]
        assert [each.base_sequence for each in broker.batches] == [0, 1, 0, 1]
        assert broker.asked[1].detail == "x"
        assert broker.ends == [True, True]


async def test_what_is_asked_before_transaction_version_2() -> None:
    """Partitions and groups are added once in each transaction; epoch and sequences continue."""
    async with ScriptedTransactions(transaction_version=1) as broker, producing(broker) as producer:
        for _ in range(2):
            async with producer.transaction() as transaction:
                await transaction.send(TOPIC, b"a")
                await transaction.send(TOPIC, b"b")
                await transaction.send_offsets(reader())
                await transaction.send_offsets(reader())
        once = [ADD_PARTITIONS, PRODUCE, PRODUCE, ADD_OFFSETS, COMMIT_OFFSETS, COMMIT_OFFSETS, END]
        assert broker.asked_keys == [INIT, *once, *once]
        assert [each.version for each in broker.asked[1:8]] == [3, 11, 11, 4, 3, 3, 3]
        assert {each.epoch for each in broker.asked[1:]} == {0}
        assert [each.base_sequence for each in broker.batches] == [0, 1, 2, 3]
        assert broker.ends == [True, True]


@BOTH
async def test_what_a_group_is_told(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        async with producer.transaction() as transaction:
            await transaction.send_offsets(reader())
        (told,) = broker.committed_offsets
        assert (told.transactional_id, told.group_id) == ("x", "group")
        assert (told.member_id, told.generation_id, told.group_instance_id) == ("member", 7, "static")
        ((partition,),) = [topic.partitions for topic in told.topics]
        assert (partition.committed_offset, partition.committed_metadata) == (5, "note")
        assert broker.ends == [True]


@BOTH
async def test_a_transaction_of_nothing_asks_nothing(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        async with producer.transaction():
            pass
        with pytest.raises(RuntimeError):
            async with producer.transaction():
                raise RuntimeError
        await write(producer, b"a")
        assert broker.asked_keys[0] == INIT
        assert broker.ends == [True]


@BOTH
async def test_an_exception_aborts_and_goes_on_its_way(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        error = RuntimeError("of the program")
        with pytest.raises(RuntimeError, match="of the program"):
            await write(producer, b"a", reader(), then=error)
        await write(producer, b"b")
        assert broker.ends == [False, True]
        # A new epoch, from the reply or by a request.
        assert broker.asked_keys.count(INIT) == (1 if version == 2 else 2)
        last = broker.batches[-1]
        assert (last.producer_epoch, last.base_sequence) == (1, 0)


@BOTH
async def test_what_was_not_sent_yet_is_not_sent_any_more(version: int) -> None:
    async with (
        ScriptedTransactions(transaction_version=version) as broker,
        producing(broker, linger_ms=60_000) as producer,
    ):
        async with producer.transaction() as transaction:
            future = transaction.send_nowait(TOPIC, b"a")
            await transaction.abort()
        with pytest.raises(TransactionAbortedError):
            future.result()
        assert broker.records == []
        await write(producer, b"b")
        assert broker.records == [b"b"]


@BOTH
@pytest.mark.parametrize("api", [INIT, ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END])
async def test_what_passes_is_asked_again(version: int, api: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker:
        broker.fail(api, *AGAIN)
        async with producing(broker) as producer, producer.transaction() as transaction:
            await transaction.send(TOPIC, b"a")
            await transaction.send_offsets(reader())
        is_used = version == 1 or api not in (ADD_PARTITIONS, ADD_OFFSETS)
        assert broker.asked_keys.count(api) == (len(AGAIN) + 1 if is_used else 0)
        # A coordinator that denies its role or does not reply is looked up again.
        assert broker.looked_up == 2 + (3 if is_used else 0)
        assert broker.ends == [True]


@BOTH
@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_whose_answer_is_lost_is_one_end(version: int, commit: bool) -> None:
    async with ScriptedTransactions(transaction_version=version, does_it_anyway=True) as broker:
        broker.fail(END, None)
        async with producing(broker) as producer:
            async with producer.transaction() as transaction:
                await transaction.send(TOPIC, b"a")
                await (transaction.commit() if commit else transaction.abort())
            await write(producer, b"b")
        if version == 2:
            assert broker.ends == [commit, True]
        assert broker.records == [b"a", b"b"]


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.transaction_abortable,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.topic_authorization_failed,
    ],
)
async def test_a_batch_that_is_refused_aborts_the_transaction_and_not_the_producer(
    version: int, error: ErrorCode
) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.faults.append(Fault(error=error))
        with pytest.raises(TransactionAbortedError, match="it can be retried") as raised:
            await write(producer, b"a")
        assert raised.value.error is error
        assert broker.ends == [False]
        await write(producer, b"b")
        assert broker.ends == [False, True]
        assert broker.batches[-1].base_sequence == 0
        assert broker.batches[-1].producer_epoch == 1


@BOTH
async def test_a_failure_that_the_program_ignores_is_not_committed(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.faults.append(Fault(error=ErrorCode.topic_authorization_failed))
        transaction = await producer.transaction().__aenter__()
        with pytest.raises(DeliveryError):
            await transaction.send(TOPIC, b"a")
        with pytest.raises(TransactionAbortedError, match="leave its block"):
            await transaction.send(TOPIC, b"b")
        with pytest.raises(TransactionAbortedError, match="it can be retried"):
            await transaction.commit()
        assert broker.ends == [False]
        assert broker.records == []


@BOTH
async def test_records_that_are_not_acknowledged_in_time_abort(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.faults.extend([Fault(silent=True, written=True)] * 50)
        with monkeypatch.context() as short:
            short.setattr(Placement, "deadline_s", lambda _: asyncio.get_running_loop().time() + 0.2)
            with pytest.raises(TransactionAbortedError, match="delivery_timeout_ms"):
                await write(producer, b"a")
        broker.faults.clear()
        await write(producer, b"b")
        assert broker.ends == [False, True]


@BOTH
@pytest.mark.parametrize("error", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
@pytest.mark.parametrize("api", [ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END])
async def test_a_fenced_producer_says_what_happened_and_stops(version: int, api: int, error: ErrorCode) -> None:
    if version == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS):
        pytest.skip("is not asked")
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.fail(api, error)
        with pytest.raises(ProducerFencedError, match="another producer has started with it, or the transaction took"):
            await write(producer, b"a", reader())
        count = len(broker.asked)
        with pytest.raises(ProducerFencedError, match="create a new producer"):
            producer.transaction()
        assert len(broker.asked) == count
        assert broker.ends == []


async def test_a_batch_of_a_fenced_producer() -> None:
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        broker.faults.append(Fault(error=ErrorCode.producer_fenced))
        with pytest.raises(ProducerFencedError):
            await write(producer, b"a")
        assert END not in broker.asked_keys


async def test_fenced_after_a_lost_answer_may_have_been_committed() -> None:
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        broker.fail(END, None, ErrorCode.producer_fenced)
        with pytest.raises(ProducerFencedError, match="may already be committed") as raised:
            await write(producer, b"a")
        assert raised.value.may_be_written


@BOTH
async def test_what_was_aborted_meanwhile_is_not_committed(version: int) -> None:
    """Apache Kafka's reply to a commit after the transaction timeout."""
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.fail(END, ErrorCode.invalid_txn_state)
        with pytest.raises(ProducerFencedError, match="transaction_timeout_ms=60000 and was aborted"):
            await write(producer, b"a")


@BOTH
async def test_a_refusal_that_no_other_try_changes_is_the_end(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.fail(END, ErrorCode.transactional_id_authorization_failed)
        with pytest.raises(DeliveryError, match="this producer has stopped") as raised:
            await write(producer, b"a")
        assert raised.value.error is ErrorCode.transactional_id_authorization_failed
        with pytest.raises(DeliveryError):
            producer.transaction()


@BOTH
async def test_a_commit_that_nobody_answers_is_not_called_aborted(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.always[END] = None
        transaction = await producer.transaction().__aenter__()
        await transaction.send(TOPIC, b"a")
        monkeypatch.setattr(transaction._transactions._coordinators, "_timeout_ms", 200)
        with pytest.raises(TransactionUnresolvedError, match="committed or aborted as a whole"):
            await transaction.commit()
        with pytest.raises(TransactionUnresolvedError):
            producer.transaction()


@BOTH
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
    ],
)
async def test_offsets_of_a_member_that_is_none_any_more(version: int, error: ErrorCode) -> None:
    """KIP-447: the group fences it, and the transaction is aborted with all its records."""
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.fail(COMMIT_OFFSETS, error)
        with pytest.raises(CommitFailedError, match="has rebalanced without this consumer"):
            await write(producer, b"a", reader())
        with pytest.raises(CommitFailedError):
            await write(producer, b"b", reader(member=None))
        assert broker.ends == [False, False]
        await write(producer, b"c", reader())
        assert broker.ends == [False, False, True]


@BOTH
async def test_a_failed_commit_of_offsets_that_the_program_ignores(version: int) -> None:
    async with ScriptedTransactions(transaction_version=version) as broker, producing(broker) as producer:
        broker.fail(COMMIT_OFFSETS, ErrorCode.illegal_generation)
        transaction = await producer.transaction().__aenter__()
        with pytest.raises(CommitFailedError):
            await transaction.send_offsets(reader())
        with pytest.raises(TransactionAbortedError):
            await transaction.commit()
        assert broker.ends == [False]


async def test_a_coordinator_that_forgot_the_producer_is_asked_for_a_new_epoch() -> None:
    """The transactional id has expired: the producer gets a new id, unless another producer has taken the name."""
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        broker.fail(END, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping)
        with pytest.raises(TransactionAbortedError):
            await write(producer, b"a")
        assert broker.asked[-1][:3] == (INIT, 5, 0)
        await write(producer, b"b")
        assert broker.ends == [True]


async def test_before_version_2_an_abort_of_what_has_not_begun_goes_on_with_a_new_epoch() -> None:
    """The reply to AddPartitionsToTxn is lost; the coordinator may have executed it, or may still do so."""
    async with ScriptedTransactions(transaction_version=1) as broker, producing(broker) as producer:
        broker.fail(ADD_PARTITIONS, ErrorCode.transaction_abortable)
        broker.fail(END, ErrorCode.invalid_txn_state)
        with pytest.raises(TransactionAbortedError):
            await write(producer, b"a")
        assert broker.asked_keys == [INIT, ADD_PARTITIONS, END, INIT]
        await write(producer, b"b")
        assert broker.batches[-1].producer_epoch == 1


@BOTH
async def test_a_batch_that_is_too_large_is_cut_within_the_transaction(version: int) -> None:
    async with (
        ScriptedTransactions(transaction_version=version, bytes_max=400) as broker,
        producing(broker) as producer,
    ):
        async with producer.transaction() as transaction:
            for number in range(8):
                transaction.send_nowait(TOPIC, b"%d" % number * 100)
        assert broker.records == [b"%d" % number * 100 for number in range(8)]
        assert broker.ends == [True]


async def test_sending_outside_of_a_transaction() -> None:
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        with pytest.raises(TransactionStateError, match="no transaction is open"):
            await producer.send(TOPIC, b"a")
        async with producer.transaction() as transaction:
            await producer.send(TOPIC, b"a")  # is part of it
            with pytest.raises(TransactionStateError, match="one at a time"):
                async with producer.transaction():
                    pass
        with pytest.raises(TransactionStateError):
            await transaction.send(TOPIC, b"b")
        async with producer.transaction():
            with pytest.raises(TransactionStateError):
                transaction.send_nowait(TOPIC, b"of the last one")
    async with ScriptedTransactions() as broker, Producer(broker.bootstrap, transactional_id="y") as other:
        await other.close()
        with pytest.raises(ClientError):
            other.transaction()


async def test_a_producer_without_a_transactional_id() -> None:
    async with ScriptedTransactions() as broker, Producer(broker.bootstrap) as producer:
        with pytest.raises(TransactionStateError, match="transactional_id"):
            producer.transaction()
    with pytest.raises(ValueError, match="need idempotence"):
        Producer("127.0.0.1:1", transactional_id="x", idempotence=False)
    with pytest.raises(ValueError, match="is empty"):
        Producer("127.0.0.1:1", transactional_id="")


async def test_a_program_that_is_cancelled_while_it_commits() -> None:
    """The commit continues by itself; the next transaction begins after it."""
    async with ScriptedTransactions() as broker, producing(broker) as producer:
        broker.fail(END, *[ErrorCode.concurrent_transactions] * 3)

        working = asyncio.create_task(write(producer, b"a"))
        while END not in broker.asked_keys:  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.001)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert broker.ends == []
        await write(producer, b"b")
        assert broker.ends == [True, True]


async def test_closing_aborts_what_is_open() -> None:
    async with ScriptedTransactions() as broker:
        producer = producing(broker)
        await producer.start()
        transaction = await producer.transaction().__aenter__()
        await transaction.send(TOPIC, b"a")
        await producer.close()
        assert broker.ends == [False]


async def test_a_time_out_that_the_broker_does_not_allow() -> None:
    async with ScriptedTransactions() as broker:
        broker.fail(INIT, ErrorCode.invalid_transaction_timeout)
        with pytest.raises(BrokerRefusedError, match=r"transaction\.max\.timeout\.ms"):
            await producing(broker).start()
