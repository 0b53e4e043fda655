"""`/metrics` of real broker processes, read with Prometheus's own parser while real clients work."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from ottla.broker.metrics.definitions import all_metrics
from ottla.broker.metrics.page import series_names
from ottla.client import Admin
from ottla.client.errors import TopicExistsError
from ottla.testing.broker_process import BrokerEndedError, BrokerProcess
from ottla.testing.cluster_processes import ClusterProcesses
from ottla.testing.ports import reserve_ports
from tests.processes.conftest import StartBroker
from tests.processes.traffic import create_replicated, create_topic, read
from tests.support.metrics_reading import Scraped

WAIT_S = 90.0
QUICK_GROUPS = {"group.initial.rebalance.delay.ms": "0"}
ONLY_WITH_TLS = {"ottla_tls_certificate_not_after_seconds"}


def urls(log: str) -> list[str]:
    return re.findall(r"metrics at (http://\S+/metrics)$", log, re.MULTILINE)


def scrape(broker: BrokerProcess) -> Scraped:
    return Scraped.of(urls(broker.log())[-1])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not in {WAIT_S} s: {what}"
        time.sleep(0.1)


def produce(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    """Produces until all records are acknowledged, with retries."""
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        refused.extend([error] if error is not None else [])

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for _ in range(count):
        producer.produce(topic, b"x" * 100, partition=partition, on_delivery=on_delivery)
    assert producer.flush(WAIT_S) == 0
    assert not refused


def test_one_broker_tells_what_real_clients_did(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=("--metrics-port", "0"), config=QUICK_GROUPS)
    create_topic(broker.bootstrap, "orders", partitions=2)
    before = scrape(broker)
    assert before.value("ottla_topic_in_records_total", topic="orders") == 0
    produce(broker.bootstrap, "orders", 500, partition=1)
    written = scrape(broker)
    assert written.value("ottla_topic_in_records_total", topic="orders") == 500
    assert written.value("ottla_partition_end_offset", topic="orders", partition="1") == 500
    assert written.value("ottla_partition_high_watermark", topic="orders", partition="1") == 500
    in_bytes = written.value("ottla_topic_in_bytes_total", topic="orders")
    assert in_bytes >= 500 * 100
    assert written.value("ottla_partition_size_bytes", topic="orders", partition="1") == in_bytes
    requests = written.sum("ottla_requests_total", api="Produce")
    assert requests == written.value("ottla_produce_seconds_count", acks="all")
    assert requests == written.value("ottla_request_seconds_count", api="Produce")
    assert written.value("ottla_journal_syncs_total") == written.value("ottla_journal_sync_seconds_count") > 0

    assert len(read(broker.bootstrap, "orders", partition=1)) == 500
    taken = scrape(broker)
    assert taken.value("ottla_topic_out_records_total", topic="orders", reader="consumer") == 500
    assert taken.value("ottla_topic_out_bytes_total", topic="orders", reader="consumer") == in_bytes
    assert taken.value("ottla_topic_out_records_total", topic="orders", reader="replica") == 0

    assert taken.names <= {name for metric in all_metrics() for name in series_names(metric)}
    assert taken.value("ottla_active_controller") == taken.value("ottla_live_brokers") == 1
    assert taken.value("ottla_build_info", cluster=_cluster_id(broker)) == 1
    for name in ("ottla_process_cpu_seconds_total", "ottla_process_resident_bytes", "ottla_disk_free_bytes"):
        assert taken.value(name) > 0
    for name in ("ottla_under_replicated_partitions", "ottla_failed_logs", "ottla_disk_full", "ottla_journal_failed"):
        assert taken.value(name) == 0


def _cluster_id(broker: BrokerProcess) -> str:
    async def ask() -> str:
        async with Admin(broker.bootstrap) as admin:
            return (await admin.describe_cluster()).cluster_id or ""

    return asyncio.run(ask())


def test_the_lag_of_a_group_that_reads(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=("--metrics-port", "0"), config=QUICK_GROUPS)
    create_topic(broker.bootstrap, "orders")
    produce(broker.bootstrap, "orders", 500)
    settings = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "log_level": 2, **settings})
    consumer.subscribe(["orders"])
    _read_and_commit(consumer, 300)
    found = scrape(broker)
    of_group = {"group": "readers", "topic": "orders", "partition": "0"}
    assert found.value("ottla_group_committed_offset", **of_group) == 300
    assert found.value("ottla_group_lag_records", **of_group) == 200
    assert found.value("ottla_group_lag_seconds", **of_group) > 0
    assert found.value("ottla_groups", state="Stable") == 1
    _read_and_commit(consumer, 200)
    consumer.close()
    found = scrape(broker)
    assert found.value("ottla_group_lag_records", **of_group) == 0
    assert found.value("ottla_group_lag_seconds", **of_group) == 0
    assert (found.value("ottla_groups", state="Stable"), found.value("ottla_groups", state="Empty")) == (0, 1)


def _read_and_commit(consumer: Consumer, count: int) -> None:
    messages = [consumer.poll(WAIT_S) for _ in range(count)]
    assert all(message is not None and message.error() is None for message in messages)
    assert messages[-1] is not None
    consumer.commit(message=messages[-1], asynchronous=False)


def test_whoever_watches_does_not_keep_a_broker_from_stopping(start_broker: StartBroker) -> None:
    broker = start_broker(arguments=("--metrics-port", "0"))
    address = re.search(r"http://(.+):(\d+)/", urls(broker.log())[-1])
    assert address is not None
    with socket.create_connection((address[1], int(address[2]))) as silent, silent.dup() as half:
        half.sendall(b"GET /metr")
        assert broker.stop() == 0
        assert "Traceback" not in broker.log()


def test_a_port_that_is_taken(start_broker: StartBroker, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(BrokerEndedError) as ended:
            start_broker(arguments=("--metrics-port", str(port)))
    sentence = ended.value.log.strip().splitlines()[-1]
    assert sentence == (
        f"ottla: metrics: 127.0.0.1:{port} is already in use, perhaps by another broker; stop that broker, or choose "
        "another --metrics-port"
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    config = {"ottla.metrics.port": "0", "broker.session.timeout.ms": "3000"}
    with ClusterProcesses(tmp_path, 3, config=config) as cluster:
        yield cluster
    assert "Traceback" not in cluster.log()


def pages(cluster: ClusterProcesses) -> list[Scraped]:
    return [scrape(broker) for broker in cluster.brokers if broker.running]


def total(cluster: ClusterProcesses, name: str, **labels: str) -> float:
    return sum(page.sum(name, **labels) for page in pages(cluster))


def test_a_cluster_tells_of_replicas_and_of_a_broker_that_dies(cluster: ClusterProcesses) -> None:
    create_replicated(cluster.bootstrap, "orders", 3, 3)
    produce(cluster.bootstrap, "orders", 200)
    until(lambda: total(cluster, "ottla_topic_followed_records_total", topic="orders") == 400, "both followers have it")
    assert total(cluster, "ottla_topic_in_records_total", topic="orders") == 200
    assert total(cluster, "ottla_topic_out_records_total", topic="orders", reader="replica") == 400
    assert total(cluster, "ottla_active_controller") == 1
    assert total(cluster, "ottla_leader_partitions") == total(cluster, "ottla_partition_is_leader") == 3
    assert total(cluster, "ottla_partition_in_sync_replicas", topic="orders") == 9
    until(lambda: total(cluster, "ottla_replica_lag_records") == 0, "nobody lags")
    assert len({sample.labels["broker"] for page in pages(cluster) for sample in page.matching("ottla_topics")}) == 3
    assert total(cluster, "ottla_coordination_lease_held") == 3
    assert all(page.value("ottla_coordination_seconds_count", call="commit") > 0 for page in pages(cluster))

    cluster.broker(2).kill()
    until(lambda: total(cluster, "ottla_under_replicated_partitions") == 3, "two of three are in sync")
    until(lambda: total(cluster, "ottla_active_controller") == 1, "there is a controller")
    assert all(page.value("ottla_live_brokers") == 2 for page in pages(cluster))
    assert total(cluster, "ottla_partition_in_sync_replicas", topic="orders") == 6
    produce(cluster.bootstrap, "orders", 100)
    until(lambda: total(cluster, "ottla_replica_lag_records", replica="2") >= 100, "it lacks what was written since")
    cluster.broker(3).kill()
    until(lambda: total(cluster, "ottla_under_min_isr_partitions") > 0, "one of three is in sync")
    cluster.broker(3).start()
    cluster.broker(2).start()
    until(lambda: total(cluster, "ottla_under_replicated_partitions") == 0, "all are in sync")
    until(lambda: total(cluster, "ottla_replica_lag_records") == 0, "nobody lags")


def test_the_lag_of_partitions_that_are_elsewhere(cluster: ClusterProcesses) -> None:
    """The coordinator has no replica of most of these partitions, and reports all of them."""
    create_replicated(cluster.bootstrap, "spread", 6, 1, ottla_archive_group="archive")
    for partition in range(6):
        produce(cluster.bootstrap, "spread", 10 + partition, partition)

    async def commit() -> None:
        async with Admin(cluster.bootstrap) as admin:
            with pytest.raises(TopicExistsError):
                await admin.create_topic("spread")
            assert not await admin.alter_group_offsets("g", {("spread", index): 5 for index in range(6)})

    asyncio.run(commit())
    (page,) = [page for page in pages(cluster) if page.sum("ottla_groups")]
    lags = {sample.labels["partition"]: sample.value for sample in page.matching("ottla_group_lag_records", group="g")}
    assert lags == {str(index): 5 + index for index in range(6)}
    seconds = [sample.value for sample in page.matching("ottla_group_lag_seconds", group="g", topic="spread")]
    assert len(seconds) == 6
    assert all(each > 0 for each in seconds)

    told = {name for page in pages(cluster) for name in page.names}
    promised = {name for metric in all_metrics() for name in series_names(metric)} - ONLY_WITH_TLS
    assert told == promised, "all that is promised is told"
    assert total(cluster, "ottla_archive_waiting_bytes", topic="spread") == 0, "nothing has expired"
    errors = {"api": "CreateTopics", "error": "TOPIC_ALREADY_EXISTS"}
    assert total(cluster, "ottla_request_errors_total", **errors) == 1


def test_up_gives_every_broker_a_port(tmp_path: Path) -> None:
    first = reserve_ports(3, in_a_row=True)[0]
    log = tmp_path / "up.log"
    command = [sys.executable, "-m", "ottla", "up", "--port", "0", "--data", str(tmp_path / "data")]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "--metrics-port", str(first)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as up,
    ):
        try:
            assert up.stdout is not None
            assert up.stdout.readline().startswith(b"ottla ready"), log.read_text()
            found = [Scraped.of(f"http://127.0.0.1:{first + number}/metrics") for number in range(3)]
            for number, page in enumerate(found, 1):
                assert page.value("ottla_live_brokers", broker=str(number)) == 3
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{first}/", timeout=20)
        finally:
            up.send_signal(signal.SIGTERM)
        assert up.wait(WAIT_S) == 0
