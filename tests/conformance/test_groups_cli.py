"""`ottla groups` on groups of other client libraries.

Also runs against Apache Kafka (OTTLA_CONFORMANCE_BOOTSTRAP), whose groups it shows and resets in the same way.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.structs import OffsetAndMetadata

from ottla.cli import main
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, World

TopicOf = Callable[[str], str]
WAIT_S = 90.0
PARTITIONS = 3
RECORDS = 20
HOUR_MS = 3_600_000


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Commands:
    """Runs `ottla groups` in this process, since starting another one takes longer than the command."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: str, expected: int = 0) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["groups", *arguments, "--bootstrap", self.bootstrap])
        assert code == expected, err.getvalue() + out.getvalue()
        return Done(code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def fails(self, *arguments: str) -> str:
        """Returns the error message."""
        return self(*arguments, expected=1).stderr.splitlines()[-1]

    def committed(self, group: str) -> list[int | None]:
        return [each["committed"] for each in self.json("describe", group)["partitions"]]


@pytest.fixture
def groups(bootstrap: str) -> Commands:
    return Commands(bootstrap)


@pytest.fixture
def topic(bootstrap: str, world: World, fresh_topic: TopicOf) -> str:
    """Three partitions with a record for each of twenty seconds, an hour ago: one batch each."""
    name = fresh_topic("lag")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, replication_factor=world.replicas)])[name].result(
        WAIT_S
    )
    begin_ms = int(time.time() * 1000) - HOUR_MS
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
    for index in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(name, b"%d" % index, partition=partition, timestamp=begin_ms + index * 1000)
        assert producer.flush(WAIT_S) == 0  # a separate batch for each record
    return name


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Creates a group without members, as a reader does that assigns partitions to itself."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    deadline = time.monotonic() + WAIT_S
    while True:  # librdkafka passes on the error of a coordinator that is still being created
        try:
            consumer.commit(offsets=places, asynchronous=False)
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    consumer.close()


@contextmanager
def member(bootstrap: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """A member that has all partitions and has committed five records of each."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "worker",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + WAIT_S
    while len(consumer.assignment()) < PARTITIONS:
        consumer.poll(0.1)
        assert time.monotonic() < deadline, "no assignment"
    consumer.commit(offsets=[TopicPartition(topic, index, 5) for index in range(PARTITIONS)], asynchronous=False)
    try:
        yield consumer
    finally:
        consumer.close()


def until_empty(groups: Commands, group: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while groups.json("describe", group)["state"] != "Empty":
        assert time.monotonic() < deadline, "the member stays"
        time.sleep(0.2)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member(groups: Commands, topic: str, fresh_topic: TopicOf, protocol: str) -> None:
    group = fresh_topic("group")
    with member(groups.bootstrap, group, topic, **{"group.protocol": protocol}):
        described = groups.json("describe", group)
        assert (described["state"], described["type"], len(described["members"])) == ("Stable", protocol, 1)
        (one,) = described["members"]
        assert one["client_id"] == "worker"
        assert one["topics"] == [topic]
        assert [(each["topic"], each["partition"]) for each in one["assigned"]] == [(topic, 0), (topic, 1), (topic, 2)]
        lag = [(each["committed"], each["end_offset"], each["lag"]) for each in described["partitions"]]
        assert lag == [(5, RECORDS, RECORDS - 5)] * PARTITIONS
        assert {each["member_id"] for each in described["partitions"]} == {one["member_id"]}
        assert described["lag"] == PARTITIONS * (RECORDS - 5)
        # The sixth record is five seconds younger than an hour, and this test takes some time.
        assert 3595 <= described["lag_seconds"] < 3595 + 10 * WAIT_S

        (listed,) = [each for each in groups.json("list") if each["name"] == group]
        assert (listed["state"], listed["type"], listed["members"]) == ("Stable", protocol, 1)
        assert (listed["coordinator"], listed["lag"]) == (described["coordinator"], described["lag"])
        assert group not in [each["name"] for each in groups.json("list", "--state", "Empty")]
        assert group in [each["name"] for each in groups.json("list", "--type", protocol)]
        text = groups("describe", group).stdout
        assert f"group {group}  Stable  {protocol}" in text
        assert "1 member, lag 45 records" in text
        assert group in groups("list").stdout

        plan = groups("reset", group, "--topic", topic, "--to-latest")
        assert f'--execute would fail now: group "{group}" has 1 member' in plan.stderr
        sentence = groups.fails("reset", group, "--topic", topic, "--to-latest", "--execute")
        assert f'group "{group}" has 1 member, which would not notice: stop them first' in sentence
        assert f'group "{group}": it has members; stop them first (NON_EMPTY_GROUP)' in groups.fails("delete", group)
        assert "a member of the group subscribes" in groups.fails("delete", group, "--topic", topic)
        assert groups.committed(group) == [5] * PARTITIONS
    until_empty(groups, group)
    groups("reset", group, "--topic", topic, "--to-latest", "--execute")
    assert groups.committed(group) == [RECORDS] * PARTITIONS
    assert groups("delete", group).stdout == f"deleted {group}\n"
    assert "there is no such group" in groups.fails("describe", group)


@pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
def test_each_way_to_reset(groups: Commands, topic: str, fresh_topic: TopicOf, tmp_path: Path) -> None:
    group = fresh_topic("group")
    commit(groups.bootstrap, group, {(topic, 0): 5, (topic, 1): 6, (topic, 2): 7})

    plan = groups("reset", group, "--all-topics", "--to-earliest")
    assert "nothing was changed; add --execute" in plan.stderr
    assert "3 partitions, 3 with another offset than before" in plan.stdout
    assert groups.committed(group) == [5, 6, 7]

    done = groups("reset", group, "--all-topics", "--to-earliest", "--execute")
    assert groups.committed(group) == [0, 0, 0]
    assert f"3 offsets of group {group} committed" in done.stderr
    way_back = tmp_path / "offsets.csv"
    way_back.write_text("".join(line + "\n" for line in done.stdout.splitlines() if line.startswith(f"{topic},")))
    groups("reset", group, "--from-file", str(way_back), "--execute")
    assert groups.committed(group) == [5, 6, 7]

    groups("reset", group, "--topic", f"{topic}:0,2", "--to-offset", "9", "--execute")
    assert groups.committed(group) == [9, 6, 9]
    groups("reset", group, "--all-topics", "--shift-by", "-3", "--execute")
    assert groups.committed(group) == [6, 3, 6]
    groups("reset", group, "--topic", topic, "--to-time", "3590s", "--execute")
    at = groups.committed(group)
    assert all(each is not None and 10 <= each <= RECORDS for each in at), "the first record since then"

    clamped = groups.json("reset", group, "--topic", topic, "--to-offset", "1000", "--execute")
    assert clamped["executed"] is True
    assert {(each["new"], each["remark"]) for each in clamped["offsets"]} == {
        (RECORDS, f"1000 is after the end of the log at {RECORDS}")
    }
    assert groups.committed(group) == [RECORDS] * PARTITIONS
    groups("reset", group, "--all-topics", "--shift-by", "-1000", "--execute")
    assert groups.committed(group) == [0] * PARTITIONS
    late = groups("reset", group, "--all-topics", "--to-time", "2100-01-01T00:00:00Z")
    assert "no record is that recent" in late.stdout


def test_a_reader_begins_where_it_was_put(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    group = fresh_topic("group")
    missing = groups.fails("reset", group, "--topic", topic, "--to-offset", "15", "--execute")
    assert f'group "{group}": the group does not exist; --create creates it' in missing
    groups("reset", group, "--topic", topic, "--to-offset", "15", "--create", "--execute")
    with member(groups.bootstrap, fresh_topic("another"), topic):
        assert groups.json("describe", group)["lag"] == PARTITIONS * (RECORDS - 15)
    reader = Consumer({"bootstrap.servers": groups.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    offsets: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while len(offsets) < PARTITIONS * (RECORDS - 15) and time.monotonic() < deadline:
        message = reader.poll(0.2)
        if message is not None and message.error() is None:
            offsets.append(message.offset() or 0)
    reader.close()
    assert sorted(offsets) == sorted(list(range(15, RECORDS)) * PARTITIONS)


def test_records_that_were_deleted_unread(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    group = fresh_topic("group")
    commit(groups.bootstrap, group, {(topic, 0): 5, (topic, 1): RECORDS})
    admin = AdminClient({"bootstrap.servers": groups.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        deleted.result(WAIT_S)
    first, second = groups.json("describe", group)["partitions"]
    assert (first["committed"], first["lag"], first["missed"]) == (5, RECORDS - 12, 7)
    assert first["lag_seconds"] >= 3588, "of the first record that is still there"
    assert (second["lag"], second["lag_seconds"], second["missed"]) == (0, 0.0, 0)
    assert "7 records deleted unread" in groups("describe", group).stdout
    groups("reset", group, "--all-topics", "--to-current", "--execute")
    assert groups.committed(group) == [12, RECORDS]


@pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
def test_the_time_of_records_that_are_large(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    """A broker returns one batch that is larger than the limit, not one of each partition."""
    group = fresh_topic("group")
    producer = Producer({"bootstrap.servers": groups.bootstrap, "enable.idempotence": True})
    sizes = {0: 500_000, 1: 100, 2: 60_000}
    minute_ago_ms = int(time.time() * 1000) - 60_000
    for partition, size in sizes.items():
        producer.produce(topic, bytes(size), partition=partition, timestamp=minute_ago_ms)
    assert producer.flush(WAIT_S) == 0
    commit(groups.bootstrap, group, {(topic, partition): RECORDS for partition in sizes})
    partitions = groups.json("describe", group)["partitions"]
    assert [each["lag"] for each in partitions] == [1, 1, 1]
    assert all(60 <= each["lag_seconds"] < 60 + 10 * WAIT_S for each in partitions)


def test_a_group_of_kafka_python(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    group = fresh_topic("group")
    reader = KafkaConsumer(
        bootstrap_servers=groups.bootstrap,
        group_id=group,
        client_id="python",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    # If the group forms before kafka-python knows the topic, it keeps an empty assignment.
    assert len(reader.partitions_for_topic(topic) or ()) == PARTITIONS
    reader.subscribe([topic])
    deadline = time.monotonic() + WAIT_S
    while len(reader.assignment()) < PARTITIONS:
        # Until there are records: a poll that ends during a rebalance discards the assignment that follows.
        reader.poll(timeout_ms=WAIT_S * 1000)
        assert time.monotonic() < deadline, "no assignment"
    reader.commit({KafkaPythonPartition(topic, index): OffsetAndMetadata(8, "", -1) for index in range(PARTITIONS)})
    described = groups.json("describe", group)
    (one,) = described["members"]
    assert (one["client_id"], len(one["assigned"])) == ("python", PARTITIONS)
    assert described["lag"] == PARTITIONS * (RECORDS - 8)
    reader.close()
    until_empty(groups, group)
    groups("reset", group, "--topic", topic, "--shift-by", "2", "--execute")
    assert groups.committed(group) == [10] * PARTITIONS


def test_what_is_not_there(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    group = fresh_topic("group")
    commit(groups.bootstrap, group, {(topic, 0): 5})
    for arguments in (["describe", "no-such-group"], ["delete", "no-such-group"]):
        assert 'group "no-such-group": there is no such group (GROUP_ID_NOT_FOUND)' in groups.fails(*arguments)
    groups("delete", "no-such-group", "--if-exists")
    sentence = groups.fails("reset", group, "--topic", "no-such-topic", "--to-latest")
    assert 'topic "no-such-topic": it does not exist' in sentence
    sentence = groups.fails("reset", group, "--topic", f"{topic}:1,7", "--to-latest")
    assert f"{topic}-7: it does not exist; the topic has partitions 0 to 2" in sentence
    sentence = groups.fails("reset", group, "--topic", topic, "--shift-by", "1")
    assert f"{topic}-1: the group has no committed offset for this partition" in sentence
    sentence = groups.fails("reset", "no-such-group", "--all-topics", "--to-latest", "--create")
    assert 'group "no-such-group": it has no committed offsets; select topics with --topic' in sentence


def test_as_a_process(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    group = fresh_topic("group")
    commit(groups.bootstrap, group, {(topic, 0): 5})

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ottla", "groups", *arguments]
        environment = {**os.environ, "OTTLA_BOOTSTRAP": groups.bootstrap}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=False)

    described = run("describe", group, "--json")
    assert (described.returncode, described.stderr) == (0, "")
    assert json.loads(described.stdout)["lag"] == RECORDS - 5
    missing = run("describe", "no-such-group")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == 'ottla: group "no-such-group": there is no such group (GROUP_ID_NOT_FOUND)\n'


def test_delete(groups: Commands, topic: str, fresh_topic: TopicOf) -> None:
    one, two = fresh_topic("group"), fresh_topic("group")
    for group in (one, two):
        commit(groups.bootstrap, group, {(topic, 0): 5, (topic, 1): 6})
    assert groups("delete", one, "--topic", f"{topic}:0").stdout == f"deleted {one} {topic}-0\n"
    assert [each["partition"] for each in groups.json("describe", one)["partitions"]] == [1]
    assert "it has no committed offsets for nothing" in groups.fails("delete", one, "--topic", "nothing")
    done = groups("delete", one, two, "no-such-group", expected=1)
    assert done.stdout == f"deleted {one}\ndeleted {two}\n"
    assert "there is no such group" in done.stderr
    assert not {one, two} & {each["name"] for each in groups.json("list")}
