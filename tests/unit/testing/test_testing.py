"""`ottla.testing`, on which users' tests rely. The broker and its clients here are real."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.app_listeners import BadSettingsError
from ottla.protocol.model.errors import ErrorCode
from ottla.testing import Cluster, TopicRefusedError

pytest_plugins = ["pytester"]


def write(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    """Writes and returns once all records are acknowledged."""
    failures: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    assert failures == []


def read(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, 0.2):
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


VALUES = [b"record %d" % number for number in range(1000)]


@pytest.mark.parametrize("storage", ["disk", "cache", "memory"])
def test_a_cluster_for_a_with_block(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.perf_counter()
    with Cluster(storage=storage) as cluster:
        started_s = time.perf_counter() - begin
        data_dir = cluster.data_dir
        assert os.path.isdir(data_dir)
        cluster.create_topic("orders", partitions=2)
        write(cluster, "orders", VALUES)
        assert read(cluster, "orders", len(VALUES)) == VALUES
    assert not os.path.exists(data_dir)
    with capsys.disabled():
        print(f" ({storage}: started in {started_s * 1000:.0f} ms)", end="")


async def test_a_cluster_for_an_async_with_block() -> None:
    async with Cluster() as cluster:
        cluster.create_topic("orders")
        # The test blocks its own event loop here; the broker has another one.
        write(cluster, "orders", VALUES)
        assert read(cluster, "orders", len(VALUES)) == VALUES


@pytest.mark.parametrize("end", [Cluster.stop, Cluster.kill])
@pytest.mark.parametrize("power_cuts", [False, True])
def test_what_was_acknowledged_is_there_after_a_stop_and_after_a_crash(
    end: Callable[[Cluster], None], power_cuts: bool
) -> None:
    with Cluster(storage="disk", power_cuts=power_cuts) as cluster:
        address = cluster.bootstrap_servers
        cluster.create_topic("orders")
        write(cluster, "orders", VALUES)
        end(cluster)
        assert not cluster.is_running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address.split(":"), 5)  # type: ignore[arg-type] # a list works like a tuple
        cluster.start()
        assert cluster.bootstrap_servers == address
        assert read(cluster, "orders", len(VALUES)) == VALUES
        cluster.restart()
        assert read(cluster, "orders", len(VALUES)) == VALUES


def test_a_directory_of_the_users_stays(tmp_path: Path) -> None:
    with Cluster(data_dir=tmp_path) as cluster:
        cluster.create_topic("orders")
        write(cluster, "orders", VALUES)
    with Cluster(data_dir=tmp_path) as cluster:
        assert read(cluster, "orders", len(VALUES)) == VALUES


def test_clusters_do_not_know_one_another(ottla_cluster_factory: Callable[..., Cluster]) -> None:
    one, other = ottla_cluster_factory(), ottla_cluster_factory(storage="memory")
    assert one.bootstrap_servers != other.bootstrap_servers
    one.create_topic("orders")
    other.create_topic("orders")
    write(one, "orders", [b"one"])
    write(other, "orders", [b"other"])
    assert read(one, "orders", 1) == [b"one"]
    assert read(other, "orders", 1) == [b"other"]


def test_topic_configs_reach_the_broker(ottla: Cluster) -> None:
    ottla.create_topic("short", retention_ms=1000, cleanup_policy="compact", preallocate=True)
    with pytest.raises(TopicRefusedError, match="invalid_config") as refused:
        ottla.create_topic("other", retention_moons=3)
    assert refused.value.error is ErrorCode.invalid_config
    with pytest.raises(TopicRefusedError, match="topic_already_exists"):
        ottla.create_topic("short")


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadSettingsError, match=r"num\.partitions"):
        Cluster(config={"num.partition": "3"}).start()


def test_a_cluster_that_does_not_run_says_so() -> None:
    cluster = Cluster()
    cluster.stop()
    cluster.kill()
    with pytest.raises(RuntimeError, match="was not started"):
        _ = cluster.bootstrap_servers
    with pytest.raises(RuntimeError, match="is not running"):
        cluster.create_topic("orders")


def kept_writing(cluster: Cluster, topic: str, values: list[bytes], at: dict[int, Callable[[], None]]) -> None:
    """Writes one record after the other; before some of them an event happens."""
    for number, value in enumerate(values):
        if number in at:
            at[number]()
        write(cluster, topic, [value])


def test_three_brokers_and_the_death_of_a_leader(ottla_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = ottla_cluster
    assert cluster.broker_ids == cluster.running_brokers == [1, 2, 3]
    assert len(set(cluster.bootstrap_servers.split(","))) == 3
    cluster.create_topic("orders")
    leader = cluster.leader_of("orders")
    assert leader is not None
    cluster.wait_until_in_sync()
    assert sorted(cluster.in_sync("orders")) == [1, 2, 3]
    kept_writing(cluster, "orders", VALUES[:20], {10: lambda: cluster.kill(leader)})
    assert cluster.running_brokers == [number for number in (1, 2, 3) if number != leader]
    assert cluster.leader_of("orders") not in (None, leader)
    assert leader not in cluster.in_sync("orders")
    host, _, port = cluster.bootstrap_servers.split(",")[leader - 1].partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)
    begin = time.perf_counter()
    cluster.restart(leader)
    cluster.wait_until_in_sync()
    with capsys.disabled():
        print(f" (in sync again after {(time.perf_counter() - begin) * 1000:.0f} ms)", end="")
    assert sorted(cluster.in_sync("orders")) == [1, 2, 3]
    assert read(cluster, "orders", 20) == VALUES[:20]


@pytest.mark.parametrize("power_cuts", [False, True])
def test_all_brokers_of_a_cluster_die(power_cuts: bool, tmp_path: Path) -> None:
    with Cluster(brokers=3, data_dir=tmp_path, power_cuts=power_cuts) as cluster:
        address = cluster.bootstrap_servers
        cluster.create_topic("orders", replication_factor=3)
        write(cluster, "orders", VALUES)
        cluster.kill()
        assert not cluster.is_running
        cluster.start()
        assert cluster.bootstrap_servers == address
        assert read(cluster, "orders", len(VALUES)) == VALUES
    with Cluster(brokers=3, data_dir=tmp_path) as cluster:
        assert read(cluster, "orders", len(VALUES)) == VALUES


async def test_several_brokers_for_an_async_with_block() -> None:
    # Of three, two stay in sync, enough to know what was acknowledged. Of two, the last one might not know.
    async with Cluster(brokers=3, storage="memory") as cluster:
        cluster.create_topic("orders", partitions=6, replication_factor=3)
        assert {cluster.leader_of("orders", partition) for partition in range(6)} == {1, 2, 3}
        write(cluster, "orders", VALUES)
        first = cluster.leader_of("orders")
        cluster.stop(first)
        assert cluster.leader_of("orders") not in (None, first)
        assert read(cluster, "orders", len(VALUES)) == VALUES


def test_what_a_cluster_does_not_have(ottla_cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="there is no broker 4; there are 1, 2, 3"):
        ottla_cluster.kill(4)
    with pytest.raises(KeyError, match="orders-0"):
        ottla_cluster.leader_of("orders")
    with pytest.raises(TopicRefusedError, match="invalid_replication_factor"):
        ottla_cluster.create_topic("orders", replication_factor=4)
    ottla_cluster.create_topic("orders")
    ottla_cluster.kill(1)
    ottla_cluster.kill(2)
    with pytest.raises(TimeoutError, match="do not have all replicas in sync"):
        ottla_cluster.wait_until_in_sync(timeout_s=0.1)


def test_the_plugin_in_a_project_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        def test_fixture(ottla):
            host, port = ottla.bootstrap_servers.split(":")
            ottla.create_topic("orders", partitions=3)
            socket.create_connection((host, int(port))).close()

        def test_factory(ottla_cluster_factory):
            assert ottla_cluster_factory(storage="memory").is_running

        def test_cluster(ottla_cluster):
            assert ottla_cluster.running_brokers == [1, 2]
        """
    )
    pytester.runpytest_subprocess("-q", "--ottla-brokers", "2").assert_outcomes(passed=3)
