"""Brokers reach one another at a separate address; the address advertised to clients is unreachable for brokers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Admin, Consumer, Producer
from ottla.net.apis import DESCRIBE_CLUSTER, FIND_COORDINATOR, call, open_connection
from ottla.net.connection import Address
from ottla.testing.ports import reserve_ports

WAIT_S = 90.0
DOMAIN = "ottla.invalid"
"""No name server resolves it (RFC 6761). Only this process does."""
BROKERS = (1, 2, 3)


def name_of(number: int) -> str:
    return f"broker-{number}.{DOMAIN}"


def start(directory: Path, number: int, port: int) -> subprocess.Popen[bytes]:
    values = {
        "node.id": str(number),
        "listeners": f"CLIENT://127.0.0.1:{port},BROKER://127.0.0.1:0",
        "advertised.listeners": f"CLIENT://{name_of(number)}:{port}",
        "inter.broker.listener.name": "BROKER",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT",
        "log.dirs": str(directory / f"broker-{number}"),
        "ottla.coordination": f"sqlite:{directory / 'coordination'}",
        "ottla.host.shared": "true",
        "default.replication.factor": "3",
        "min.insync.replicas": "3",
        "group.initial.rebalance.delay.ms": "0",
    }
    path = directory / f"{number}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    command = [sys.executable, "-m", "ottla", "broker", "--config", str(path)]
    with (directory / f"{number}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[dict[int, int]]:
    """Returns the client ports by broker, once all of them serve."""
    ports = dict(zip(BROKERS, reserve_ports(len(BROKERS)), strict=True))
    processes = [start(tmp_path, number, port) for number, port in ports.items()]
    try:
        for number, process in zip(BROKERS, processes, strict=True):
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            log = (tmp_path / f"{number}.log").read_text()
            assert ready == f"ottla ready bootstrap={name_of(number)}:{ports[number]}\n", log
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def _names_resolve_here(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **named: Any) -> Any:
        is_ours = isinstance(host, str) and host.endswith(DOMAIN)
        return real("127.0.0.1" if is_ours else host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


async def ask(port: int, api: Any, body: dict[str, Any]) -> Any:
    connection = await open_connection(
        Address("127.0.0.1", port),
        client_id="test",
        software_version="1",
        connect_timeout_ms=5000,
        request_timeout_ms=30_000,
    )
    try:
        return await call(connection, api, body, what="asking")
    finally:
        connection.end()


async def told_addresses(port: int) -> set[tuple[str, int]]:
    described = await ask(
        port,
        DESCRIBE_CLUSTER,
        {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False},
    )
    return {(each.host, each.port) for each in described.brokers}


async def until_all_are_known(port: int) -> None:
    while True:
        if len(await told_addresses(port)) == len(BROKERS):
            return
        await asyncio.sleep(0.1)


@pytest.mark.usefixtures("_names_resolve_here")
async def test_brokers_replicate_where_clients_are_not_sent(ports: dict[int, int]) -> None:
    bootstrap = ",".join(f"{name_of(number)}:{port}" for number, port in ports.items())
    async with asyncio.timeout(WAIT_S), Admin(bootstrap) as admin:
        for port in ports.values():
            assert await told_addresses(port) <= {(name_of(number), port) for number, port in ports.items()}
        await until_all_are_known(ports[1])
        await admin.create_topic("orders", partitions=3, replication_factor=3)
        # acks=all with min.insync.replicas=3: acknowledged only if both followers of each leader have fetched the
        # record.
        async with Producer(bootstrap, linger_ms=0) as producer:
            for number in range(9):
                await producer.send("orders", f"{number}".encode(), partition=number % 3)
        # A transaction over all partitions: its coordinator sends markers to the other brokers.
        async with Producer(bootstrap, transactional_id="t") as producer, producer.transaction():
            for partition in range(3):
                await producer.send("orders", b"in a transaction", partition=partition)
        found = 0
        async with Consumer(
            bootstrap, group_id="g", auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.subscribe(["orders"])
            while found < 12:
                found += len(await consumer.fetch_records(100))
        coordinator = await ask(ports[1], FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]})
        assert coordinator.coordinators[0].host in {name_of(number) for number in BROKERS}
        described = await admin.describe_topic("orders")
        assert all(len(each.isr) == 3 for each in described.partitions)
