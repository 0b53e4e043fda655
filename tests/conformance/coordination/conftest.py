"""The stores, each started once, with a separate namespace for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ottla.testing.ports import reserve_ports
from tests.conformance.coordination.servers import (
    EtcdServer,
    ZookeeperServer,
    etcd_cluster,
    running,
    why_no_etcd,
    why_no_zookeeper,
)
from tests.conformance.coordination.worlds import EtcdWorld, SimStoreWorld, SqliteWorld, World, ZookeeperWorld

KINDS = ("sqlite", "etcd", "zookeeper", "sim")


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd for all tests that do not stop it."""
    if reason := why_no_etcd():
        pytest.skip(reason)
    (server,) = etcd_cluster(tmp_path_factory.mktemp("etcd"), 1)
    with running([server]):
        yield server


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """A ZooKeeper for all tests that do not stop it."""
    if reason := why_no_zookeeper():
        pytest.skip(reason)
    server = ZookeeperServer(tmp_path_factory.mktemp("zookeeper"), *reserve_ports(1))
    with running([server]):
        yield server


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> AsyncIterator[World]:
    made = make_world(request, seed, tmp_path)
    yield made
    await made.close()


def make_world(request: pytest.FixtureRequest, seed: int, tmp_path: Path) -> World:
    match request.param:
        case "sqlite":
            return SqliteWorld(tmp_path)
        case "etcd":
            return EtcdWorld([request.getfixturevalue("etcd").address])
        case "zookeeper":
            return ZookeeperWorld(request.getfixturevalue("zookeeper").address)
        case _:
            return SimStoreWorld(seed)
