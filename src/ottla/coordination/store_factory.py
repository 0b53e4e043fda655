"""Opens the coordination store that a setting names.

sqlite:DIRECTORY                  brokers on one machine
etcd:HOST:PORT,HOST:PORT/CLUSTER  a cluster; needs the extra `etcd`
zookeeper:HOST:PORT,.../CLUSTER   where ZooKeeper is already running; needs the extra `zookeeper`
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.coordination.port import Coordination
from ottla.ports import Clock

KINDS = ("sqlite", "etcd", "zookeeper")
CLUSTER = "ottla"
"""Default name under which a cluster keeps its entries."""


class BadCoordinationError(Exception):
    """The setting is invalid, or a package is missing. The message is meant for a person."""


class StoreAddress(NamedTuple):
    """A parsed `ottla.coordination` setting."""

    kind: str
    where: str
    cluster: str = CLUSTER


def parse_place(text: str) -> StoreAddress:
    """Parses the setting. Raises BadCoordinationError."""
    kind, separator, rest = text.partition(":")
    if kind not in KINDS or not separator or not rest:
        raise BadCoordinationError(
            f"ottla.coordination={text} must be one of sqlite:DIRECTORY, etcd:HOST:PORT[,...][/CLUSTER], "
            "zookeeper:HOST:PORT[,...][/CLUSTER]"
        )
    if kind == "sqlite":
        return StoreAddress(kind, rest)
    hosts, _, cluster = rest.partition("/")
    return StoreAddress(kind, hosts, cluster or CLUSTER)


async def open_coordination(text: str, clock: Clock) -> Coordination:
    """Opens the store that the setting names. Raises BadCoordinationError, UnavailableError."""
    place = parse_place(text)
    try:
        if place.kind == "sqlite":
            from ottla.coordination.sqlite.adapter import SqliteCoordination

            return await SqliteCoordination.open(place.where, clock)
        if place.kind == "etcd":
            from ottla.coordination.etcd.adapter import EtcdCoordination

            return await EtcdCoordination.open(place.where.split(","), place.cluster, clock)
        from ottla.coordination.zookeeper.adapter import ZookeeperCoordination

        return await ZookeeperCoordination.open(place.where, place.cluster, clock)
    except ImportError as missing:
        raise BadCoordinationError(
            f"ottla.coordination={text} needs the package {missing.name}: pip install 'ottla[{place.kind}]'"
        ) from missing
