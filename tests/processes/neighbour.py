"""A well-behaved client that writes and reads all the time while others misbehave, and must not be disturbed."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.processes.traffic import create_topic

TOPIC = "neighbour"
RECORDS_A_TURN = 20
TIMEOUT_S = 30.0


class Neighbour:
    """Writes a few records, waits for their acknowledgements and reads them back, repeatedly until the block ends.

    At the end, every record was acknowledged at the expected offset and read once, in order and unchanged, and neither
    connection was lost.
    """

    def __init__(self, bootstrap: str, **topic_configs: str) -> None:
        self.turns = 0
        self._bootstrap = bootstrap
        self._topic_configs = topic_configs
        self._complaints: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="neighbour", daemon=True)

    def __enter__(self) -> Self:
        create_topic(self._bootstrap, TOPIC, 1, **self._topic_configs)
        self._thread.start()
        self.lives_on()
        return self

    def lives_on(self, turns: int = 3) -> None:
        """Waits until it has completed further turns."""
        until = self.turns + turns
        deadline = time.monotonic() + TIMEOUT_S
        while self.turns < until and not self._complaints:
            assert time.monotonic() < deadline, "the neighbour is not served any more"
            time.sleep(0.01)
        assert not self._complaints, self._complaints

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(TIMEOUT_S)
        if error is None:
            assert not self._thread.is_alive()
            assert not self._complaints, self._complaints

    def _live(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "error_cb": self._on_error}
        producer = Producer({**settings, "linger.ms": 1, "message.timeout.ms": 20_000})
        consumer = Consumer({**settings, "group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 20})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        try:
            while not self._ended.is_set() and not self._complaints:
                self._turn(producer, consumer, self.turns * RECORDS_A_TURN)
                self.turns += 1
        except Exception as error:
            self._complaints.append(repr(error))
        finally:
            consumer.close()

    def _turn(self, producer: Producer, consumer: Consumer, first: int) -> None:
        due = [(offset, b"%d " % offset * (offset % 50 + 1)) for offset in range(first, first + RECORDS_A_TURN)]
        for _, value in due:
            producer.produce(TOPIC, value, partition=0, on_delivery=self._on_delivery)
        assert producer.flush(TIMEOUT_S) == 0, "records were not acknowledged"
        found: list[tuple[int | None, bytes | None]] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < len(due) and time.monotonic() < deadline:
            for message in consumer.consume(len(due) - len(found), 0.1):
                assert message.error() is None, message.error()
                found.append((message.offset(), message.value()))
        assert found == due, f"read {found[:3]}... instead of {due[:3]}..."

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._complaints.append(f"a record was refused: {error}")

    def _on_error(self, error: KafkaError) -> None:
        self._complaints.append(f"a connection failed: {error}")
