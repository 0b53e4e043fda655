"""Changes topics while the broker is killed: a confirmed change must hold after the restart, others may hold."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.processes.traffic import QUIET

TIMEOUT_S = 4.0
PAUSE_S = 0.05
ABSENT = 0


class AdminLoad:
    """Creates, grows, configures and deletes topics in a thread while it is not paused.

    For each topic it knows the partition counts (0: no such topic) and the retention values that the broker may report.
    More than one value is allowed only while the outcome of a change is unknown.
    """

    def __init__(
        self, bootstrap: str, chance: random.Random, trim: tuple[str, int], trim_to: Callable[[], int]
    ) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 3000, **QUIET})
        self._chance = chance
        self._trim = trim
        self._trim_to = trim_to
        self.trimmed = (0, 0)
        """The offset up to which records were certainly deleted, and the one up to which they may have been."""
        self._partitions: dict[str, set[int]] = {}
        self._retention: dict[str, set[str]] = {}
        self._running = threading.Event()
        self._ended = False
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="admin load", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        self._idle.clear()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()
        self._idle.wait(TIMEOUT_S * 2)

    def end(self) -> None:
        self.pause()
        self._ended = True
        self._running.set()
        self._thread.join(TIMEOUT_S * 2)

    def confirmed(self) -> int:
        return len(self._partitions)

    def problems(self) -> list[str]:
        """Returns the changes that the broker forgot. Call it while paused, after a restart. The reported state becomes
        the expected one."""
        listed = self._admin.list_topics(timeout=20).topics
        found = []
        for topic, allowed in self._partitions.items():
            count = len(listed[topic].partitions) if topic in listed else ABSENT
            if count not in allowed:
                found.append(f"topic {topic} has {count} partitions, confirmed was {sorted(allowed)}")
            self._partitions[topic] = {count}
            if count != ABSENT:
                retention = self._retention_of(topic)
                if retention not in self._retention[topic]:
                    found.append(f"topic {topic} has retention.ms {retention}, not {self._retention[topic]}")
                self._retention[topic] = {retention}
        return found

    def _retention_of(self, topic: str) -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return str(self._admin.describe_configs([resource])[resource].result(20)["retention.ms"].value)

    def _run(self) -> None:
        while not self._ended:
            if not self._running.is_set():
                self._idle.set()
                self._running.wait()
                continue
            self._change_something()
            threading.Event().wait(PAUSE_S)

    def _change_something(self) -> None:
        there = [topic for topic, counts in self._partitions.items() if ABSENT not in counts and len(counts) == 1]
        action = self._chance.randrange(7)
        if action == 6:
            self._delete_records()
        elif action < 3 or not there:
            self._create(f"made-{len(self._partitions)}")
        elif action == 3:
            self._delete(self._chance.choice(there))
        elif action == 4:
            self._grow(self._chance.choice(there))
        else:
            self._configure(self._chance.choice(there))

    def _create(self, topic: str) -> None:
        count = self._chance.randrange(1, 4)
        self._partitions[topic] = {ABSENT, count}
        self._retention[topic] = {"60000"}
        new = NewTopic(topic, count, 1, config={"retention.ms": "60000"})
        if _succeeds(lambda: self._admin.create_topics([new])[topic].result(TIMEOUT_S)):
            self._partitions[topic] = {count}

    def _delete(self, topic: str) -> None:
        self._partitions[topic].add(ABSENT)
        if _succeeds(lambda: self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)):
            self._partitions[topic] = {ABSENT}

    def _grow(self, topic: str) -> None:
        (count,) = self._partitions[topic]
        self._partitions[topic].add(count + 1)
        grown = NewPartitions(topic, count + 1)
        if _succeeds(lambda: self._admin.create_partitions([grown])[topic].result(TIMEOUT_S)):
            self._partitions[topic] = {count + 1}

    def _delete_records(self) -> None:
        """Deletes the older half of the acknowledged records."""
        confirmed, asked = self.trimmed
        offset = (asked + self._trim_to()) // 2
        if offset <= asked:
            return
        self.trimmed = (confirmed, offset)
        where = TopicPartition(*self._trim, offset)
        if _succeeds(lambda: self._admin.delete_records([where])[where].result(TIMEOUT_S)):
            self.trimmed = (offset, offset)

    def _configure(self, topic: str) -> None:
        value = str(self._chance.randrange(100_000, 200_000))
        self._retention[topic].add(value)
        change = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
        if _succeeds(lambda: self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)):
            self._retention[topic] = {value}


def _succeeds(change: Callable[[], object]) -> bool:
    """Returns False if the outcome is unknown: the broker may have died before or after the change."""
    try:
        change()
    except (KafkaException, TimeoutError):
        return False
    return True
