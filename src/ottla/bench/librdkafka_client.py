"""A real client: librdkafka, through confluent-kafka, writes a topic and reads it back.

The client is mostly the bottleneck, with one Python call per record. The broker's cost is measured separately.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ottla.bench.processes import cpu_seconds
from ottla.bench.quotients import per, rate
from ottla.bench.results import Row
from ottla.bench.workbench import CLASSES, Workbench

RECORD_SIZES = (("100 B", 100), ("1 KB", 1024))
FLUSH_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0
WARM_UP_S = 0.2
CALLS_BETWEEN_LOOKS = 500
RECORDS_A_CALL = 10_000

PRODUCER = {"acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 200_000}
CONSUMER = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 2}
"""With the default backoff of one second, the consumer would run out of records between its fetches."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one direction."""

    records: int
    seconds: float
    broker_cpu_s: float


def estimate_s(bench_seconds: float) -> float:
    """Returns the estimated duration of `measure` for one durability class, in seconds."""
    return 2 * bench_seconds + 2.0


def measure(bench: Workbench, name: str, record_bytes: int, seconds: float) -> list[Row]:
    """Writes a topic of each durability class and reads it back."""
    written_rows, read_rows = [], []
    for durability in CLASSES:
        topic = f"client-{record_bytes}-{durability}"
        with bench.caller() as caller:
            caller.create_topics([topic], 1, {"ottla.durability": durability})
        bench.advance(0, f"librdkafka {name}: {durability}")
        bootstrap, pid = bench.broker.bootstrap, bench.broker.pid
        written = bench.driver.call(write, bootstrap, topic, record_bytes, seconds, pid)
        bench.advance(seconds + 1.0, "")
        read = bench.driver.call(read_back, bootstrap, topic, written.records, pid)
        bench.advance(seconds + 1.0, "")
        with bench.caller() as caller:
            caller.delete_topics([topic])
        written_rows.append(Row("librdkafka", f"{name}, produce", durability, figures_of(written, record_bytes)))
        read_rows.append(Row("librdkafka", f"{name}, consume", durability, figures_of(read, record_bytes)))
    return written_rows + read_rows


def figures_of(traffic: Traffic, record_bytes: int) -> dict[str, float]:
    """Returns the figures of a row; the CPU time is that of the broker."""
    total_bytes = traffic.records * record_bytes
    return {
        "mb_per_s": rate(total_bytes / 1e6, traffic.seconds),
        "records_per_s": rate(traffic.records, traffic.seconds),
        "cpu_s_per_gb": per(traffic.broker_cpu_s, total_bytes / 1e9),
        "broker_busy": rate(traffic.broker_cpu_s, traffic.seconds),
    }


def write(bootstrap: str, topic: str, record_bytes: int, seconds: float, broker_pid: int) -> Traffic:
    """Writes for a number of seconds, and waits until everything is acknowledged."""
    from confluent_kafka import KafkaError, Message, Producer

    failures: list[str] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    value = bytes(record_bytes)
    producer.produce(topic, value, on_delivery=on_delivery)
    producer.flush(FLUSH_TIMEOUT_S)
    cpu, begin = cpu_seconds(broker_pid), time.perf_counter()
    records = 0
    while time.perf_counter() < begin + seconds:
        for _ in range(CALLS_BETWEEN_LOOKS):
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
                records += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(FLUSH_TIMEOUT_S)
    elapsed = time.perf_counter() - begin
    if failures or left:
        raise RuntimeError(f"{len(failures)} records failed, {left} were not acknowledged: {failures[:1]}")
    return Traffic(records, elapsed, cpu_seconds(broker_pid) - cpu)


def read_back(bootstrap: str, topic: str, records: int, broker_pid: int) -> Traffic:
    """Reads from the first record on. The time counts from the first record that arrives."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        deadline = time.perf_counter() + READ_TIMEOUT_S
        first = len(consumer.consume(1, READ_TIMEOUT_S))
        cpu, begin = cpu_seconds(broker_pid), time.perf_counter()
        found = 0
        while found < records:
            messages = consumer.consume(RECORDS_A_CALL, 0.05)
            refused = [message for message in messages if message.error() is not None]
            if refused or not first or time.perf_counter() > deadline:
                raise RuntimeError(f"only {found} of {records} records were read: {refused[:1] or 'too slow'}")
            found += len(messages)
        return Traffic(found, time.perf_counter() - begin, cpu_seconds(broker_pid) - cpu)
    finally:
        consumer.close()
