"""Load generators: librdkafka producers that offer records at a rate, whatever happens to the earlier ones.

Each runs in its own process with a bounded queue. A record that finds the queue full is shed: counted, but never sent.
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
"""The shortest wait between two chunks; records that become due meanwhile are offered together."""
MESSAGE_BYTES_MAX = 1_048_588
METADATA_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Offer:
    """The load of one producer in one row."""

    bootstrap: str
    topic: str
    record_bytes: int
    is_idempotent: bool
    seconds: float
    """How long records are offered. 0 means until `records_max` are handed over."""
    rate: float = 0.0
    """Records per second. 0 means as many as fit into the queue."""
    records_max: int = 0
    """0 means no limit."""
    partitions: int = 1
    """Each partition gets one record before the start, so that the client is connected to all leaders."""
    name: str = ""
    meeting: Rendezvous | None = None
    """Where all producers of a row start together. None starts at once."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """librdkafka settings that override those of every producer."""
    wait_s: float = 60.0
    """How long to wait at the end for unacknowledged records."""


@dataclass(slots=True)
class OfferResult:
    """The outcome of the records of one producer."""

    warm_up: int = 0
    """Acknowledged before the start. Not included in the other figures."""
    offered: int = 0
    """Due in the measured time, and either accepted by the client's queue or shed."""
    shed: int = 0
    acknowledged_in_time: int = 0
    """Acknowledged within the measured time: the goodput."""
    acknowledged: int = 0
    failed: int = 0
    unresolved: int = 0
    """Neither acknowledged nor failed when the wait ended."""
    last_acknowledged_s: float = 0.0
    """When the last outstanding record was resolved, since the start."""
    offered_s: float = 0.0
    """The measured time, from the start until the last record was offered."""
    errors: Counter[str] = field(default_factory=Counter)


NICENESS = 10


def queue_settings(queue_bytes: int) -> dict[str, Any]:
    """Returns the librdkafka settings that bound a producer's queue."""
    return {
        "queue.buffering.max.kbytes": max(queue_bytes >> 10, 1024),
        "queue.buffering.max.messages": 200_000,
    }


def producer_settings(offer: Offer) -> dict[str, Any]:
    """Returns librdkafka's defaults, except for acks, the size limit and the delivery timeout."""
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


def offer_records(offer: Offer) -> OfferResult:
    """Offers records. Returns when each is acknowledged or has failed, or `wait_s` after the last one was offered."""
    # Load usually comes from other machines, so the generators must not take CPU time from the brokers here.
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    return _Generator(offer).run()


class _Generator:
    def __init__(self, offer: Offer) -> None:
        from confluent_kafka import Producer

        self._offer = offer
        self._value = os.urandom(offer.record_bytes)
        self._chunk = max(1, min(CHUNK_RECORDS, CHUNK_BYTES // offer.record_bytes))
        self._result = OfferResult()
        self._accepted = 0
        self._producer: Producer = Producer(producer_settings(offer))
        self._producer.list_topics(offer.topic, timeout=METADATA_TIMEOUT_S)

    def run(self) -> OfferResult:
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
        """Sends a record to each partition. Raises RuntimeError if one is not acknowledged."""
        for partition in range(self._offer.partitions):
            self._producer.produce(self._offer.topic, self._value[:100], partition=partition, callback=self._on_failure)
        left = self._producer.flush(self._offer.wait_s)
        if left or self._result.failed:
            raise RuntimeError(f"the cluster does not acknowledge records before the row begins: {self._result.errors}")
        self._result.warm_up = self._offer.partitions

    def _acknowledged(self) -> int:
        """Returns the number of acknowledged records: those that the client accepted, less queued and failed ones."""
        return self._accepted - len(self._producer) - self._result.failed

    def _at_a_rate(self, begin: float) -> None:
        """Offers records on schedule, or sheds them. The n-th record is due n/rate seconds after the start."""
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
        """Waits while serving delivery reports."""
        deadline = time.monotonic() + wait_s
        while (left_s := deadline - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def _as_fast_as_possible(self, begin: float) -> None:
        """Sends records as fast as possible. Waits for room in the queue, so that nothing is shed."""
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
        """Returns how many records the client's queue had room for. Raises RuntimeError for any other rejection."""
        from confluent_kafka import KafkaError

        messages: list[dict[str, Any]] = [{"value": self._value, "callback": self._on_failure} for _ in range(count)]
        accepted: int = self._producer.produce_batch(self._offer.topic, messages)
        self._accepted += accepted
        if accepted < count:
            error = next(message["_error"] for message in messages if "_error" in message)
            if error.code() != KafkaError._QUEUE_FULL:
                raise RuntimeError(f"the client rejected a record: {error}")
        return accepted

    def _on_failure(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._result.failed += 1
            self._result.errors[error.name()] += 1
