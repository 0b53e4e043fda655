"""Translates a member's steps into Kafka requests, and replies into outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from ottla.client.groups.classic_formats import MemberSubscription, decode_assignment, decode_subscription
from ottla.client.groups.settings import GroupSettings
from ottla.client.groups.steps import (
    ErrorReply,
    HeartbeatStep,
    Join,
    Joined,
    Leave,
    MemberIdReply,
    Outcome,
    Report,
    ReportReply,
    SuccessReply,
    Sync,
    Synced,
)
from ottla.net.apis import CONSUMER_GROUP_HEARTBEAT, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, ClientApi
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.primitives import MalformedRequest

PROTOCOL_TYPE = "consumer"
JOIN_SLACK_MS = 5000
"""Added to the timeout of JoinGroup, whose reply comes when all members have joined or their time is up."""
BEATS_A_SESSION = 3
REPORT_TIMEOUT_MS = 10_000
"""Heartbeats are answered at once. A coordinator that hangs but keeps its connections open is given up before the
session expires, because another broker may have replaced it.
"""

Sendable = Join | Sync | HeartbeatStep | Leave | Report


@dataclass(frozen=True, slots=True)
class Request:
    """A request, its timeout, and the function that reads its reply."""

    api: ClientApi
    body: dict[str, Any]
    read: Callable[[Any], Outcome]
    timeout_ms: int | None = None


def request_for(ask: Sendable, settings: GroupSettings) -> Request:
    """Returns the request for a step."""
    match ask:
        case Join():
            timeout_ms = settings.max_poll_interval_ms + JOIN_SLACK_MS
            return Request(JOIN_GROUP, _join(ask, settings), _read_join, timeout_ms)
        case Sync():
            return Request(SYNC_GROUP, _sync(ask, settings), _read_sync)
        case HeartbeatStep():
            timeout_ms = settings.session_timeout_ms // BEATS_A_SESSION
            return Request(HEARTBEAT, _beat(ask, settings), _read_error, timeout_ms)
        case Leave():
            return Request(LEAVE_GROUP, _leave(ask, settings), _read_error)
        case Report():
            return Request(CONSUMER_GROUP_HEARTBEAT, _report(ask, settings), _read_report, REPORT_TIMEOUT_MS)


def _join(ask: Join, settings: GroupSettings) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "session_timeout": timedelta(milliseconds=settings.session_timeout_ms),
        "rebalance_timeout": timedelta(milliseconds=settings.max_poll_interval_ms),
        "member_id": ask.member_id,
        "group_instance_id": settings.instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in ask.protocols],
        "reason": ask.reason,
    }


def _read_join(reply: Any) -> Outcome:
    if reply.error_code is ErrorCode.member_id_required:
        return MemberIdReply(reply.member_id)
    if reply.error_code:
        return ErrorReply(reply.error_code)
    members = {each.member_id: _subscription(each) for each in reply.members}
    return Joined(
        generation=int(reply.generation_id),
        member_id=reply.member_id,
        protocol=reply.protocol_name or "",
        is_leader=reply.leader == reply.member_id,
        members=members,
        skip_assignment=getattr(reply, "skip_assignment", False),
    )


def _subscription(member: Any) -> MemberSubscription:
    """Decodes a member's subscription. A member whose subscription is not readable gets no partitions."""
    try:
        return decode_subscription(member.metadata, member.group_instance_id)
    except MalformedRequest:
        return MemberSubscription(frozenset(), instance_id=member.group_instance_id)


def _sync(ask: Sync, settings: GroupSettings) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "generation_id": ask.generation,
        "member_id": ask.member_id,
        "group_instance_id": settings.instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": ask.protocol,
        "assignments": [{"member_id": member, "assignment": data} for member, data in ask.assignments],
    }


def _read_sync(reply: Any) -> Outcome:
    if reply.error_code:
        return ErrorReply(reply.error_code)
    try:
        return Synced(decode_assignment(reply.assignment))
    except MalformedRequest as damage:
        return ErrorReply(ErrorCode.inconsistent_group_protocol, f"its leader sent an invalid assignment: {damage}")


def _beat(ask: HeartbeatStep, settings: GroupSettings) -> dict[str, Any]:
    return {
        "group_id": settings.group_id,
        "generation_id": ask.generation,
        "member_id": ask.member_id,
        "group_instance_id": settings.instance_id,
    }


def _leave(ask: Leave, settings: GroupSettings) -> dict[str, Any]:
    member = {"member_id": ask.member_id, "group_instance_id": settings.instance_id, "reason": ask.reason}
    return {"group_id": settings.group_id, "members": [member]}


def _read_error(reply: Any) -> Outcome:
    return ErrorReply(reply.error_code) if reply.error_code else SuccessReply()


def _report(ask: Report, settings: GroupSettings) -> dict[str, Any]:
    owned: list[dict[str, Any]] | None = None
    if ask.owned is not None:
        by_topic: dict[UUID, list[int]] = {}
        for topic, index in sorted(ask.owned):
            by_topic.setdefault(topic, []).append(index)
        owned = [{"topic_id": topic, "partitions": indexes} for topic, indexes in by_topic.items()]
    body: dict[str, Any] = {
        "group_id": settings.group_id,
        "member_id": ask.member_id,
        "member_epoch": ask.epoch,
        "instance_id": settings.instance_id,
        "subscribed_topic_names": None if ask.subscribed is None else sorted(ask.subscribed),
        "topic_partitions": owned,
    }
    if ask.is_full:
        body["rack_id"] = settings.rack or None
        body["rebalance_timeout"] = timedelta(milliseconds=settings.max_poll_interval_ms)
        body["server_assignor"] = settings.remote_assignor
    return body


def _read_report(reply: Any) -> Outcome:
    if reply.error_code:
        return ErrorReply(reply.error_code, reply.error_message)
    assigned = None
    if reply.assignment is not None:
        topics = reply.assignment.topic_partitions
        assigned = frozenset((topic.topic_id, int(index)) for topic in topics for index in topic.partitions)
    interval_s = reply.heartbeat_interval.total_seconds()
    return ReportReply(reply.member_id or "", int(reply.member_epoch), interval_s, assigned)
