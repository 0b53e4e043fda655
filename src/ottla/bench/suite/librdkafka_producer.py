"""Writes with librdkafka, through confluent-kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ottla.bench.suite.loads import (
    BUFFER_BYTES,
    FLUSH_TIMEOUT_S,
    LATENCY_EVERY,
    LoadFailedError,
    Phase,
    ProducerLoad,
    ProducerResult,
    wait_until,
)
from ottla.bench.suite.payloads import RING, PreparedRecord, is_stamped, prepare, stamped
from ottla.bench.suite.settings import Configuration, count, number

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

FAILURES_KEPT = 5
POLL_S = 0.01


def producer_settings(configuration: Configuration) -> dict[str, Any]:
    """Returns librdkafka's settings for a configuration."""
    is_sync = configuration["producer.mode"] == "sync"
    found: dict[str, Any] = {
        "acks": str(configuration["producer.acks"]),
        "enable.idempotence": configuration["producer.idempotence"],
        "max.in.flight.requests.per.connection": count(configuration, "producer.in_flight"),
        "batch.size": count(configuration, "producer.batch_bytes"),
        "linger.ms": 0 if is_sync else number(configuration, "producer.linger_ms"),
        "compression.type": configuration["producer.compression"],
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": BUFFER_BYTES >> 10,
        "socket.nagle.disable": True,
    }
    if batch_records := count(configuration, "producer.batch_records"):
        found["batch.num.messages"] = batch_records
    return found


def produce(load: ProducerLoad) -> ProducerResult:
    """Writes a load. When it returns, every record is acknowledged or named in the failures."""
    return _Writer(load).run()


class _Writer:
    def __init__(self, load: ProducerLoad) -> None:
        from confluent_kafka import Producer

        self._load = load
        self._producer = Producer({"bootstrap.servers": load.bootstrap, **producer_settings(load.configuration)})
        self._producer.list_topics(load.topic, timeout=FLUSH_TIMEOUT_S)
        self._stamped = is_stamped(load.configuration)
        records = prepare(load.configuration, seed=load.client)
        self._records = cycle(records)
        self._chunks = cycle([_chunk(records[at : at + LATENCY_EVERY]) for at in range(0, RING, LATENCY_EVERY)])
        self._produced = ProducerResult()
        self._sent_bytes = 0

    def run(self) -> ProducerResult:
        produced = self._produced
        write = self._one_by_one if self._load.is_sync else self._at_a_rate if self._load.rate else self._streaming
        warm_up, measured = self._load.phases()
        wait_until(self._load.start_at_ns)
        produced.sent_in_all = write(warm_up)
        self._flush()
        produced.latencies.clear()
        self._sent_bytes = 0
        produced.begin_ns = time.monotonic_ns()
        produced.records = write(measured)
        self._flush()
        produced.end_ns = time.monotonic_ns()
        produced.sent_in_all += produced.records
        produced.value_bytes = self._sent_bytes
        produced.has_rate = measured.rate > 0
        produced.offered = measured.offered() if measured.rate else produced.records
        return produced

    def _flush(self) -> None:
        if left := self._producer.flush(FLUSH_TIMEOUT_S):
            raise LoadFailedError(f"{left} records were not acknowledged within {FLUSH_TIMEOUT_S:.0f} s")

    def _on_delivery(self, since_ns: int, error: KafkaError | None, _: Message, times: int = 1) -> None:
        if error is None:
            self._produced.latencies.add((time.monotonic_ns() - since_ns) // 1000, times)
        elif len(self._produced.failures) < FAILURES_KEPT:
            self._produced.failures.append(str(error))

    def _streaming(self, phase: Phase) -> int:
        """Writes as fast as the client accepts records. Waits for room when its buffer is full."""
        deadline_ns = phase.deadline_ns(time.monotonic_ns())
        sent = 0
        while (now_ns := time.monotonic_ns()) < deadline_ns and sent < phase.records_max:
            messages, value_bytes = next(self._chunks)
            if len(messages) > phase.records_max - sent:
                messages = messages[: phase.records_max - sent]
                value_bytes = sum(len(message["value"]) for message in messages)
            if self._stamped:
                messages = [{**message, "value": stamped(message["value"], now_ns)} for message in messages]
            messages[0]["callback"] = partial(self._on_delivery, now_ns)
            self._send_all(messages)
            sent += len(messages)
            self._sent_bytes += value_bytes
            self._producer.poll(0)
        return sent

    def _send_all(self, messages: list[dict[str, Any]]) -> None:
        while self._queue(messages) < len(messages):
            messages = [message for message in messages if _is_to_be_sent_again(message)]
            self._producer.poll(POLL_S)

    def _queue(self, messages: list[dict[str, Any]]) -> int:
        """Returns how many messages there was room for. The others carry the reason."""
        queued: int = self._producer.produce_batch(self._load.topic, messages)
        return queued

    def _at_a_rate(self, phase: Phase) -> int:
        """Sends each record at its due time. The latency of a late record counts from when it was due."""
        with self._polling():
            return self._send_when_due(phase)

    def _send_when_due(self, phase: Phase) -> int:
        begin_ns = time.monotonic_ns()
        deadline_ns, offered = phase.deadline_ns(begin_ns), phase.offered()
        sent = 0
        while sent < offered and (now_ns := time.monotonic_ns()) < deadline_ns:
            due = min(offered, phase.due_count(begin_ns, now_ns)) - sent
            if due <= 0:
                wait_until(phase.due_ns(begin_ns, sent))
                continue
            dues_ns = [phase.due_ns(begin_ns, at) for at in range(sent, sent + min(due, LATENCY_EVERY))]
            self._send_due(dues_ns)
            sent += len(dues_ns)
        return sent

    def _send_due(self, dues_ns: Sequence[int]) -> None:
        """Sends records in one call, so that the client keeps up. The first, which is the latest, is timed for all."""
        messages = []
        for due_ns in dues_ns:
            key, value = next(self._records)
            message: dict[str, Any] = {"value": stamped(value, due_ns) if self._stamped else value}
            messages.append(message if key is None else {**message, "key": key})
            self._sent_bytes += len(value)
        messages[0]["callback"] = partial(self._on_delivery, dues_ns[0], times=len(dues_ns))
        self._send_all(messages)

    @contextmanager
    def _polling(self) -> Iterator[None]:
        """Polls in a thread, so that an acknowledgement is recorded on arrival, not when the next record is due."""
        ended = threading.Event()

        def poll() -> None:
            while not ended.is_set():
                self._producer.poll(POLL_S)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _try_send(self, due_ns: int) -> bool:
        key, value = next(self._records)
        if self._stamped:
            value = stamped(value, due_ns)
        try:
            self._producer.produce(self._load.topic, value, key, on_delivery=partial(self._on_delivery, due_ns))
        except BufferError:
            time.sleep(POLL_S)
            return False
        self._sent_bytes += len(value)
        return True

    def _one_by_one(self, phase: Phase) -> int:
        begin_ns = time.monotonic_ns()
        deadline_ns = phase.deadline_ns(begin_ns)
        sent = 0
        while sent < phase.records_max and (now_ns := time.monotonic_ns()) < deadline_ns:
            due_ns = phase.due_ns(begin_ns, sent) if phase.rate else now_ns
            if due_ns > now_ns:
                wait_until(min(due_ns, deadline_ns))
                continue
            if not self._try_send(due_ns):
                continue
            sent += 1
            while len(self._producer) > 0:
                self._producer.poll(1.0)
        return sent


def _chunk(records: Sequence[PreparedRecord]) -> tuple[list[dict[str, Any]], int]:
    """Returns messages for the client's batch call, and the size of their values. The first one will be timed."""
    messages = [
        {"value": record.value} if record.key is None else {"key": record.key, "value": record.value}
        for record in records
    ]
    return messages, sum(len(record.value) for record in records)


def _is_to_be_sent_again(message: dict[str, Any]) -> bool:
    """Returns whether there was no room for a message. Raises LoadFailedError if it was rejected for good."""
    from confluent_kafka import KafkaError

    error = message.pop("_error", None)
    if error is not None and error.code() != KafkaError._QUEUE_FULL:
        raise LoadFailedError(f"the client rejected a record: {error}")
    return error is not None
