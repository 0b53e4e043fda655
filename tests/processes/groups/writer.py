"""Writes to all partitions of a topic continuously during a round."""

from __future__ import annotations

import itertools
import threading

from confluent_kafka import KafkaError, Producer

RECORDS_A_SECOND = 120
PAUSE_S = 0.05
FLUSH_S = 60.0


class Writer:
    """Unacknowledged records may also be in the log, so the end of the log is what counts."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._partitions = partitions
        self._stopping = threading.Event()
        self.acknowledged = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        places = itertools.cycle(range(self._partitions))
        count = int(RECORDS_A_SECOND * PAUSE_S)
        while not self._stopping.wait(PAUSE_S):
            for partition in itertools.islice(places, count):
                self._producer.produce(self._topic, b"record", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(error.name())

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(FLUSH_S)
