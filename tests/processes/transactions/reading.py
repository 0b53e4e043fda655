"""Reads topics with librdkafka, and their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ottla.bench.calls import LATEST, Caller
from ottla.bench.leaders import any_broker, ask_leaders
from ottla.net.apis import LIST_OFFSETS
from tests.processes.transactions.checker import Seen

POLL_S = 0.2
WAIT_S = 120.0
ANSWER_S = 5.0
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class LiveReader:
    """Reads committed records from the beginning as long as the run lasts."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int) -> None:
        self.seen: dict[str, list[Seen]] = {topic: [] for topic in topics}
        self.errors: list[str] = []
        self._consumer = Consumer(_properties(bootstrap, "read_committed"))
        self._consumer.assign([TopicPartition(topic, at, 0) for topic in topics for at in range(partitions)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.seen[message.topic() or ""].append(_seen(message))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self.errors.append(f"the reader lost its place in {message.topic()}: {error}")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Seen]:
    """Reads up to the end of each partition."""
    consumer = Consumer(_properties(bootstrap, isolation) | {"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[Seen] = []
    unread = set(range(partitions))
    deadline_s = time.monotonic() + WAIT_S
    while unread:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{topic} was not read to its end: {unread} is left")
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(_seen(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition() or 0)
    consumer.close()
    return sorted(found)


def _seen(message: Any) -> Seen:
    return Seen(message.partition(), message.offset(), message.value().decode())


def _properties(bootstrap: str, isolation: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "isolation.level": isolation,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }


def unstable(bootstrap: str, topics: Iterable[str]) -> list[str]:
    """Returns the partitions whose last stable offset is below their end, because a transaction is open. Raises OSError
    during a failover."""
    found = []
    for topic in topics:
        ends, stable = (_ends(bootstrap, topic, isolation) for isolation in (READ_UNCOMMITTED, READ_COMMITTED))
        found += [f"{topic}-{at}: {stable[at]} of {end}" for at, end in sorted(ends.items()) if stable[at] < end]
    return found


def _ends(bootstrap: str, topic: str, isolation: int) -> dict[int, int]:
    with any_broker(bootstrap) as caller:
        leaders = ask_leaders(caller, [topic])
    ends: dict[int, int] = {}
    for leader in {led.leader for led in leaders.partitions.values()}:
        if leader not in leaders.addresses:
            raise ConnectionError("a partition has no leader")
        host, port = leaders.addresses[leader]
        led_here = [index for (_, index), led in leaders.partitions.items() if led.leader == leader]
        places = [{"partition_index": at, "current_leader_epoch": -1, "timestamp": LATEST} for at in led_here]
        body = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": topic, "partitions": places}],
            "timeout": timedelta(seconds=ANSWER_S),
        }
        with Caller(port, host) as caller:
            for result in caller.call(LIST_OFFSETS, body).topics[0].partitions:
                if result.error_code:
                    raise ConnectionError(result.error_code.name)
                ends[int(result.partition_index)] = int(result.offset)
    return ends
