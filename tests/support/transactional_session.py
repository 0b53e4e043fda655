"""A transactional producer on a simulated cluster that sends raw requests: it finds its coordinator and retries where a
client would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ottla.client.errors import ClientError
from ottla.net.apis import FIND_COORDINATOR, ClientApi, open_connection
from ottla.net.connection import Address
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import parse_request_header, response_header
from tests.support.sim_cluster import ClusterBench
from tests.support.transactional_peer import Peer

INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, OFFSET_FETCH = 22, 24, 25, 26, 28, 9
GROUP, TRANSACTION = 0, 1
AGAIN = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
    }
)
PAUSE_S = 0.1


def error_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.error_code)


class Session:
    """A transactional producer. `version` is that of the transaction protocol: 2, or 0 for older clients."""

    def __init__(self, bench: ClusterBench, name: str, *, version: int = 2, timeout_ms: int = 60_000) -> None:
        self.bench = bench
        self.name = name
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}
        self.added: set[tuple[str, int]] = set()
        """Partitions added to the current transaction."""

    # -- coordinator -------------------------------------------------------------------------------------------

    async def coordinator(self, kind: int = TRANSACTION, key: str | None = None) -> int:
        while True:
            for number in self.bench.ids:
                if not self.bench.host(number).is_running:
                    continue
                try:
                    body = {"key_type": kind, "coordinator_keys": [key or self.name]}
                    found = (await self.bench.ask(number, FIND_COORDINATOR, body)).coordinators[0]
                except ClientError:
                    continue
                if not found.error_code and self.bench.host(found.node_id).is_running:
                    return int(found.node_id)
            await asyncio.sleep(PAUSE_S)

    async def ask(
        self,
        key: int,
        version: int,
        body: dict[str, Any],
        error: Callable[[Any], ErrorCode] = error_of,
        *,
        group: str | None = None,
    ) -> Any:
        """Sends a request to the coordinator until the reply is not retriable."""
        while True:
            number = await (self.coordinator(GROUP, group) if group else self.coordinator())
            try:
                reply = await self.bench.ask(number, ClientApi(key, "asked", (version, version)), body)
            except ClientError:
                await asyncio.sleep(PAUSE_S)
                continue
            if error(reply) not in AGAIN:
                return reply
            await asyncio.sleep(PAUSE_S)

    # -- transactions ------------------------------------------------------------------------------------------

    async def init(self) -> ErrorCode:
        body = {
            "transactional_id": self.name,
            "transaction_timeout": timedelta(milliseconds=self.timeout_ms),
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
        }
        reply = await self.ask(INIT_PRODUCER_ID, 5, body)
        if not reply.error_code:
            self._take(reply)
        return error_of(reply)

    async def add(self, topic: str, partition: int = 0) -> ErrorCode:
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.producer[0],
            "v3_and_below_producer_epoch": self.producer[1],
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }

        def error(reply: Any) -> ErrorCode:
            return ErrorCode(reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        return error(await self.ask(ADD_PARTITIONS, 3, body, error))

    async def produce(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        """Produces; a client of the old protocol adds the partition first."""
        if self.version < 2 and (topic, partition) not in self.added:
            added = await self.add(topic, partition)
            if added is not ErrorCode.none:
                return added
            self.added.add((topic, partition))
        while True:
            error = await self._produce_once(topic, values, partition)
            if error not in AGAIN:
                return error
            await asyncio.sleep(PAUSE_S)

    async def _produce_once(self, topic: str, values: tuple[bytes, ...], partition: int) -> ErrorCode:
        leader = self.bench.leader(topic, partition)
        if leader == -1:
            return ErrorCode.not_leader_or_follower
        sequence = self._sequences.get((topic, partition), 0)
        peer = Reached(self.bench, leader, topic)
        try:
            result = await peer.run(
                lambda peer: peer.produce(
                    *values,
                    producer=(*self.producer, sequence),
                    partition=partition,
                    version=12 if self.version >= 2 else 11,
                    transactional_id=self.name,
                )
            )
        except ClientError:
            return ErrorCode.not_leader_or_follower
        if not result.error:
            self._sequences[topic, partition] = sequence + len(values)
        return ErrorCode(result.error)

    async def commit_offset(self, group: str, topic: str, offset: int) -> ErrorCode:
        if self.version < 2:
            producer = {"producer_id": self.producer[0], "producer_epoch": self.producer[1]}
            added = await self.ask(ADD_OFFSETS, 3, {"transactional_id": self.name, **producer, "group_id": group})
            if added.error_code:
                return error_of(added)
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        body = {
            "transactional_id": self.name,
            "group_id": group,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }

        def error(reply: Any) -> ErrorCode:
            return ErrorCode(reply.topics[0].partitions[0].error_code)

        version = 5 if self.version >= 2 else 3
        return error(await self.ask(TXN_OFFSET_COMMIT, version, body, error, group=group))

    async def end(self, *, commit: bool) -> ErrorCode:
        body = {
            "transactional_id": self.name,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "committed": commit,
        }
        self.added = set()
        reply = await self.ask(END_TXN, 5 if self.version >= 2 else 3, body)
        if not reply.error_code and self.version >= 2:
            self._take(reply)
        return error_of(reply)

    def _take(self, reply: Any) -> None:
        taken = (reply.producer_id, reply.producer_epoch)
        if taken != self.producer:
            self._sequences = {}
        self.producer = taken

    async def committed_offset(self, group: str, topic: str, *, stable: bool = True) -> int | ErrorCode:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "member_epoch": -1}
        body = {"groups": [{**asked, "member_id": None}], "require_stable": stable}

        def error(reply: Any) -> ErrorCode:
            return ErrorCode(reply.groups[0].error_code)

        reply = await self.ask(OFFSET_FETCH, 9, body, error, group=group)
        found = reply.groups[0].topics[0].partitions[0]
        return ErrorCode(found.error_code) if found.error_code else int(found.committed_offset)

    async def settled_offset(self, group: str, topic: str) -> int | ErrorCode:
        """Waits until no pending transaction holds the offset back, and returns it."""
        while True:
            found = await self.committed_offset(group, topic)
            if found is not ErrorCode.unstable_offset_commit:
                return found
            await asyncio.sleep(PAUSE_S)


class Reached:
    """A connection to one broker for a single exchange."""

    def __init__(self, bench: ClusterBench, number: int, topic: str) -> None:
        self._bench = bench
        self._number = number
        self._topic = topic

    async def run(self, exchange: Callable[[Peer], Any]) -> Any:
        bench = self._bench
        connection = await open_connection(
            Address(bench.name(self._number), 9092),
            client_id="test",
            software_version="1",
            connect_timeout_ms=2000,
            request_timeout_ms=10_000,
        )

        async def send(frame: bytes) -> bytes:
            key, version, correlation_id, _, body_at = parse_request_header(memoryview(frame))
            body = await connection.request(key, version, [frame[body_at:]], what="asking")
            return response_header(key, version, correlation_id) + bytes(body)

        try:
            topic_id = bench.partition(self._number, self._topic).topic.id
            return await exchange(Peer(send, self._topic, topic_id, bench.world.clock.now_ms))
        finally:
            connection.end()
