"""The blocking clients against real brokers: close, break and Ctrl-C lose nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from ottla.client import (
    ClientClosedError,
    ClientError,
    DeliveryError,
    NoBrokerError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TopicPartition,
    UnknownTopicError,
)
from ottla.client.loop_thread import LoopThread
from ottla.testing import Cluster

AT = TopicPartition("orders", 0)
WAIT_MS = 20_000


def write(cluster: Cluster, count: int, topic: str = "orders") -> None:
    with SyncProducer(cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.enqueue(topic, b"%d" % number, partition=0)


def reader(cluster: Cluster, **settings: Any) -> SyncConsumer:
    consumer = SyncConsumer(cluster.bootstrap_servers, auto_offset_reset="earliest", **settings)
    consumer.subscribe(["orders"])
    return consumer


def take(consumer: SyncConsumer, count: int) -> list[int]:
    return [int(record.value) for _, record in zip(range(count), consumer, strict=False)]


def rest(consumer: SyncConsumer, count: int) -> list[int]:
    values: list[int] = []
    while len(values) < count:
        records = consumer.fetch_records(timeout_ms=WAIT_MS)
        assert records, f"only {len(values)} records came"
        values += [int(record.value) for record in records]
    return values


def test_send_returns_when_it_is_acknowledged(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    with SyncProducer(ottla.bootstrap_servers) as producer:
        assert producer.partitions("orders") == [0]
        assert [producer.send("orders", b"%d" % number).offset for number in range(3)] == [0, 1, 2]
        future = producer.enqueue("orders", b"3")
        assert future.result(20).offset == 3
        assert producer.acknowledged_count == 4
    with reader(ottla) as consumer:
        assert take(consumer, 4) == [0, 1, 2, 3]


def test_a_client_without_a_with_block(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    producer = SyncProducer(ottla.bootstrap_servers)
    producer.send("orders", b"0")
    producer.close()
    producer.close()
    with pytest.raises(ClientClosedError):
        producer.send("orders", b"1")
    consumer = SyncConsumer(ottla.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([AT])
    assert take(consumer, 1) == [0]
    assert consumer.assignment == [AT]
    consumer.close()
    with pytest.raises(ClientClosedError):
        next(consumer)


def test_closing_sends_what_is_buffered(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    with SyncProducer(ottla.bootstrap_servers, linger_ms=60_000) as producer:
        futures = [producer.enqueue("orders", b"%d" % number) for number in range(100)]
        assert not futures[-1].done()
    assert [future.result(0).offset for future in futures] == list(range(100))


def test_a_producer_that_nobody_closed_sends_at_the_end_of_the_program(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    script = """
import sys
from ottla.client import SyncProducer

producer = SyncProducer(sys.argv[1], linger_ms=60_000)
for number in range(10):
    producer.enqueue("orders", b"%d" % number)
"""
    command = [sys.executable, "-c", script, ottla.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with reader(ottla) as consumer:
        assert take(consumer, 10) == list(range(10))


def test_a_child_that_was_forked_is_told_to_create_its_own(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    script = """
import os, sys
from ottla.client import ClientError, SyncProducer

producer = SyncProducer(sys.argv[1])
producer.send("orders", b"parent")
if os.fork() == 0:
    try:
        producer.send("orders", b"child")
    except ClientError as failure:
        print(failure)
    with SyncProducer(sys.argv[1]) as own:
        own.send("orders", b"child")
    sys.exit()
os.wait()
producer.send("orders", b"parent again")
"""
    command = [sys.executable, "-c", script, ottla.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "before this process was forked" in done.stdout
    with reader(ottla) as consumer:
        assert [next(consumer).value for _ in range(3)] == [b"parent", b"child", b"parent again"]


def test_errors_of_the_client_are_raised(ottla: Cluster) -> None:
    with pytest.raises(NoBrokerError), SyncProducer("127.0.0.1:1", connect_timeout_ms=1000):
        pass
    with SyncAdmin(ottla.bootstrap_servers) as admin, pytest.raises(UnknownTopicError):
        admin.describe_topic("nowhere")
    ottla.create_topic("orders")
    with SyncProducer(ottla.bootstrap_servers) as producer:
        with pytest.raises(TypeError, match="encode"):
            producer.send("orders", "text")
        with pytest.raises(DeliveryError):
            producer.send("orders", b"", partition=7)
    producer = SyncProducer(ottla.bootstrap_servers)
    producer.enqueue("not a name", b"")
    with pytest.raises(DeliveryError):
        producer.close()


def test_many_threads_use_one_producer(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    producer = SyncProducer(ottla.bootstrap_servers)
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda number: producer.send("orders", b"%d" % number), range(200)))
    producer.close()
    assert sorted(each.offset for each in sent) == list(range(200))


def test_administration(ottla: Cluster) -> None:
    with SyncAdmin(ottla.bootstrap_servers) as admin:
        admin.create_topic("orders", partitions=2)
        assert [topic.name for topic in admin.list_topics()] == ["orders"]
        assert len(admin.describe_topic("orders").partitions) == 2


@pytest.mark.parametrize("taken", [1, 7, 600])
def test_breaking_off_commits_what_was_handed_out_and_no_more(ottla: Cluster, taken: int) -> None:
    """The consumer takes chunks of 500 from its buffer; the next one reads what the program did not get."""
    ottla.create_topic("orders")
    write(ottla, 1000)
    with reader(ottla, group_id="billing") as consumer:
        assert take(consumer, taken) == list(range(taken))
        assert consumer.position(AT) == taken
    with reader(ottla, group_id="billing") as consumer:
        assert rest(consumer, 1000 - taken) == list(range(taken, 1000))


def test_a_failure_of_the_program_commits_no_record_that_it_was_working_on(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    write(ottla, 10)

    def fail_at(offset: int) -> None:
        with reader(ottla, group_id="billing") as consumer:
            for record in consumer:
                if record.offset == offset:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at(4)
    with reader(ottla, group_id="billing") as consumer:
        assert next(consumer).offset <= 4


@pytest.mark.parametrize("every", [1, 3, 250])
def test_a_commit_in_the_loop_is_of_what_was_handed_out(ottla: Cluster, every: int) -> None:
    ottla.create_topic("orders")
    write(ottla, 600)
    seen: list[int] = []
    with reader(ottla, group_id="billing", auto_commit=False) as consumer:
        for record in consumer:
            seen.append(int(record.value))
            if len(seen) % every == 0:
                consumer.commit()
                [committed] = consumer.committed().values()
                assert committed is not None
                assert committed.offset == len(seen)
            if len(seen) == 600:
                break
    assert seen == list(range(600))


def test_seek_and_pause_in_the_loop(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    write(ottla, 100)
    with reader(ottla) as consumer:
        assert take(consumer, 5) == [0, 1, 2, 3, 4]
        consumer.seek(AT, 50)
        assert take(consumer, 2) == [50, 51]
        consumer.pause(AT)
        assert consumer.paused == [AT]
        assert consumer.fetch_records(timeout_ms=100) == []
        consumer.resume(AT)
        assert rest(consumer, 48) == list(range(52, 100))


def test_the_first_position_survives_a_look_at_it(ottla: Cluster) -> None:
    """Without a committed offset, an aborted program reads again from where it began, not from the reset policy."""
    ottla.create_topic("orders")
    write(ottla, 20)
    settings: Any = {"group_id": "billing", "auto_commit": False}
    with SyncConsumer(ottla.bootstrap_servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe(["orders"])
        assert take(consumer, 3) == [0, 1, 2]
        assert consumer.position(AT) == 3
        consumer.seek_to_committed()
        assert take(consumer, 3) == [0, 1, 2]


def test_from_topics_to_topics_exactly_once(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    ottla.create_topic("bills")
    write(ottla, 10)
    settings: Any = {"auto_commit": False, "isolation_level": "read_committed"}
    producer = SyncProducer(ottla.bootstrap_servers, transactional_id="billing")
    with reader(ottla, group_id="billing", **settings) as consumer, producer:
        for number in range(6):
            with suppress(ZeroDivisionError), producer.transaction() as transaction:
                for value in take(consumer, 2):
                    transaction.enqueue("bills", b"%d" % value)
                transaction.send_offsets(consumer)
                if number == 2:
                    raise ZeroDivisionError  # aborted: these two are read again
            if number == 2:
                consumer.seek_to_committed()
    with SyncConsumer(ottla.bootstrap_servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.subscribe(["bills"])
        assert rest(consumer, 10) == list(range(10))
    ottla.wait_for_lag_zero("billing")


def test_callbacks_of_a_rebalance_may_use_the_consumer(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    write(ottla, 10)
    calls: list[tuple[str, Any]] = []
    consumer = SyncConsumer(
        ottla.bootstrap_servers, group_id="billing", auto_commit=False, auto_offset_reset="earliest"
    )

    def on_assigned(partitions: list[TopicPartition]) -> None:
        consumer.seek(partitions[0], 4)
        calls.append(("assigned", partitions))
        with pytest.raises(ClientError, match="cannot fetch"):
            next(consumer)

    def on_revoked(partitions: list[TopicPartition]) -> None:
        consumer.commit({AT: 7})
        calls.append(("revoked", partitions))

    consumer.subscribe(["orders"], on_assigned=on_assigned, on_revoked=on_revoked)
    assert take(consumer, 2) == [4, 5]
    consumer.close()
    assert calls == [("assigned", [AT]), ("revoked", [AT])]
    with reader(ottla, group_id="billing") as other:
        assert take(other, 1) == [7]


# Ctrl-C. It is delivered to the main thread, in which pytest runs its tests.


@contextmanager
def interrupts(after_s: Iterator[float]) -> Iterator[None]:
    """Sends SIGINT repeatedly. It raises only while the client runs, not in the test's own lines."""

    def raise_in_client(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if os.path.join("ottla", "client", "") in frame.f_code.co_filename:
                raise KeyboardInterrupt
            frame = frame.f_back

    over = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def send() -> None:
        for pause_s in after_s:
            if over.wait(pause_s):
                return
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, raise_in_client)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_a_call_that_waits_and_the_client_goes_on(ottla: Cluster) -> None:
    ottla.create_topic("orders")
    with reader(ottla, group_id="billing") as consumer:
        with pytest.raises(KeyboardInterrupt), interrupts(iter([0.5])):
            next(consumer)
        write(ottla, 3)
        assert take(consumer, 3) == [0, 1, 2]


def test_what_is_done_when_the_interrupt_comes_is_given_back() -> None:
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done"

    given_back: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupts(iter([0.2])):
        LoopThread().call(stubborn, given_back.append)
    assert given_back == ["done"]


def test_interrupts_at_any_moment_lose_no_record_and_double_none(ottla: Cluster, seed: int) -> None:
    ottla.create_topic("orders")
    chance = random.Random(seed)
    count = 3000
    seen: list[int] = []
    interrupted = 0
    producer = SyncProducer(ottla.bootstrap_servers)
    consumer = reader(ottla, group_id="billing", auto_commit_interval_ms=20)
    with interrupts(iter(lambda: chance.uniform(0.0005, 0.01), None)):
        sent = 0
        while len(seen) < count:
            if len(seen) == sent:
                feed(producer, sent, sent + 50)
                sent += 50
            try:
                seen.append(int(next(consumer).value))
            except KeyboardInterrupt:
                interrupted += 1
    consumer.close()
    producer.send("orders", b"%d" % count)
    producer.close()
    with reader(ottla, group_id="billing") as consumer:
        assert next(consumer).offset == count
    assert seen == list(range(count))
    assert interrupted > 0


def feed(producer: SyncProducer, begin: int, end: int) -> None:
    """From another thread, which signals do not interrupt."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: [producer.enqueue("orders", b"%d" % each) for each in range(begin, end)]).result()
