"""Reads partition leaders from any broker, and changes them through the controller."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ottla.bench.calls import Caller
from ottla.net.apis import METADATA, ClientApi
from ottla.protocol.model.errors import ErrorCode

WAIT_S = 60.0
ALTER_PARTITION_REASSIGNMENTS = ClientApi(45, "AlterPartitionReassignments", (0, 1))
ELECT_LEADERS = ClientApi(43, "ElectLeaders", (0, 2))
TIMEOUT = timedelta(seconds=20)
PREFERRED = 0


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """The leader and the in-sync replicas of a partition."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaders:
    """The leaders as one broker sees them."""

    addresses: dict[int, tuple[str, int]]
    controller: int
    partitions: dict[tuple[str, int], PartitionLeader]


@contextmanager
def any_broker(bootstrap: str) -> Iterator[Caller]:
    """Connects to the first broker that answers. Raises OSError if none does."""
    problem: OSError | None = None
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            caller = Caller(int(port), host)
        except OSError as refused:
            problem = refused
            continue
        with caller:
            yield caller
        return
    assert problem is not None
    raise problem


def ask_leaders(caller: Caller, topics: Sequence[str]) -> Leaders:
    """Returns the leaders of topics from a broker's metadata."""
    body = {
        "topics": [{"topic_id": None, "name": name} for name in topics],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    reply = caller.call(METADATA, body)
    partitions = {
        (str(topic.name), int(each.partition_index)): PartitionLeader(
            int(each.leader_id), tuple(map(int, each.replica_nodes)), tuple(map(int, each.isr_nodes))
        )
        for topic in reply.topics
        if not topic.error_code
        for each in topic.partitions
    }
    addresses = {int(node.node_id): (str(node.host), int(node.port)) for node in reply.brokers}
    return Leaders(addresses, int(reply.controller_id), partitions)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, tuple[str, int]]:
    """Waits until a partition has a leader, and returns its id and its address."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with any_broker(bootstrap) as caller:
            found = ask_leaders(caller, [topic])
        led = found.partitions.get((topic, partition))
        if led is not None and led.leader in found.addresses:
            return led.leader, found.addresses[led.leader]
        time.sleep(0.05)
    raise TimeoutError(f"{topic}-{partition} has no leader")


def wait_until_in_sync(bootstrap: str, topic: str, count: int) -> None:
    """Waits until all replicas of every partition of the topic are in sync."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with any_broker(bootstrap) as caller:
            found = ask_leaders(caller, [topic])
        if found.partitions and all(len(led.in_sync) == count for led in found.partitions.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"not all replicas of {topic} are in sync: {found.partitions}")


def reassign(caller: Caller, replicas: dict[tuple[str, int], tuple[int, ...]]) -> None:
    """Reassigns partitions to these replicas."""
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": index, "replicas": replicas[topic, index]} for index in indexes],
        }
        for topic, indexes in _by_topic(list(replicas))
    ]
    body = {"timeout": TIMEOUT, "allow_replication_factor_change": False, "topics": topics}
    caller.call(ALTER_PARTITION_REASSIGNMENTS, body)


def elect_preferred(caller: Caller, places: list[tuple[str, int]]) -> list[ErrorCode]:
    """Elects the preferred leaders of partitions."""
    topics = [{"topic": topic, "partitions": indexes} for topic, indexes in _by_topic(places)]
    reply: Any = caller.call(
        ELECT_LEADERS, {"election_type": PREFERRED, "topic_partitions": topics, "timeout": TIMEOUT}
    )
    if reply.error_code:
        return [ErrorCode(reply.error_code)]
    return [ErrorCode(each.error_code) for topic in reply.replica_election_results for each in topic.partition_result]


def _by_topic(places: list[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    found = itertools.groupby(sorted(places), key=lambda place: place[0])
    return [(topic, [index for _, index in group]) for topic, group in found]


def move_leader(bootstrap: str, topic: str, leader: int) -> None:
    """Moves the leader of the topic's first partition, and waits until it leads."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with any_broker(bootstrap) as caller:
            found = ask_leaders(caller, [topic])
        led = found.partitions[topic, 0]
        if led.leader == leader:
            return
        if found.controller in found.addresses:
            host, port = found.addresses[found.controller]
            with Caller(port, host) as caller:
                reassign(caller, {(topic, 0): (leader, *(each for each in led.replicas if each != leader))})
                elect_preferred(caller, [(topic, 0)])
        time.sleep(0.05)
    raise TimeoutError(f"{leader} does not lead {topic}")
