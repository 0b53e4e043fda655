"""Reads with librdkafka, through confluent-kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.bench.suite.loads import READ_TIMEOUT_S, ConsumerLoad, ConsumerResult, LoadFailedError, wait_until
from ottla.bench.suite.payloads import is_stamped, stamp_of
from ottla.bench.suite.read_progress import ReadProgress

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

RECORDS_A_CALL = 2_000
POLL_S = 0.02
CONSUMER_SETTINGS = {
    "group.id": "ottla-bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # With the default of one second, a fast reader would run out of records between its fetches.
    "fetch.queue.backoff.ms": 2,
    "fetch.wait.max.ms": 100,
}


def consume(load: ConsumerLoad) -> ConsumerResult:
    """Reads from the given offsets on, beginning at the agreed time."""
    from confluent_kafka import Consumer as Librdkafka
    from confluent_kafka import TopicPartition

    consumer = Librdkafka({"bootstrap.servers": load.bootstrap, **CONSUMER_SETTINGS})
    try:
        wait_until(load.start_at_ns)
        consumer.assign([TopicPartition(load.topic, index, offset) for index, offset in load.offsets.items()])
        return _read(consumer, load)
    finally:
        consumer.close()


def _read(consumer: Consumer, load: ConsumerLoad) -> ConsumerResult:
    found = ConsumerResult(begin_ns=time.monotonic_ns())
    progress = ReadProgress(load, time.monotonic())
    timed = load.ends is None and is_stamped(load.configuration)
    """Records that were written long ago have no latency."""
    while not progress.is_done():
        messages = _what_is_there(consumer)
        now_ns = time.monotonic_ns()
        if not messages:
            progress.nothing_came(time.monotonic(), READ_TIMEOUT_S)
            continue
        _check(messages)
        progress.advance(_positions(messages), time.monotonic())
        found.note(now_ns, len(messages), sum(map(len, messages)))
        if timed:
            _time(messages, now_ns, load, found)
    return found


def _what_is_there(consumer: Consumer) -> list[Message]:
    """Returns messages as soon as there is one. A call for many would wait until it has them all or times out."""
    messages: list[Message] = consumer.consume(1, POLL_S)
    return messages + consumer.consume(RECORDS_A_CALL, 0) if messages else messages


def _check(messages: list[Message]) -> None:
    """Raises LoadFailedError on an error.

    Like `_positions`, it runs no line of Python per record, because the measured brokers share the machine.
    """
    from confluent_kafka import Message

    error = next(filter(None, map(Message.error, messages)), None)
    if error is not None:
        raise LoadFailedError(f"reading failed: {error}")


def _positions(messages: list[Message]) -> dict[int, int]:
    """Returns the next offset of each partition."""
    from confluent_kafka import Message

    last = dict(zip(map(Message.partition, messages), map(Message.offset, messages), strict=True))
    return {partition or 0: (offset or 0) + 1 for partition, offset in last.items()}


def _time(messages: list[Message], now_ns: int, load: ConsumerLoad, found: ConsumerResult) -> None:
    """Records latencies from when each record was due."""
    add = found.latencies.add
    for message in messages:
        due_ns = stamp_of(message.value() or b"")
        if due_ns >= load.measured_from_ns:
            add((now_ns - due_ns) // 1000)
