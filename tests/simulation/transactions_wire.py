"""Requests of a transactional producer over the simulated network: to its coordinator, to a group's, to leaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from ottla.client.errors import ClientError
from ottla.net.apis import FIND_COORDINATOR, ClientApi, call, open_connection
from ottla.net.connection import Address, Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.record import Record, encode_batch
from ottla.protocol.wire.produce import encode_produce_request, parse_produce_response

TIMEOUT_MS = 3000
PRODUCE_KEY = 0
OLD, NEW = 0, 2
"""Transaction versions: OLD clients add partitions themselves, NEW ones get a new epoch with each transaction."""
INIT_PRODUCER_ID = ClientApi(22, "InitProducerId", (4, 5))
ADD_PARTITIONS = ClientApi(24, "AddPartitionsToTxn", (3, 3))
ADD_OFFSETS = ClientApi(25, "AddOffsetsToTxn", (3, 3))
END_TXN = {OLD: ClientApi(26, "EndTxn", (3, 3)), NEW: ClientApi(26, "EndTxn", (5, 5))}
TXN_OFFSET_COMMIT = {OLD: ClientApi(28, "TxnOffsetCommit", (3, 3)), NEW: ClientApi(28, "TxnOffsetCommit", (5, 5))}
OFFSET_FETCH = ClientApi(9, "OffsetFetch", (9, 9))
PRODUCE_VERSIONS = {OLD: 11, NEW: 12}


class Coordinator(NamedTuple):
    kind: int
    key: str


class Identity(NamedTuple):
    producer_id: int = -1
    epoch: int = -1


class Answer(NamedTuple):
    error: ErrorCode | None
    """None if there was no reply, and it is unknown whether the request was carried out."""
    body: Any = None


LeaderOf = Callable[[str, int], str | None]
Unanswered = (ClientError, OSError, TimeoutError)
MOVING = frozenset(
    {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
)
"""Errors after which it is unknown whether the request was carried out."""
UNKNOWN = Answer(None)
NOT_SENT = Answer(ErrorCode.coordinator_not_available)


class Wire:
    """The connections of one producer, which has one request in flight."""

    def __init__(self, transactional_id: str, servers: Iterable[str], leader_of: LeaderOf, rng: Random) -> None:
        self.name = transactional_id
        self._servers = list(servers)
        self._leader_of = leader_of
        self._rng = rng
        self._found: dict[Coordinator, str] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        """The leaders it knows, which may be outdated."""
        self._connections: dict[str, Connection] = {}

    def end(self) -> None:
        for connection in self._connections.values():
            connection.end()
        self._connections.clear()

    # -- requests --------------------------------------------------------------------------------------------------

    async def init(self, known: Identity, timeout_ms: int) -> Answer:
        timeout = timedelta(milliseconds=timeout_ms)
        body = {"transactional_id": self.name, "transaction_timeout": timeout, **_fields(known)}
        return await self._ask(self._own, INIT_PRODUCER_ID, body)

    async def add_partition(self, identity: Identity, topic: str, partition: int) -> Answer:
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }

        def error_of(reply: Any) -> Any:
            return reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        return await self._ask(self._own, ADD_PARTITIONS, body, error_of)

    async def add_offsets(self, identity: Identity, group: str) -> Answer:
        body = {"transactional_id": self.name, **_fields(identity), "group_id": group}
        return await self._ask(self._own, ADD_OFFSETS, body)

    async def commit_offset(self, identity: Identity, version: int, group: str, topic: str, offset: int) -> Answer:
        committed = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        body = {
            "transactional_id": self.name,
            "group_id": group,
            **_fields(identity),
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [{**committed, "committed_metadata": ""}]}],
        }

        def error_of(reply: Any) -> Any:
            return reply.topics[0].partitions[0].error_code

        return await self._ask(Coordinator(0, group), TXN_OFFSET_COMMIT[version], body, error_of)

    async def end_transaction(self, identity: Identity, version: int, *, commit: bool) -> Answer:
        body = {"transactional_id": self.name, **_fields(identity), "committed": commit}
        return await self._ask(self._own, END_TXN[version], body)

    async def stable_offset(self, group: str, topic: str) -> Answer:
        """Fetches a committed offset; the body is the offset, -1 if there is none."""
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}], "member_epoch": -1}
        body = {"groups": [{**asked, "member_id": None}], "require_stable": True}

        def error_of(reply: Any) -> Any:
            (found,) = reply.groups
            return found.error_code or found.topics[0].partitions[0].error_code

        answer = await self._ask(Coordinator(0, group), OFFSET_FETCH, body, error_of)
        if answer.error is not ErrorCode.none:
            return answer
        return Answer(answer.error, int(answer.body.groups[0].topics[0].partitions[0].committed_offset))

    async def produce(
        self,
        identity: Identity,
        version: int,
        place: tuple[str, int],
        sequence: int,
        values: list[bytes],
        now_ms: int,
    ) -> Answer:
        """Produces a batch; the body is the offset of the first record."""
        topic, partition = place
        leader = self._leaders.get(place) or self._leader_of(topic, partition)
        connection = None if leader is None else await self._reached(leader)
        if leader is None or connection is None:
            self._leaders.pop(place, None)
            return Answer(ErrorCode.not_leader_or_follower)
        self._leaders[place] = leader
        batch = encode_batch(
            [Record(number, now_ms, b"key", value) for number, value in enumerate(values)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        api_version = PRODUCE_VERSIONS[version]
        body = encode_produce_request(api_version, self.name, -1, TIMEOUT_MS, [(topic, [(partition, batch)])])
        try:
            reply = await connection.request(PRODUCE_KEY, api_version, body, what="producing")
        except Unanswered:
            self._forget(leader)
            self._leaders.pop(place, None)
            return UNKNOWN
        ((_, [result]),) = parse_produce_response(reply, api_version).topics
        if result.error:
            self._leaders.pop(place, None)
        return Answer(ErrorCode(result.error), result.base_offset)

    # -- connections -----------------------------------------------------------------------------------------------

    @property
    def _own(self) -> Coordinator:
        return Coordinator(1, self.name)

    async def _ask(
        self,
        of: Coordinator,
        api: ClientApi,
        body: dict[str, Any],
        error_of: Callable[[Any], Any] = lambda reply: reply.error_code,
    ) -> Answer:
        host = self._found.get(of) or await self._find(of)
        connection = None if host is None else await self._reached(host)
        if host is None or connection is None:
            self._found.pop(of, None)
            return NOT_SENT
        try:
            reply = await call(connection, api, body, what=api.name)
        except Unanswered:
            self._found.pop(of, None)
            self._forget(host)
            return UNKNOWN
        error = ErrorCode(error_of(reply))
        if error in MOVING:
            self._found.pop(of, None)
        else:
            self._found[of] = host
        return Answer(error, reply)

    async def _find(self, of: Coordinator) -> str | None:
        server = self._rng.choice(self._servers)
        connection = await self._reached(server)
        if connection is None:
            return None
        try:
            body = {"key_type": of.kind, "coordinator_keys": [of.key]}
            reply = await call(connection, FIND_COORDINATOR, body, what="asking for the coordinator")
        except Unanswered:
            self._forget(server)
            return None
        (found,) = reply.coordinators
        return None if found.error_code else str(found.host)

    async def _reached(self, host: str) -> Connection | None:
        known = self._connections.get(host)
        if known is not None and known.is_open:
            return known
        try:
            connection = await open_connection(
                Address(host, 9092),
                client_id=self.name,
                software_version="1",
                connect_timeout_ms=1000,
                request_timeout_ms=TIMEOUT_MS,
            )
        except Unanswered:
            return None
        self._connections[host] = connection
        return connection

    def _forget(self, host: str) -> None:
        connection = self._connections.pop(host, None)
        if connection is not None:
            connection.end()


def _fields(identity: Identity) -> dict[str, int]:
    return {"producer_id": identity.producer_id, "producer_epoch": identity.epoch}
