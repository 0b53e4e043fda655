"""Counts the modules of Ottla that a broker executes for one request.

    python -m benchmarks.modules_crossed

A profiler records the modules whose functions run in the broker's thread from the request to its reply. Background work
falls into such a window by chance, so only modules that occur in each of several repetitions count. Compiled modules
have no Python frames and do not count.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import FrameType
from typing import Any
from uuid import UUID

from ottla.client import Producer
from ottla.net.apis import FETCH, FIND_COORDINATOR, JOIN_GROUP, METADATA, call, open_connection
from ottla.net.connection import Address
from ottla.net.errors import ConnectionLostError
from ottla.testing import Cluster

REPETITIONS = 8
METADATA_BODY = {
    "topics": [{"topic_id": UUID(int=0), "name": "t"}],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
FETCHED_PARTITION = {
    "partition": 0,
    "current_leader_epoch": -1,
    "fetch_offset": 0,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "partition_max_bytes": 1 << 20,
}
FETCH_BODY = {
    "max_wait": timedelta(0),
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": [],
    "rack_id": "",
}
JOIN_BODY = {
    "group_id": "g",
    "session_timeout": timedelta(seconds=30),
    "rebalance_timeout": timedelta(seconds=30),
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "reason": None,
}

recorded: set[str] | None = None


def profile(frame: FrameType, event: str, argument: object) -> None:
    """Notes the module of every Python function that is entered."""
    if event == "call" and recorded is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("ottla."):
            recorded.add(name)


async def crossed(request: Callable[[], Awaitable[Any]]) -> set[str]:
    """Returns the modules that every repetition of a request executes in the broker's thread."""
    global recorded
    found: list[set[str]] = []
    for _ in range(REPETITIONS):
        await asyncio.sleep(0.05)
        recorded = set()
        await request()
        found.append(recorded)
        recorded = None
    return set.intersection(*found)


async def measure(servers: str) -> dict[str, set[str]]:
    """Sends each kind of request, on connections that are already open."""
    result = {}
    async with Producer(servers) as producer:
        await producer.send("t", b"first")
        result["produce"] = await crossed(lambda: producer.send("t", b"value"))
    host, _, port = servers.partition(":")
    connection = await open_connection(
        Address(host, int(port)),
        client_id="modules",
        software_version="1",
        connect_timeout_ms=10_000,
        request_timeout_ms=10_000,
    )
    metadata = await call(connection, METADATA, METADATA_BODY, what="asking for the topic")
    topics = [{"topic_id": metadata.topics[0].topic_id, "partitions": [FETCHED_PARTITION]}]
    fetch = {**FETCH_BODY, "topics": topics}
    result["fetch"] = await crossed(lambda: call(connection, FETCH, fetch, what="fetching"))
    for _ in range(100):  # the coordinator's topic is created by the first question
        found = await call(connection, FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]}, what="asking")
        if not found.coordinators[0].error_code:
            break
        await asyncio.sleep(0.1)
    joined = await call(connection, JOIN_GROUP, JOIN_BODY, what="joining")
    member = {**JOIN_BODY, "member_id": joined.member_id}
    result["JoinGroup"] = await crossed(lambda: call(connection, JOIN_GROUP, member, what="joining"))
    connection.end(ConnectionLostError("done"))
    return result


def main() -> None:
    """Prints a table of requests and modules."""
    threading.setprofile(profile)
    with Cluster(brokers=1) as cluster:
        threading.setprofile(None)
        found = asyncio.run(measure(cluster.bootstrap_servers))
    for request, modules in found.items():
        print(f"{request}: {len(modules)} modules")
        for name in sorted(modules):
            print(f"    {name}")


if __name__ == "__main__":
    main()
