"""Group members that do only what the protocol requires, many of them in one process.

Each member has its own connection, as real consumers do. Requests that it repeats are encoded once.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from struct import Struct
from typing import Any
from uuid import uuid4

from ottla.machines.groups.consumer_protocol import Subscription, write_assignment, write_subscription
from ottla.net.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    SYNC_GROUP,
    ClientApi,
    build,
)
from ottla.net.connection import Address, Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.schema import decode, encode, request_type, response_type

TIMEOUT_MS = 60_000
SESSION = timedelta(seconds=45)
REBALANCE = timedelta(minutes=5)
LOOK_AGAIN_S = 0.05

_ERROR = Struct(">h")
HEARTBEAT_ERROR_AT = 4
"""The error code follows the throttle time."""
COMMIT_ERROR_FROM_END = 5
"""Position in a reply for one partition: before the ends of partition, topic and reply."""


class MemberRefusedError(Exception):
    """A member received an unexpected error."""


@dataclass(eq=False)
class Group:
    """The knowledge that the members of one group share."""

    name: str
    topic: str
    members: list[Member] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    """The number of members that the leader of each generation was told of."""

    @property
    def is_whole(self) -> bool:
        """Returns whether all members have settled in the same generation."""
        is_one = len({member.generation for member in self.members}) == 1
        return is_one and all(member.is_settled for member in self.members)


class Member(ABC):
    """A member of a group."""

    def __init__(self, group: Group, connection: Connection) -> None:
        self.group = group
        self.generation = -1
        """The generation or, in the consumer protocol, the member epoch."""
        self.member_id = ""
        self._connection = connection
        self._heartbeat: bytes = b""
        self._commit: bytes = b""
        group.members.append(self)

    heartbeat_api: ClientApi

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the member has its part of the topic, and all other members have joined."""

    @abstractmethod
    async def enter(self) -> None:
        """Joins, and returns when the group is complete."""

    async def beat(self) -> ErrorCode:
        """Sends a heartbeat."""
        reply = await self._send(self.heartbeat_api, self._heartbeat)
        return ErrorCode(_ERROR.unpack_from(reply, HEARTBEAT_ERROR_AT)[0])

    async def commit(self) -> ErrorCode:
        """Commits an offset."""
        reply = await self._send(OFFSET_COMMIT, self._commit)
        return ErrorCode(_ERROR.unpack_from(reply, len(reply) - COMMIT_ERROR_FROM_END)[0])

    def close(self) -> None:
        """Ends the connection without leaving the group."""
        self._connection.end()

    async def _call(self, api: ClientApi, body: Mapping[str, Any]) -> Any:
        return await exchange(self._connection, api, body)

    def _send(self, api: ClientApi, body: bytes) -> asyncio.Future[memoryview]:
        return self._connection.request(api.key, api.versions[1], [body], what=api.name)

    @abstractmethod
    def _what_a_heartbeat_says(self) -> dict[str, Any]: ...

    def prepare(self) -> None:
        """Encodes the requests that the member sends from now on."""
        self._heartbeat = _encoded(self.heartbeat_api, self._what_a_heartbeat_says())
        partition = {
            "partition_index": self.group.members.index(self),
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        commit = {
            "group_id": self.group.name,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
            "topics": [{"name": self.group.topic, "partitions": [partition]}],
        }
        self._commit = _encoded(OFFSET_COMMIT, commit)


class ClassicMember(Member):
    """A member that uses the classic protocol."""

    heartbeat_api = HEARTBEAT

    @property
    def is_settled(self) -> bool:
        return self.group.sizes.get(self.generation) == len(self.group.members)

    async def enter(self) -> None:
        has_to_join = True
        while not self.group.is_whole:
            if has_to_join:
                has_to_join = not await self._join()
            else:
                await asyncio.sleep(LOOK_AGAIN_S)
                has_to_join = await self.beat() is not ErrorCode.none

    async def _join(self) -> bool:
        """Joins and returns whether the generation has begun."""
        body = {
            "group_id": self.group.name,
            "session_timeout": SESSION,
            "rebalance_timeout": REBALANCE,
            "member_id": self.member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [
                {"name": "range", "metadata": write_subscription(Subscription(3, (self.group.topic,)))},
            ],
            "reason": None,
        }
        joined = await self._call(JOIN_GROUP, body)
        self.member_id = joined.member_id
        if joined.error_code is not ErrorCode.none:
            return False
        if joined.leader == joined.member_id:
            self.group.sizes[joined.generation_id] = len(joined.members)
        return await self._sync(joined)

    async def _sync(self, joined: Any) -> bool:
        assignments = [
            {"member_id": member.member_id, "assignment": write_assignment([(self.group.topic, at)], 3)}
            for at, member in enumerate(joined.members)
        ]
        self.generation = joined.generation_id
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        body = {**self._what_a_heartbeat_says(), **names, "assignments": assignments}
        synced = await self._call(SYNC_GROUP, body)
        if synced.error_code is not ErrorCode.none:
            self.generation = -1
            return False
        self.prepare()
        return True

    def _what_a_heartbeat_says(self) -> dict[str, Any]:
        return {
            "group_id": self.group.name,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": None,
        }


class ConsumerMember(Member):
    """A member that uses the consumer protocol (KIP-848)."""

    heartbeat_api = CONSUMER_GROUP_HEARTBEAT

    _owned: tuple[Any, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Returns whether it owns one partition: the topic has as many partitions as the group has members."""
        return [len(each["partitions"]) for each in self._owned] == [1]

    async def enter(self) -> None:
        self.member_id = str(uuid4())
        while not self.group.is_whole:
            reply = await self._call(CONSUMER_GROUP_HEARTBEAT, self._said(max(self.generation, 0), self._owned))
            if reply.error_code is not ErrorCode.none:
                raise MemberRefusedError(f"{reply.error_code.name}: {reply.error_message}")
            if reply.assignment is not None:
                self._owned = tuple(
                    {"topic_id": each.topic_id, "partitions": each.partitions}
                    for each in reply.assignment.topic_partitions
                )
            self.generation = reply.member_epoch
            await asyncio.sleep(LOOK_AGAIN_S)
        self.prepare()

    def _what_a_heartbeat_says(self) -> dict[str, Any]:
        return self._said(self.generation, None, is_first=False)

    def _said(self, epoch: int, owned: Any, *, is_first: bool = True) -> dict[str, Any]:
        return {
            "group_id": self.group.name,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": REBALANCE if is_first else timedelta(milliseconds=-1),
            "subscribed_topic_names": [self.group.topic] if is_first else None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": owned,
        }


async def connect(port: int) -> Connection:
    """Opens a connection to a broker on this machine."""
    return await Connection.open(
        Address("127.0.0.1", port), client_id="bench", timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS
    )


async def until_coordinated(connection: Connection) -> None:
    """Asks for a coordinator, which creates the topic of groups, and waits until that topic is loaded."""
    await exchange(connection, FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["group-0"]})
    error = None
    while error is not ErrorCode.none:
        await asyncio.sleep(LOOK_AGAIN_S)
        error = (await exchange(connection, LIST_GROUPS, {"states_filter": [], "types_filter": []})).error_code


async def exchange(connection: Connection, api: ClientApi, body: Mapping[str, Any]) -> Any:
    """Sends a request in the newest version that the client supports."""
    version = api.versions[1]
    reply = await connection.request(api.key, version, [_encoded(api, body)], what=api.name)
    return decode(response_type(api.key, version), reply)[0]


def _encoded(api: ClientApi, body: Mapping[str, Any]) -> bytes:
    return encode(build(request_type(api.key, api.versions[1]), body))


class LatencyRecorder:
    """Counts replies and their latencies."""

    def __init__(self) -> None:
        self.latencies: Counter[int] = Counter()

    async def time(self, request: Awaitable[ErrorCode]) -> None:
        """Waits for a reply and counts it. Raises MemberRefusedError on an error."""
        begin = time.perf_counter()
        error = await request
        if error is not ErrorCode.none:
            raise MemberRefusedError(error.name)
        self.latencies[int((time.perf_counter() - begin) * 1e6)] += 1
