"""Load generators: librdkafka producers that offer records at a rate, whatever became of the ones before.

Each runs in a process of its own. Its queue is bounded: a record that finds it full is shed, counted, and never sent.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.bench.saturation.rendezvous import Rendezvous

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

CHUNK_BYTES = 4 << 20
CHUNK_RECORDS = 1000
PAUSE_S = 0.002
"""The shortest wait between two chunks: records that become due meanwhile are offered together."""
MESSAGE_BYTES_MAX = 1_048_588
METADATA_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What one producer does in one row."""

    bootstrap: str
    topic: str
    record_bytes: int
    is_idempotent: bool
    seconds: float
    """How long records are offered. 0: until `records_max` are handed over."""
    rate: float = 0.0
    """Records a second. 0: as many as fit into the queue."""
    records_max: int = 0
    """0: no limit."""
    partitions: int = 1
    """Each gets one record before the start, so that the client is connected to all leaders."""
    name: str = ""
    meeting: Rendezvous | None = None
    """Where all producers of a row start together. None: start at once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of librdkafka, above the ones that every producer has."""
    wait_s: float = 60.0
    """How long to wait at the end for records that are not acknowledged."""


@dataclass(slots=True)
class Offered:
    """What became of the records of one producer."""

    warm_up: int = 0
    """Acknowledged before the start. Not in the other figures."""
    offered: int = 0
    """Due in the measured time: accepted by the client's queue, or shed."""
    shed: int = 0
    acknowledged_in_time: int = 0
    """Within the measured time: the goodput."""
    acknowledged: int = 0
    failed: int = 0
    unresolved: int = 0
    """Neither acknowledged nor failed when the wait ended."""
    last_acknowledged_s: float = 0.0
    """Since the start, when the last outstanding record was resolved."""
    offered_s: float = 0.0
    """The measured time: from the start until the last record was offered."""
    errors: Counter[str] = field(default_factory=Counter)


NICENESS = 10


def queue_settings(queue_bytes: int) -> dict[str, Any]:
    return {
        "queue.buffering.max.kbytes": max(queue_bytes >> 10, 1024),
        "queue.buffering.max.messages": 200_000,
    }


def producer_settings(offer: Offer) -> dict[str, Any]:
    """Defaults of librdkafka apart from acks, the size limit and the time after which a record has failed."""
    return {
        "bootstrap.servers": offer.bootstrap,
        "acks": "all",
        "enable.idempotence": offer.is_idempotent,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "message.timeout.ms": 45_000,
        "delivery.report.only.error": True,
        "log_level": 0,
        **offer.settings,
    }


def offer_records(offer: Offer) -> Offered:
    """Returns when every record is acknowledged or has failed, or `wait_s` after the last one was offered."""
    # Load comes from other machines, as a rule: here the generators must not take the processor from the brokers.
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    return _Generator(offer).run()


class _Generator:
    def __init__(self, offer: Offer) -> None:
        from confluent_kafka import Producer

        self._offer = offer
        self._value = os.urandom(offer.record_bytes)
        self._chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // offer.record_bytes))
        self._result = Offered()
        self._accepted = 0
        self._producer: Producer = Producer(producer_settings(offer))
        self._producer.list_topics(offer.topic, timeout=METADATA_TIMEOUT_S)

    def run(self) -> Offered:
        offer, result = self._offer, self._result
        self._warm_up()
        if offer.meeting is not None:
            start_at = offer.meeting.arrive(offer.name)
            time.sleep(max(0.0, start_at - time.monotonic()))
        begin = time.monotonic()
        if offer.rate:
            self._at_a_rate(begin)
        else:
            self._as_fast_as_possible(begin)
        end = time.monotonic()
        result.offered_s = end - begin
        result.acknowledged_in_time = self._acknowledged()
        deadline = end + offer.wait_s
        while len(self._producer) and time.monotonic() < deadline:
            self._producer.poll(0.01)
        result.last_acknowledged_s = time.monotonic() - begin
        result.unresolved = len(self._producer)
        result.acknowledged = self._acknowledged()
        self._producer.purge()
        return result

    def _warm_up(self) -> None:
        """Raises RuntimeError if a record is not acknowledged."""
        for partition in range(self._offer.partitions):
            self._producer.produce(self._offer.topic, self._value[:100], partition=partition, callback=self._on_failure)
        left = self._producer.flush(self._offer.wait_s)
        if left or self._result.failed:
            raise RuntimeError(f"the cluster does not acknowledge records before the row begins: {self._result.errors}")
        self._result.warm_up = self._offer.partitions

    def _acknowledged(self) -> int:
        """Everything the client took, without what it still holds and what it gave up."""
        return self._accepted - len(self._producer) - self._result.failed

    def _at_a_rate(self, begin: float) -> None:
        """The n-th record is due n/rate seconds after the start. Records that are due are offered, or shed."""
        offer, result = self._offer, self._result
        total = max(round(offer.rate * offer.seconds), 1)
        while True:
            elapsed_s = time.monotonic() - begin
            due = min(total, int(offer.rate * elapsed_s) + 1)
            while result.offered < due:
                count = min(self._chunk, due - result.offered)
                result.offered += count
                accepted = self._hand_over(count)
                if accepted < count:
                    result.shed += due - result.offered + count - accepted
                    result.offered = due
            if elapsed_s >= offer.seconds:
                return
            next_due_s = result.offered / offer.rate
            wait_s = max(min(next_due_s, offer.seconds) - (time.monotonic() - begin), PAUSE_S)
            self._wait(wait_s)

    def _wait(self, wait_s: float) -> None:
        """Serves delivery reports meanwhile."""
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def _as_fast_as_possible(self, begin: float) -> None:
        """Waits for room in the queue: nothing is shed."""
        offer, result = self._offer, self._result
        while not (offer.seconds and time.monotonic() - begin >= offer.seconds):
            count = self._chunk
            if offer.records_max:
                count = min(count, offer.records_max - self._accepted)
                if not count:
                    return
            if self._hand_over(count) < count:
                self._producer.poll(0.001)
            result.offered = self._accepted
            self._producer.poll(0)

    def _hand_over(self, count: int) -> int:
        """Returns how many the client's queue had room for. Raises RuntimeError for any other refusal."""
        from confluent_kafka import KafkaError

        messages: list[dict[str, Any]] = [{"value": self._value, "callback": self._on_failure} for _ in range(count)]
        accepted: int = self._producer.produce_batch(self._offer.topic, messages)
        self._accepted += accepted
        if accepted < count:
            error = next(message["_error"] for message in messages if "_error" in message)
            if error.code() != KafkaError._QUEUE_FULL:
                raise RuntimeError(f"the client refused a record: {error}")
        return accepted

    def _on_failure(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._result.failed += 1
            self._result.errors[error.name()] += 1
