"""Writes to and reads from a broker process through confluent-kafka, with every outcome visible."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 20.0
QUIET = {"log_level": 2}
"""librdkafka reports each lost connection, which is expected in these tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one record: the acknowledged offset, or the name of the error."""

    offset: int | None
    error: str | None = None


class NotReadableError(Exception):
    """A read was rejected. Carries the error's name."""


def create_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    """Creates a topic. Configs have underscores for dots: `ottla_durability="cache"`."""
    create_replicated(bootstrap, name, partitions, 1, **configs)


def create_replicated(bootstrap: str, name: str, partitions: int, replicas: int, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, replicas, config=dotted)])[name].result(TIMEOUT_S)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)


def topic_names(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).topics)


def plain_producer(bootstrap: str, **settings: Any) -> Producer:
    """A producer without retries, so that the broker's first reply is the outcome."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "acks": -1,
            "message.send.max.retries": 0,
            "max.in.flight.requests.per.connection": 1,
            "message.timeout.ms": 10_000,
            "socket.timeout.ms": 8_000,
            "linger.ms": 2,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )


def write(bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **settings: Any) -> list[Outcome]:
    """Writes values in order and waits for the outcome of each."""
    producer = plain_producer(bootstrap, **settings)
    outcomes: list[Outcome] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        outcomes.append(Outcome(message.offset()) if error is None else Outcome(None, error.name()))

    for value in values:
        producer.produce(topic, value=value, partition=partition, on_delivery=on_delivery)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S * 2) == 0, "deliveries were not reported in time"
    return outcomes


def acknowledged(outcomes: Sequence[Outcome]) -> list[int]:
    return [outcome.offset for outcome in outcomes if outcome.offset is not None]


def consumer_of(bootstrap: str, *, reset: str = "error") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            **QUIET,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
        }
    )


def ends(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """Returns the first offset and the one after the last."""
    consumer = consumer_of(bootstrap)
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        return first, end
    finally:
        consumer.close()


def read(
    bootstrap: str, topic: str, partition: int = 0, *, offset: int | None = None, end: int | None = None
) -> list[tuple[int, bytes]]:
    """Returns offsets and values of a partition, up to its end. Raises NotReadableError if the read is rejected."""
    (found,) = read_all(bootstrap, [(topic, partition)], offset=offset, end=end).values()
    return found


def read_all(
    bootstrap: str,
    partitions: Iterable[tuple[str, int]],
    *,
    offset: int | None = None,
    end: int | None = None,
    timeout_s: float = 60,
) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    # From the current beginning: retention may move it during the read.
    consumer = consumer_of(bootstrap, reset="earliest" if offset is None else "error")
    try:
        return _read_all(consumer, list(partitions), offset, end, time.monotonic() + timeout_s)
    finally:
        consumer.close()


def _read_all(
    consumer: Consumer, partitions: list[tuple[str, int]], offset: int | None, end: int | None, deadline: float
) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {where: [] for where in partitions}
    left: dict[tuple[str, int], int] = {}
    for topic, partition in partitions:
        first, last = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        stop = last if end is None else end
        if stop > (first if offset is None else offset):
            left[topic, partition] = stop
    start = OFFSET_BEGINNING if offset is None else offset
    consumer.assign([TopicPartition(topic, partition, start) for topic, partition in left])
    while left:
        if time.monotonic() > deadline:
            raise AssertionError(f"the end was not reached in time: {_progress(found, left)}")
        for message in consumer.consume(10_000, 0.1):
            if not left:
                break  # errors of fetches beyond the end do not matter here
            if (error := message.error()) is not None:
                raise NotReadableError(error.name())
            where = (message.topic() or "", message.partition() or 0)
            at = message.offset() or 0
            found[where].append((at, message.value() or b""))
            if at + 1 >= left.get(where, at + 2):
                del left[where]
    return found


def _progress(found: Mapping[tuple[str, int], list[tuple[int, bytes]]], left: Mapping[tuple[str, int], int]) -> str:
    last = {where: found[where][-1][0] if found[where] else None for where in left}
    return ", ".join(f"{where}: last offset {last[where]} of {left[where]}" for where in left)


def refused_with(call: Any) -> str:
    """Returns the name of the error that a confluent-kafka call raises."""
    try:
        call()
    except KafkaException as refused:
        return str(refused.args[0].name())
    raise AssertionError("the call was not refused")
