"""Requests of the harness to brokers: the coordinator, committed offsets, and commits that must be rejected."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from datetime import timedelta

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.calls import LATEST, Caller
from ottla.bench.leaders import any_broker, ask_leaders
from ottla.net.apis import LIST_OFFSETS, ClientApi
from ottla.protocol.model.errors import ErrorCode

FIND_COORDINATOR = ClientApi(10, "FindCoordinator", (4, 4))
OFFSET_COMMIT = ClientApi(8, "OffsetCommit", (9, 9))
GROUP_KEY = 0
WAIT_S = 60.0
ANSWER_S = 5.0
ASK_S = 2.0
"""Timeout of one broker before the next one is tried."""
MOVING = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)


def create_topic(bootstrap: str, topic: str, partitions: int, replicas: int) -> None:
    """Creates a topic; waits until the brokers have found one another."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result()
            return
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def coordinator_of(bootstrap: str, group: str) -> tuple[int, int]:
    """Returns the coordinator's id and port. Waits until there is one, and skips paused brokers."""
    told = "nobody answers"
    deadline_s = time.monotonic() + WAIT_S
    for address in itertools.cycle(bootstrap.split(",")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{group} has no coordinator: {told}")
        host, _, port = address.rpartition(":")
        try:
            with Caller(int(port), host, timeout_s=ASK_S) as caller:
                reply = caller.call(FIND_COORDINATOR, {"key_type": GROUP_KEY, "coordinator_keys": [group]})
        except OSError as error:
            told = f"{address}: {error}"
            time.sleep(0.1)
            continue
        (found,) = reply.coordinators
        if not found.error_code:
            return int(found.node_id), int(found.port)
        told = str(found)
        time.sleep(0.1)
    raise AssertionError("the circle of brokers has ended")


def commit_as(
    bootstrap: str, group: str, topic: str, partition: int, *, member_id: str, generation: int, offset: int
) -> ErrorCode:
    """Sends a commit in the name of a member."""
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                ],
            }
        ],
    }
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            with Caller(coordinator_of(bootstrap, group)[1]) as caller:
                reply = caller.call(OFFSET_COMMIT, body)
            error = ErrorCode(reply.topics[0].partitions[0].error_code)
        except OSError:
            error = ErrorCode.coordinator_not_available
        if error not in MOVING or time.monotonic() > deadline_s:
            return error
        time.sleep(0.1)


class Observer:
    """Reads the ends of a topic and the commits of a group without joining it."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._bootstrap = bootstrap
        self._topic = topic
        self._places = [TopicPartition(topic, index) for index in range(partitions)]

    def ends(self) -> Sequence[int]:
        """Asks the current leaders, since librdkafka keeps asking dead ones. Raises OSError."""
        with any_broker(self._bootstrap) as caller:
            found = ask_leaders(caller, [self._topic])
        ends: dict[int, int] = {}
        for leader in {led.leader for led in found.partitions.values()}:
            if leader not in found.addresses:
                raise ConnectionError("a partition has no leader")
            host, port = found.addresses[leader]
            with Caller(port, host) as caller:
                ends |= self._ends_of(
                    caller, [index for (_, index), led in found.partitions.items() if led.leader == leader]
                )
        return [ends[place.partition] for place in self._places]

    def _ends_of(self, caller: Caller, indexes: Sequence[int]) -> dict[int, int]:
        partitions = [{"partition_index": at, "current_leader_epoch": -1, "timestamp": LATEST} for at in indexes]
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": self._topic, "partitions": partitions}],
            "timeout": timedelta(seconds=ANSWER_S),
        }
        results = caller.call(LIST_OFFSETS, body).topics[0].partitions
        for result in results:
            if result.error_code:
                raise ConnectionError(result.error_code.name)
        return {int(result.partition_index): int(result.offset) for result in results}

    def committed(self) -> Sequence[int]:
        """Returns the committed offsets, -1 where there is none."""
        return [max(each.offset, -1) for each in self._consumer.committed(self._places, ANSWER_S)]

    def close(self) -> None:
        self._consumer.close()
