"""Who leads what, asked of any broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ottla.bench.calls import Caller
from ottla.client.apis import METADATA

WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Led:
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leaders:
    """As one broker sees them."""

    addresses: dict[int, tuple[str, int]]
    controller: int
    partitions: dict[tuple[str, int], Led]


@contextmanager
def any_broker(bootstrap: str) -> Iterator[Caller]:
    """A connection to the first that answers. Raises OSError if none does."""
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
    body = {
        "topics": [{"topic_id": None, "name": name} for name in topics],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    reply = caller.call(METADATA, body)
    partitions = {
        (str(topic.name), int(each.partition_index)): Led(
            int(each.leader_id), tuple(map(int, each.replica_nodes)), tuple(map(int, each.isr_nodes))
        )
        for topic in reply.topics
        if not topic.error_code
        for each in topic.partitions
    }
    addresses = {int(node.node_id): (str(node.host), int(node.port)) for node in reply.brokers}
    return Leaders(addresses, int(reply.controller_id), partitions)


def leader_of(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, tuple[str, int]]:
    """Its id and its address. Waits until there is one."""
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
    """All replicas of every partition of the topic."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with any_broker(bootstrap) as caller:
            found = ask_leaders(caller, [topic])
        if found.partitions and all(len(led.in_sync) == count for led in found.partitions.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"not all replicas of {topic} are in sync: {found.partitions}")
