"""`ottla transactions` on transactions of other clients' producers, and other admin clients on Ottla.

Also runs against Apache Kafka (OTTLA_CONFORMANCE_BOOTSTRAP). For hanging transactions, set
transaction.partition.verification.enable=false there: otherwise only a bug creates one.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import AbortTransactionSpec

from ottla.cli import main
from ottla.protocol.model.errors import ErrorCode
from ottla.testing.broker_process import BrokerProcess
from tests.conformance.clients.java_client import CACHE, why_missing
from tests.conformance.conftest import LEADERS_MOVE, ONE_BROKER, TopicOf, World
from tests.conformance.test_transactions import fresh, made, read, transactional, until_committed_is
from tests.conformance.test_transactions_raw import raw_peer
from tests.support.transactional_peer import Peer

WAIT_S = 60.0
HANGING_ID = 900_042


class Commands:
    """Runs `ottla transactions` against the brokers, in this process."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, *arguments: object, expected: int = 0) -> tuple[str, str]:
        """Returns its stdout and its stderr."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["transactions", *map(str, arguments), "--bootstrap", self.bootstrap])
        assert code == expected, err.getvalue() + out.getvalue()
        return out.getvalue(), err.getvalue()

    def json(self, *arguments: object) -> Any:
        return json.loads(self(*arguments, "--json")[0])

    def fails(self, *arguments: object) -> str:
        """Returns the error message."""
        return self(*arguments, expected=1)[1].splitlines()[-1]

    def listed(self, *arguments: object) -> dict[str, Any]:
        return {each["transactional_id"]: each for each in self.json("list", *arguments)}


@pytest.fixture
def transactions(bootstrap: str) -> Commands:
    return Commands(bootstrap)


@contextmanager
def opened(world: World, topic: str, name: str, partitions: int = 1) -> Iterator[confluent_kafka.Producer]:
    """A producer in the middle of a transaction."""
    producer = transactional(world.bootstrap, name, **{"transaction.timeout.ms": 120_000})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, b"open", partition=partition)
    assert producer.flush(WAIT_S) == 0
    yield producer


def until(is_reached: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_reached():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
def test_what_is_open(world: World, transactions: Commands, fresh_topic: TopicOf) -> None:
    topic, name, idle = made(world, fresh_topic("open"), 3), fresh("open"), fresh("idle")
    transactional(world.bootstrap, idle).init_transactions(WAIT_S)
    with opened(world, topic, name, partitions=2) as producer:
        entry = transactions.listed()[name]
        assert (entry["state"], entry["partition_count"]) == ("Ongoing", 2)
        assert transactions.listed()[idle]["state"] == "Empty"
        assert set(transactions.listed("--producer-id", entry["producer_id"])) == {name}
        assert name in transactions.listed("--state", "ongoing")
        assert idle not in transactions.listed("--state", "ongoing")
        assert name not in transactions.listed("--min-duration", "1h")
        until(lambda: name in transactions.listed("--min-duration", "10ms"))
        assert idle not in transactions.listed("--min-duration", "10ms"), "it has none that could be open"

        found = transactions.json("describe", name)
        assert (found["state"], found["producer_id"]) == ("Ongoing", entry["producer_id"])
        assert (found["timeout_ms"], found["producer_epoch"] >= 0) == (120_000, True)
        assert 0 <= found["open_for_ms"] < 120_000
        assert [(each["partition"], each["start_offset"]) for each in found["partitions"]] == [(0, 0), (1, 0)]
        text = transactions("describe", name)[0]
        assert f"transactional id {name}  Ongoing" in text
        assert f"{topic}-1" in text
        assert f"{name} " in transactions("list")[0]
        assert transactions.json("list", "--hanging", "--topic", topic) == []
        producer.commit_transaction(WAIT_S)
    until(lambda: transactions.json("describe", name)["state"] == "CompleteCommit")
    assert "no open transaction" in transactions("describe", name)[0]


@pytest.mark.worlds(ONE_BROKER, LEADERS_MOVE)
def test_an_operator_aborts(world: World, transactions: Commands, fresh_topic: TopicOf) -> None:
    topic, name = made(world, fresh_topic("abort"), 2), fresh("abort")
    with opened(world, topic, name, partitions=2) as producer:
        stdout, stderr = transactions("abort", name)
        assert f"in 2 partitions: {topic}-0, {topic}-1" in stdout
        assert "nothing was changed; add --execute" in stderr
        assert transactions.json("describe", name)["state"] == "Ongoing"

        done = transactions.json("abort", name, "--execute")
        assert done["executed"]
        assert done["fenced_by"]["producer_epoch"] > done["producer_epoch"]
        assert transactions.json("describe", name)["state"] == "Empty"
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            producer.commit_transaction(WAIT_S)
        assert refused.value.args[0].fatal(), refused.value
    after = transactional(world.bootstrap, name)
    after.init_transactions(WAIT_S)
    after.begin_transaction()
    after.produce(topic, b"after", partition=0)
    after.commit_transaction(WAIT_S)
    until_committed_is(world, topic, [b"after"], (0, 1))


def test_what_cannot_be_aborted(world: World, transactions: Commands) -> None:
    name = fresh("idle")
    unknown = f'ottla: transactional id "{name}": there is no such transactional id (TRANSACTIONAL_ID_NOT_FOUND)'
    assert transactions.fails("abort", name, "--execute") == unknown
    assert transactions.fails("describe", name) == unknown
    assert name not in transactions.listed(), "the question made none"
    producer = transactional(world.bootstrap, name)
    producer.init_transactions(WAIT_S)
    assert "no transaction is open (it is Empty)" in transactions.fails("abort", name, "--execute")
    before = transactions.json("describe", name)["producer_epoch"]
    transactions("abort", name, "--fence", "--execute")
    assert transactions.json("describe", name)["producer_epoch"] > before
    producer.begin_transaction()
    producer.produce("any", b"fenced", partition=0)
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(WAIT_S)


def test_places_where_nothing_is(world: World, transactions: Commands, fresh_topic: TopicOf) -> None:
    topic = made(world, fresh_topic("places"))
    place = ("--topic", topic, "--partition")
    assert f"{topic}-0: no open transaction begins at 5" in transactions.fails("abort", *place, 0, "--start-offset", 5)
    assert "the topic has partitions 0 to 0" in transactions.fails("abort", *place, 3, "--start-offset", 5)
    assert "it does not exist" in transactions.fails("abort", "-t", "missing", "-p", "0", "--start-offset", 5)
    assert "it does not exist" in transactions.fails("list", "--hanging", "-t", f"{topic}:4")
    with opened(world, topic, fresh("owner")) as producer:
        sentence = transactions.fails("abort", *place, 0, "--start-offset", 0, "--execute")
        assert "abort it in all partitions" in sentence
        assert "open transactions begin at 0" in transactions.fails("abort", *place, 0, "--start-offset", 7)
        producer.commit_transaction(WAIT_S)
    until_committed_is(world, topic, [b"open"])


# -- hanging transactions --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unverified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A broker that does not verify transactions, as Kafka's before KIP-890, so that they can hang."""
    if elsewhere := os.environ.get("OTTLA_CONFORMANCE_BOOTSTRAP"):
        yield World(elsewhere)
        return
    config = {"transaction.partition.verification.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("hanging") / "data", config=config) as broker:
        yield World(broker.bootstrap)


def hang(bootstrap: str, topic: str, *, after_marker: bool = False) -> None:
    """Writes a batch that arrives after its transaction was aborted, or of a producer that no coordinator knows."""

    async def write() -> None:
        async with raw_peer(bootstrap, topic) as peer:
            await _write(peer, after_marker)

    asyncio.run(write())


async def _write(peer: Peer, after_marker: bool) -> None:
    if after_marker:
        await _produce(peer, b"first", 0)
        assert not any(await peer.end((HANGING_ID, 3), commit=True, coordinator_epoch=7, version=1))
    await _produce(peer, b"late", 1 if after_marker else 0)


async def _produce(peer: Peer, value: bytes, sequence: int) -> None:
    """Retries while the new topic has no leader."""
    error = ErrorCode.not_leader_or_follower
    while error is ErrorCode.not_leader_or_follower:
        written = await peer.produce(value, producer=(HANGING_ID, 3, sequence), version=9, transactional_id="h")
        error = ErrorCode(written.error)
    assert error is ErrorCode.none


@pytest.mark.parametrize("after_marker", [False, True])
def test_a_transaction_that_hangs(unverified: World, after_marker: bool) -> None:
    commands = Commands(unverified.bootstrap)
    topic = made(unverified, fresh("hanging"), 2)
    hang(unverified.bootstrap, topic, after_marker=after_marker)
    start = 2 if after_marker else 0
    with opened(unverified, topic, fresh("fine"), partitions=2) as producer:
        (found,) = commands.json("list", "--hanging", "--topic", topic)
        assert (found["partition"], found["producer_id"], found["producer_epoch"]) == (0, HANGING_ID, 3)
        assert (found["first_offset"], found["coordinator_epoch"]) == (start, 7 if after_marker else -1)
        assert found in [each | {"last_written_ms_ago": found["last_written_ms_ago"]}
                         for each in commands.json("list", "--hanging")]  # fmt: skip
        assert commands.json("list", "--hanging", "-t", f"{topic}:1") == []
        assert commands.json("list", "--hanging", "-t", topic, "--producer-id", 1) == []
        assert commands.json("list", "--hanging", "-t", topic, "--min-duration", "1h") == []
        producer.commit_transaction(WAIT_S)
    expected = [b"first"] if after_marker else []
    assert read(unverified.bootstrap, topic, "read_committed") == expected, "readers stop at the one that hangs"

    place = ("--topic", topic, "--partition", 0, "--start-offset", start)
    text, advice = commands("list", "--hanging", "-t", topic)
    assert f"{topic}-0" in text
    assert advice.endswith(f"ottla transactions abort {' '.join(map(str, place))}\n")
    assert "nothing was changed" in commands("abort", *place)[1]
    assert len(commands.json("list", "--hanging", "-t", topic)) == 1
    assert commands("abort", *place, "--execute")[0].endswith(f"aborted in {topic}-0\n")
    assert commands.json("list", "--hanging", "-t", topic) == []
    until_committed_is(unverified, topic, [*expected, b"open", b"open"], (0, 1))


# -- other admin clients ---------------------------------------------------------------------------------------------


class JavaAdmin:
    def __init__(self, bootstrap: str) -> None:
        flags = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
        classes = f"{CACHE}/classes:{CACHE}/libraries/*"
        self._jvm = subprocess.Popen(
            ["java", *flags, "-cp", classes, "TransactionsAdmin", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._reply() == []

    def ask(self, *words: object) -> list[list[str]]:
        assert self._jvm.stdin is not None
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        self._jvm.stdin.flush()
        return self._reply()

    def _reply(self) -> list[list[str]]:
        assert self._jvm.stdout is not None
        lines: list[list[str]] = []
        while (words := self._jvm.stdout.readline().split()) != ["ok"]:
            assert words, "the JVM has ended"
            lines.append(words)
            if words[0] == "error":
                break
        return lines

    def close(self) -> None:
        self._jvm.communicate(timeout=60)


@pytest.fixture(scope="module")
def java(unverified: World) -> Iterator[JavaAdmin]:
    if reason := why_missing():
        pytest.skip(reason)
    admin = JavaAdmin(unverified.bootstrap)
    yield admin
    admin.close()


def test_java_lists_describes_and_fences(unverified: World, java: JavaAdmin) -> None:
    topic, name = made(unverified, fresh("java"), 2), fresh("java")
    with opened(unverified, topic, name, partitions=2) as producer:
        (listed,) = (words for words in java.ask("list", "Ongoing") if words[0] == name)
        assert listed[1] == "Ongoing"
        assert name not in [words[0] for words in java.ask("list", "Empty")]
        assert name not in [words[0] for words in java.ask("long", 3_600_000)]
        (described,) = java.ask("describe", name)
        assert described == ["Ongoing", listed[2], "0", "120000", "true", f"{topic}-0,{topic}-1"]
        (state,) = java.ask("producers", topic, 0)
        assert state == [listed[2], "0", "-1", "0"]
        ((_, epoch),) = java.ask("fence", name)
        assert int(epoch) > 0
        assert java.ask("describe", name)[0][0] == "Empty"
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(WAIT_S)
    assert java.ask("describe", fresh("missing")) == [["error", "TransactionalIdNotFoundException"]]


def test_java_aborts_what_hangs(unverified: World, java: JavaAdmin) -> None:
    topic = made(unverified, fresh("java-hangs"))
    hang(unverified.bootstrap, topic, after_marker=True)
    (state,) = java.ask("producers", topic, 0)
    assert state == [str(HANGING_ID), "3", "7", "2"]
    fenced = java.ask("abort", topic, 0, HANGING_ID, 3, 6)
    assert fenced == [["error", "TransactionCoordinatorFencedException"]]
    assert java.ask("abort", topic, 0, HANGING_ID, 3, 7) == []
    assert java.ask("producers", topic, 0)[0][3] == "-1"
    until_committed_is(unverified, topic, [b"first"])


def test_kafka_python_lists_describes_and_aborts(unverified: World) -> None:
    topic, name = made(unverified, fresh("python"), 2), fresh("python")
    hang(unverified.bootstrap, topic)
    admin = KafkaAdminClient(bootstrap_servers=unverified.bootstrap)
    with opened(unverified, topic, name, partitions=2) as producer:
        listed = [each for found in admin.list_transactions(state_filters=["Ongoing"]).values() for each in found]
        assert name in [each.transactional_id for each in listed]
        described = admin.describe_transactions([name])[name]
        assert sorted(described.topic_partitions) == [KafkaPythonPartition(topic, index) for index in range(2)]
        assert described.transaction_timeout_ms == 120_000
        producer.commit_transaction(WAIT_S)
    at = KafkaPythonPartition(topic, 0)
    states = admin.describe_producers([at])[at].active_producers
    (hanging,) = (each for each in states if each.producer_id == HANGING_ID)
    assert (hanging.producer_epoch, hanging.current_transaction_start_offset) == (3, 0)
    admin.abort_transaction(AbortTransactionSpec(at, HANGING_ID, 3))
    admin.close()
    until_committed_is(unverified, topic, [b"open", b"open"], (0, 1))
