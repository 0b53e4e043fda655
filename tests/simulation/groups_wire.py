"""Requests to a group's coordinator over the simulated network, translated between the machine's and Kafka's types."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import Any

from ottla.client.errors import ClientError
from ottla.machines.groups.records import Assignment, CommittedOffset
from ottla.machines.groups.replies import (
    CommitReply,
    ConsumerHeartbeatReply,
    FetchedOffset,
    FetchOffsetsReply,
    HeartbeatReply,
    JoinedMember,
    JoinReply,
    LeaveReply,
    Reply,
    SyncReply,
)
from ottla.machines.groups.requests import (
    CommitOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Request,
    SyncGroup,
)
from ottla.net.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    ClientApi,
    call,
    open_connection,
)
from ottla.net.connection import Address, Connection
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.ids import TopicId
from tests.simulation.violations import Violation

MOVING = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)
"""Errors after which it is unknown whether the request was carried out."""
TIMEOUT_MS = 3000
OFFSET_COMMIT_WITH_RETENTION = ClientApi(8, "OffsetCommit", (4, 4))


class CoordinatorConnection:
    """The connection of one member, with one request at a time: replies arrive in order, and a join may take long."""

    def __init__(self, servers: Iterable[str], group: str, rng: Random) -> None:
        self._servers = list(servers)
        self._group = group
        self._rng = rng
        self._connection: Connection | None = None

    async def ask(self, request: Request) -> Reply | None:
        """Returns None if there was no reply, or none from a coordinator."""
        api, body = _body_of(request)
        timeout_ms = request.rebalance_timeout_ms + TIMEOUT_MS if isinstance(request, JoinGroup) else TIMEOUT_MS
        try:
            connection = await self._connected()
            if connection is None:
                return None
            answer = await call(connection, api, body, what=api.name, timeout_ms=timeout_ms)
        except (ClientError, OSError, TimeoutError):
            self.forget()
            return None
        reply = _reply_of(request, answer)
        errors = set(reply.errors) if isinstance(reply, CommitReply) else {reply.error}  # type: ignore[union-attr]  # all others have one
        if ErrorCode.unknown_server_error in errors:
            raise Violation("server error", f"{request}: {reply}")
        if not errors.isdisjoint(MOVING):
            self.forget()
            return None
        return reply

    def forget(self) -> None:
        if self._connection is not None:
            self._connection.end()
            self._connection = None

    async def _connected(self) -> Connection | None:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        found = await self._find()
        self._connection = None if found is None else await self._open(found)
        return self._connection

    async def _find(self) -> str | None:
        asked = await self._open(self._rng.choice(self._servers))
        try:
            body = {"key_type": 0, "coordinator_keys": [self._group]}
            reply = await call(asked, FIND_COORDINATOR, body, what="asking for the coordinator")
        finally:
            asked.end()
        (found,) = reply.coordinators
        return None if found.error_code else found.host

    async def _open(self, host: str) -> Connection:
        return await open_connection(
            Address(host, 9092),
            client_id="member",
            software_version="1",
            connect_timeout_ms=1000,
            request_timeout_ms=TIMEOUT_MS,
        )


def _body_of(request: Request) -> tuple[ClientApi, dict[str, Any]]:
    match request:
        case JoinGroup():
            return JOIN_GROUP, _join_body(request)
        case SyncGroup():
            return SYNC_GROUP, {
                **_identity(request),
                "protocol_type": "consumer",
                "protocol_name": "mine",
                "assignments": [{"member_id": who, "assignment": what} for who, what in request.assignments],
            }
        case Heartbeat():
            return HEARTBEAT, _identity(request)
        case LeaveGroup():
            members = [{"member_id": each.member_id, "group_instance_id": each.instance_id} for each in request.members]
            return LEAVE_GROUP, {"group_id": request.group, "members": members}
        case ConsumerHeartbeat():
            return CONSUMER_GROUP_HEARTBEAT, _heartbeat_body(request)
        case CommitOffsets():
            api = OFFSET_COMMIT if request.retention_ms < 0 else OFFSET_COMMIT_WITH_RETENTION
            return api, _commit_body(request)
        case FetchOffsets():
            topics = [{"name": name, "partition_indexes": list(indexes)} for name, indexes in request.topics or ()]
            group = {"group_id": request.group, "member_id": None, "member_epoch": -1, "topics": topics}
            return OFFSET_FETCH, {"groups": [group], "require_stable": True}
        case _:
            raise TypeError(f"members do not send {request}")


def _identity(request: SyncGroup | Heartbeat) -> dict[str, Any]:
    return {
        "group_id": request.group,
        "generation_id": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
    }


def _join_body(request: JoinGroup) -> dict[str, Any]:
    return {
        "group_id": request.group,
        "session_timeout": timedelta(milliseconds=request.session_timeout_ms),
        "rebalance_timeout": timedelta(milliseconds=request.rebalance_timeout_ms),
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "protocol_type": request.protocol_type,
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in request.protocols],
    }


def _heartbeat_body(request: ConsumerHeartbeat) -> dict[str, Any]:
    owned: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(request.owned or ()):
        owned.setdefault(topic_id, []).append(index)
    named = [{"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in owned.items()]
    body: dict[str, Any] = {
        "group_id": request.group,
        "member_id": request.member_id,
        "member_epoch": request.member_epoch,
        "instance_id": request.instance_id,
        "subscribed_topic_names": None if request.subscribed_names is None else list(request.subscribed_names),
        "topic_partitions": None if request.owned is None else named,
    }
    if request.rebalance_timeout_ms >= 0:
        body["rebalance_timeout"] = timedelta(milliseconds=request.rebalance_timeout_ms)
    return body


def _commit_body(request: CommitOffsets) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for each in request.offsets:
        entry = {"partition_index": each.partition, "committed_offset": each.offset, "committed_leader_epoch": -1}
        topics.setdefault(each.topic, []).append({**entry, "committed_metadata": ""})
    return {
        "group_id": request.group,
        "generation_id_or_member_epoch": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "retention_time": timedelta(milliseconds=request.retention_ms),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


def _reply_of(request: Request, answer: Any) -> Reply:
    match request:
        case JoinGroup():
            members = tuple(JoinedMember(each.member_id, None, each.metadata) for each in answer.members)
            return JoinReply(
                error=answer.error_code,
                member_id=answer.member_id,
                generation=int(answer.generation_id),
                leader=answer.leader,
                skip_assignment=getattr(answer, "skip_assignment", False),
                members=members,
            )
        case SyncGroup():
            return SyncReply(error=answer.error_code, assignment=answer.assignment)
        case Heartbeat():
            return HeartbeatReply(answer.error_code)
        case LeaveGroup():
            return LeaveReply(answer.error_code)
        case ConsumerHeartbeat():
            return ConsumerHeartbeatReply(
                error=answer.error_code,
                member_id=answer.member_id,
                member_epoch=int(answer.member_epoch),
                assignment=None if answer.assignment is None else _assignment(answer.assignment),
            )
        case CommitOffsets():
            return CommitReply(tuple(each.error_code for topic in answer.topics for each in topic.partitions))
        case _:
            return _fetched(answer)


def _assignment(answer: Any) -> Assignment:
    return frozenset(
        (TopicId(topic.topic_id), int(index)) for topic in answer.topic_partitions for index in topic.partitions
    )


def _fetched(answer: Any) -> FetchOffsetsReply:
    (group,) = answer.groups
    found = []
    error = group.error_code
    for topic in group.topics:
        for each in topic.partitions:
            error = error or each.error_code
            offset = each.committed_offset
            value = None if offset < 0 else CommittedOffset(offset, -1, "", 0)
            found.append(FetchedOffset(topic.name, int(each.partition_index), value))
    return FetchOffsetsReply(error, tuple(found))
