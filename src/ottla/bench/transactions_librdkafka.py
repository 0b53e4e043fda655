"""The load of `transactions` with a real client: librdkafka, through confluent-kafka, with its defaults.

The client is mostly the bottleneck, with one Python call per record and several thread switches per transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.bench.transactional_load import RECORD_BYTES, WARM_UP, Meter, TransactionResult

if TYPE_CHECKING:
    from confluent_kafka import Producer

TIMEOUT_S = 60.0
CALLS_BETWEEN_LOOKS = 500
SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.messages": 200_000,
}


def drive(bootstrap: str, pid: int, topic: str, size: int, producers: int, seconds: float) -> TransactionResult:
    """Runs the load with one producer, whatever `producers` says. A `size` of 0 means a plain idempotent producer."""
    return Load(bootstrap, pid, topic, size).run(seconds)


class Load:
    """The producer of one measurement."""

    def __init__(self, bootstrap: str, pid: int, topic: str, size: int) -> None:
        from confluent_kafka import Producer

        settings: dict[str, str | int | bool] = {"bootstrap.servers": bootstrap, **SETTINGS}
        if size:
            settings["transactional.id"] = f"{topic}-librdkafka"
        self._producer: Producer = Producer(settings)
        self._pid = pid
        self._topic = topic
        self._size = size
        self._value = bytes(RECORD_BYTES)
        self._offsets_taken = 0

    def run(self, seconds: float) -> TransactionResult:
        """Warms up, then measures."""
        if self._size:
            self._producer.init_transactions(TIMEOUT_S)
        for each_s in (seconds * WARM_UP, seconds):
            meter = Meter(self._pid)
            end_s = time.perf_counter() + each_s
            if self._size:
                self._commit_on(meter, end_s)
            else:
                self._write_on(meter, end_s)
            measured = meter.end(self._offsets_taken)
        return measured

    def _commit_on(self, meter: Meter, end_s: float) -> None:
        """Commits transactions until the time is over, but at least one. Raises if a commit fails."""
        while True:
            began_s = time.perf_counter()
            self._producer.begin_transaction()
            self._write(self._size)
            self._producer.commit_transaction(TIMEOUT_S)
            meter.committed(self._size, began_s)
            self._offsets_taken += 1
            if time.perf_counter() >= end_s:
                return

    def _write_on(self, meter: Meter, end_s: float) -> None:
        """Writes without transactions until the time is over, but at least once."""
        while True:
            self._write(CALLS_BETWEEN_LOOKS)
            meter.measured.records += CALLS_BETWEEN_LOOKS
            if time.perf_counter() >= end_s:
                break
        left = self._producer.flush(TIMEOUT_S)
        if left:
            raise RuntimeError(f"{left} records were not acknowledged")

    def _write(self, count: int) -> None:
        written = 0
        while written < count:
            try:
                self._producer.produce(self._topic, self._value, partition=0)
                written += 1
            except BufferError:
                self._producer.poll(0.01)
        self._producer.poll(0)
        self._offsets_taken += count
