"""The producer against a broker that fails on purpose: records are written once and in order, or fail with an error."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from ottla.client import Producer, RecordMetadata
from ottla.client.errors import (
    BufferFullError,
    ClientClosedError,
    DeliveryError,
    DeliveryTimedOutError,
    ProducerFencedError,
    RecordTooLargeError,
    SequenceLostError,
)
from ottla.protocol.model.errors import ErrorCode
from tests.support.client_scripted_broker import PRODUCER_ID, TOPIC, Fault, ScriptedBroker

LOST_REPLY = Fault(written=True)
CUT_BEFORE_WRITING = Fault()
NOT_LEADER = Fault(error=ErrorCode.not_leader_or_follower)
REFUSED = Fault(error=ErrorCode.invalid_record)
TIMED_OUT_BUT_WRITTEN = Fault(written=True, error=ErrorCode.request_timed_out)


def producer_of(broker: ScriptedBroker, **settings: Any) -> Producer:
    defaults: dict[str, Any] = {"batch_bytes": 100, "retry_backoff_ms": 1, "delivery_timeout_ms": 20_000}
    return Producer(broker.bootstrap, **{**defaults, **settings})


def send_numbers(producer: Producer, count: int) -> list[asyncio.Future[RecordMetadata]]:
    """Sends batches of one record each, several in flight."""
    return [producer.send_nowait(TOPIC, b"%03d" % number + bytes(60)) for number in range(count)]


def numbers_in(broker: ScriptedBroker) -> list[int]:
    return [int((value or b"")[:3]) for value in broker.records]


async def test_records_arrive_in_order_with_their_offsets() -> None:
    async with ScriptedBroker() as broker, producer_of(broker) as producer:
        sent = send_numbers(producer, 20)
        await producer.flush()
        assert [future.result().offset for future in sent] == list(range(20))
        assert numbers_in(broker) == list(range(20))
        assert producer.acknowledged_count == 20


@pytest.mark.parametrize("fault", [LOST_REPLY, CUT_BEFORE_WRITING, NOT_LEADER, TIMED_OUT_BUT_WRITTEN])
@pytest.mark.parametrize("before", [0, 1, 4])
async def test_a_retry_neither_doubles_nor_reorders(fault: Fault, before: int) -> None:
    faults = deque([None] * before + [fault])
    async with ScriptedBroker(faults) as broker, producer_of(broker) as producer:
        sent = send_numbers(producer, 12)
        await producer.flush()
        assert numbers_in(broker) == list(range(12))
        assert [future.result().offset for future in sent] == list(range(12))


async def test_a_refused_batch_fails_alone_and_the_numbering_starts_again() -> None:
    async with ScriptedBroker(deque([None, REFUSED])) as broker, producer_of(broker) as producer:
        sent = send_numbers(producer, 8)
        with pytest.raises(DeliveryError, match=r"1 record for t-0 refused.*INVALID_RECORD"):
            await producer.flush()
        assert numbers_in(broker) == [0, 2, 3, 4, 5, 6, 7]
        assert isinstance(sent[1].exception(), DeliveryError)
        assert [future.result().offset for future in sent if future is not sent[1]] == list(range(7))
        assert {header.producer_epoch for header in broker.batches} == {0, 1}
        await producer.flush()  # the failure was reported once


async def test_the_reason_of_a_refusal_is_given_to_send() -> None:
    faults: deque[Fault | None] = deque([Fault(error=ErrorCode.policy_violation)])
    async with ScriptedBroker(faults) as broker, producer_of(broker) as producer:
        with pytest.raises(DeliveryError, match="POLICY_VIOLATION") as failure:
            await producer.send(TOPIC, b"x")
        assert failure.value.error is ErrorCode.policy_violation


async def test_a_fenced_producer_stops() -> None:
    fenced = Fault(error=ErrorCode.invalid_producer_epoch)
    async with ScriptedBroker(deque([fenced])) as broker:
        producer = producer_of(broker)
        await producer.start()
        with pytest.raises(ProducerFencedError):
            await producer.send(TOPIC, b"x")
        with pytest.raises(ProducerFencedError):
            producer.send_nowait(TOPIC, b"y")
        await producer.close()
        assert broker.records == []


async def test_a_broker_that_lost_acknowledged_records_is_noticed() -> None:
    async with ScriptedBroker() as broker:
        producer = producer_of(broker)
        await producer.start()
        await producer.send(TOPIC, b"first")
        broker.faults.append(Fault(error=ErrorCode.out_of_order_sequence_number))
        with pytest.raises(SequenceLostError, match="no longer has the records"):
            await producer.send(TOPIC, b"second")
        await producer.close()


async def test_a_producer_that_retention_made_the_broker_forget_goes_on() -> None:
    async with ScriptedBroker() as broker, producer_of(broker) as producer:
        await producer.send(TOPIC, b"000")
        broker.faults.append(Fault(error=ErrorCode.unknown_producer_id, log_start_offset=1))
        await producer.send(TOPIC, b"001")
        assert numbers_in(broker) == [0, 1]
        assert broker.batches[-1].producer_epoch == 1
        assert broker.batches[-1].base_sequence == 0


async def test_a_forgotten_producer_whose_records_should_be_there_is_an_error() -> None:
    async with ScriptedBroker() as broker:
        producer = producer_of(broker)
        await producer.start()
        await producer.send(TOPIC, b"000")
        broker.faults.append(Fault(error=ErrorCode.unknown_producer_id, log_start_offset=0))
        with pytest.raises(SequenceLostError):
            await producer.send(TOPIC, b"001")
        await producer.close()


async def test_a_batch_that_is_too_large_is_cut() -> None:
    async with ScriptedBroker(bytes_max=400) as broker, producer_of(broker, batch_bytes=4000) as producer:
        sent = send_numbers(producer, 40)
        await producer.flush()
        assert numbers_in(broker) == list(range(40))
        assert [future.result().offset for future in sent] == list(range(40))


async def test_a_record_that_is_too_large_fails_alone() -> None:
    async with ScriptedBroker(bytes_max=400) as broker, producer_of(broker) as producer:
        with pytest.raises(RecordTooLargeError, match="MESSAGE_TOO_LARGE"):
            await producer.send(TOPIC, bytes(500))
        await producer.send(TOPIC, b"001")
        assert numbers_in(broker) == [1]


async def test_a_record_beyond_the_producers_own_limit_is_refused_at_once() -> None:
    async with ScriptedBroker() as broker, producer_of(broker, max_request_bytes=100) as producer:
        with pytest.raises(RecordTooLargeError, match="max_request_bytes=100"):
            producer.send_nowait(TOPIC, bytes(101))


async def test_no_answer_within_the_delivery_timeout_may_have_been_written() -> None:
    async with ScriptedBroker(deque([Fault(written=True, silent=True)])) as broker:
        async with producer_of(broker, delivery_timeout_ms=300) as producer:
            with pytest.raises(DeliveryTimedOutError, match="may or may not be written") as failure:
                await producer.send(TOPIC, b"000")
            assert failure.value.may_be_written
            await producer.send(TOPIC, b"001")
        assert numbers_in(broker) == [0, 1]


async def test_a_record_that_never_left_is_certainly_not_written() -> None:
    async with ScriptedBroker() as broker:
        producer = producer_of(broker, delivery_timeout_ms=300)
        await producer.start()
        await producer.send(TOPIC, b"000")
        port = broker.port
        await broker.__aexit__(None, None, None)
        await asyncio.sleep(0.05)  # until it notices the closed connection
        with pytest.raises(DeliveryTimedOutError, match=f"no broker answered at 127.0.0.1:{port}") as failure:
            await producer.send(TOPIC, b"001")
        assert not failure.value.may_be_written
        await producer.close()


async def test_a_first_record_that_finds_no_broker_in_time_is_timed_out() -> None:
    """Its partition is not even known yet."""
    async with ScriptedBroker() as broker:
        producer = producer_of(broker, delivery_timeout_ms=300)
        await producer.start()
        await broker.__aexit__(None, None, None)
        await asyncio.sleep(0.05)
        with pytest.raises(DeliveryTimedOutError, match="no metadata within delivery_timeout_ms=300: ") as failure:
            await producer.send("another", b"000")
        assert not failure.value.may_be_written
        await producer.close()


async def test_the_buffer_is_bounded() -> None:
    silent: deque[Fault | None] = deque([Fault(silent=True)] * 10)
    async with ScriptedBroker(silent) as broker:
        producer = producer_of(broker, buffer_bytes=500, delivery_timeout_ms=400)
        await producer.start()
        await producer.partitions(TOPIC)
        with pytest.raises(BufferFullError):
            send_numbers(producer, 100)
        waits = asyncio.create_task(producer.enqueue(TOPIC, b"late"))
        done, _ = await asyncio.wait([waits], timeout=0.05)
        assert not done
        with pytest.raises(DeliveryError):
            await producer.flush()
        await asyncio.wait_for(waits, 5)
        with pytest.raises(DeliveryTimedOutError):
            await producer.close()


async def test_acks_0_returns_without_an_offset() -> None:
    async with ScriptedBroker() as broker, producer_of(broker, acks=0, idempotence=False) as producer:
        where = await producer.send(TOPIC, b"000", timestamp_ms=5)
        assert where == RecordMetadata(TOPIC, 0, -1, 5)


async def test_without_idempotence_there_is_no_producer_id() -> None:
    async with ScriptedBroker() as broker, producer_of(broker, acks=1, idempotence=False) as producer:
        await producer.send(TOPIC, b"000")
        assert broker.batches[0].producer_id == -1
    async with ScriptedBroker() as broker, producer_of(broker) as producer:
        await producer.send(TOPIC, b"000")
        assert broker.batches[0].producer_id == PRODUCER_ID


async def test_linger_gathers_records() -> None:
    async with ScriptedBroker() as broker, producer_of(broker, batch_bytes=10_000, linger_ms=50) as producer:
        for number in range(5):
            await producer.enqueue(TOPIC, b"%03d" % number)
            await asyncio.sleep(0.001)
        await producer.flush()
        assert [header.record_count for header in broker.batches] == [5]


async def test_a_closed_producer_says_so() -> None:
    async with ScriptedBroker() as broker:
        producer = producer_of(broker)
        with pytest.raises(ClientClosedError, match="not started"):
            producer.send_nowait(TOPIC, b"x")
        await producer.start()
        await producer.close()
        with pytest.raises(ClientClosedError, match="is closed"):
            producer.send_nowait(TOPIC, b"x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": 1}, "idempotence needs acks"),
        ({"acks": 2, "idempotence": False}, 'acks must be "all", 1 or 0'),
        ({"max_in_flight": 6}, "max_in_flight between 1 and 5"),
        ({"compression": "zip"}, "compression must be one of none, gzip"),
        ({"buffer_bytes": 10}, "buffer_bytes"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Producer("127.0.0.1:9092", **settings)


@pytest.mark.parametrize("run", range(12))
async def test_whatever_fails_nothing_is_doubled_reordered_or_falsely_acknowledged(run: int, seed: int) -> None:
    chance = random.Random(seed + run)
    kinds = [None, None, None, LOST_REPLY, CUT_BEFORE_WRITING, NOT_LEADER, TIMED_OUT_BUT_WRITTEN, REFUSED]
    faults = deque(chance.choice(kinds) for _ in range(25))
    async with ScriptedBroker(faults) as broker:
        producer = producer_of(broker, max_in_flight=chance.randint(1, 5))
        await producer.start()
        sent = send_numbers(producer, 40)
        await asyncio.wait(sent, timeout=60)
        written = numbers_in(broker)
        assert written == sorted(set(written)), "doubled or out of order"
        for number, future in enumerate(sent):
            if future.exception() is None:
                assert written[future.result().offset] == number
            elif getattr(future.exception(), "may_be_written", False) is False:
                assert number not in written, "reported as not written, and it is there"
        broker.faults.clear()
        assert (await producer.send(TOPIC, b"999")).offset == len(written)
        with_failures = any(future.exception() is not None for future in sent)
        if with_failures:
            with pytest.raises(DeliveryError):
                await producer.close()
        else:
            await producer.close()
