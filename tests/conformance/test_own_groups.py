"""Ottla's consumer in groups on a real broker: mixed with librdkafka, fenced, and from the command line.

Like the other tests here it also runs against Apache Kafka. `tests/processes/groups` kills and pauses members of
several libraries and coordinators; `tests/unit/client/test_client_groups.py` has the tests that need virtual time.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from ottla.client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from ottla.client.errors import CommitFailedError, FencedInstanceError
from ottla.testing.groups import assignment, lag_zero

TopicOf = Callable[[str], str]
PARTITIONS, COUNT = 6, 600
WAIT_S = 60
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "range": ({"assignors": ["range"]}, {"partition.assignment.strategy": "range"}),
    "roundrobin": ({"assignors": ["roundrobin"]}, {"partition.assignment.strategy": "roundrobin"}),
    "cooperative-sticky": (
        {"assignors": ["cooperative-sticky"]},
        {"partition.assignment.strategy": "cooperative-sticky"},
    ),
    "consumer": ({"group_protocol": "consumer"}, {"group.protocol": "consumer"}),
}
"""Settings of Ottla's consumer and of librdkafka's."""


class Librdkafka:
    """A member in a thread: reads and commits until it is stopped."""

    def __init__(self, bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
        self.found: list[bytes] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "enable.auto.commit": False,
                **settings,
            }
        )
        self._consumer.subscribe([topic])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.found.append(message.value() or b"")
                self._consumer.commit(message=message, asynchronous=True)
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def librdkafka(bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> Iterator[Librdkafka]:
    member = Librdkafka(bootstrap, group, topic, settings)
    try:
        yield member
    finally:
        member.stop()


async def fill(bootstrap: str, topic: str, count: int = COUNT, first: int = 0) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(first, first + count):
            await producer.enqueue(topic, b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()


async def create(bootstrap: str, topic: str) -> str:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)
    return topic


async def read_for_ever(consumer: Consumer, topic: str, found: list[bytes]) -> None:
    async with consumer:
        consumer.subscribe([topic])
        while True:
            found += [record.value or b"" for record in await consumer.fetch_records()]


@pytest.mark.parametrize("way", WAYS)
async def test_one_group_of_two_libraries(bootstrap: str, fresh_topic: TopicOf, way: str) -> None:
    """Whichever member leads, all understand it: Ottla's joins first, then one of librdkafka, then another of Ottla."""
    topic = await create(bootstrap, fresh_topic("own-group"))
    group = f"mixed-{topic}"
    ours, theirs = WAYS[way]
    found: list[bytes] = []

    def join() -> asyncio.Task[None]:
        settings = {
            "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 200,
            "heartbeat_interval_ms": 500,
            **ours,
        }
        return asyncio.create_task(read_for_ever(Consumer(bootstrap, group_id=group, **settings), topic, found))

    first = join()
    await assignment(bootstrap, group, 1, timeout_s=WAIT_S)
    with librdkafka(bootstrap, group, topic, theirs) as other:
        await assignment(bootstrap, group, 2, timeout_s=WAIT_S)
        second = join()
        shared = await assignment(bootstrap, group, 3, timeout_s=WAIT_S)
        assert sorted(len(member.assigned) for member in shared.members) == [2, 2, 2]
        await fill(bootstrap, topic)
        await lag_zero(bootstrap, group, [topic], timeout_s=WAIT_S)
        assert sorted({int(value) for value in found + other.found}) == list(range(COUNT))
        assert found
        assert other.found
        first.cancel()  # the leader of a classic group leaves in order
        await asyncio.wait([first])
        await assignment(bootstrap, group, 2, timeout_s=WAIT_S)
        await fill(bootstrap, topic, first=COUNT)
        await lag_zero(bootstrap, group, [topic], timeout_s=WAIT_S)
        assert {int(value) for value in found + other.found} == set(range(2 * COUNT))
    second.cancel()
    await asyncio.wait([second])


async def test_offsets_of_one_library_are_those_of_the_other(bootstrap: str, fresh_topic: TopicOf) -> None:
    topic = await create(bootstrap, fresh_topic("own-offsets"))
    place = TopicPartition(topic, 0)
    settings = {"bootstrap.servers": bootstrap, "group.id": f"offsets-{topic}"}
    theirs = confluent_kafka.Consumer(settings)
    async with Consumer(bootstrap, group_id=f"offsets-{topic}") as ours:
        await ours.commit({place: OffsetAndMetadata(4, "mine")})
        (found,) = theirs.committed([confluent_kafka.TopicPartition(topic, 0)], WAIT_S)
        assert found.offset == 4
        theirs.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 5)], asynchronous=False)
        assert await ours.committed([place, (topic, 1)]) == {
            place: OffsetAndMetadata(5),
            TopicPartition(topic, 1): None,
        }
    theirs.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_fenced_member(bootstrap: str, fresh_topic: TopicOf, protocol: str) -> None:
    """Removed by an administrator; and, in a classic group, replaced by a member with the same instance id."""
    topic = await create(bootstrap, fresh_topic("own-fenced"))
    group = f"fenced-{topic}"
    lost: list[TopicPartition] = []
    settings: dict[str, Any] = {"group_id": group, "group_protocol": protocol, "max_poll_interval_ms": 1000}
    async with Consumer(bootstrap, **settings) as consumer:
        consumer.subscribe([topic], on_lost=lost.extend)
        while len(consumer.assignment) < PARTITIONS:
            await consumer.fetch_records(timeout_ms=100)
        while consumer.group_identity is not None:  # noqa: ASYNC110 - the removal after a timeout raises no event
            await asyncio.sleep(0.1)
        with pytest.raises(CommitFailedError, match="the group has rebalanced without this consumer"):
            await consumer.commit({(topic, 0): 1})
        while len(lost) < PARTITIONS or not consumer.in_group:
            await consumer.fetch_records(timeout_ms=100)
        await consumer.commit({(topic, 0): 1})
    if protocol == "consumer":
        return
    settings = {"group_id": group, "group_instance_id": "same", "heartbeat_interval_ms": 200}
    async with Consumer(bootstrap, **settings) as first, Consumer(bootstrap, **settings) as second:
        first.subscribe([topic])
        while not first.in_group:
            await first.fetch_records(timeout_ms=100)
        second.subscribe([topic])
        while not second.in_group:
            await second.fetch_records(timeout_ms=100)
        with pytest.raises(FencedInstanceError):
            await first.fetch_records(timeout_ms=WAIT_S * 1000)


async def test_topics_by_a_regular_expression(bootstrap: str, fresh_topic: TopicOf) -> None:
    one = await create(bootstrap, fresh_topic("own-pattern"))
    async with Consumer(bootstrap, group_id=f"pattern-{one}", metadata_max_age_ms=500) as consumer:
        consumer.subscribe(re.compile(rf"{one}(-more)?"))
        while len(consumer.assignment) < PARTITIONS:
            await consumer.fetch_records(timeout_ms=100)
        await create(bootstrap, f"{one}-more")
        while len(consumer.assignment) < 2 * PARTITIONS:
            await consumer.fetch_records(timeout_ms=100)


@contextmanager
def consuming(bootstrap: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ottla", "consume", *arguments]
    environment = {**os.environ, "OTTLA_BOOTSTRAP": bootstrap}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_the_command_line_goes_on_where_it_stopped(bootstrap: str, fresh_topic: TopicOf, protocol: str) -> None:
    topic = await create(bootstrap, fresh_topic("own-cli-group"))
    await fill(bootstrap, topic, 60)
    arguments = (topic, "--group", f"cli-{topic}", "--from-beginning", "--protocol", protocol)
    with consuming(bootstrap, *arguments, "-n", "10") as process:
        first, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "assigned" in said
        assert "10 records printed" in said
    with consuming(bootstrap, *arguments) as process:
        assert process.stdout is not None
        second = [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=WAIT_S)
        assert (process.returncode, rest) == (130, "")
        assert "Traceback" not in said
    assert sorted(int(line) for line in [*first.splitlines(), *second]) == list(range(60))
    left_by = time.monotonic() + WAIT_S
    async with Admin(bootstrap) as admin:
        while (await admin.describe_group(f"cli-{topic}")).members:
            assert time.monotonic() < left_by, "it did not leave"
    await fill(bootstrap, topic, 6, first=60)
    with consuming(bootstrap, *arguments, "--until-end") as process:
        third, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    assert sorted(map(int, third.splitlines())) == list(range(60, 66))
