"""Groups that change their protocol."""

from __future__ import annotations

from ottla.machines.groups.replies import HeartbeatReply, JoinReply, LeaveReply, SyncReply
from ottla.machines.groups.requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from ottla.machines.groups.shard import Shard, Ticket
from ottla.model.errors import ErrorCode


def close_empty_consumer_group(shard: Shard, group: str) -> None:
    raise NotImplementedError


def join_consumer_group(shard: Shard, ticket: Ticket, request: JoinGroup) -> None:
    shard.answer(ticket, JoinReply(error=ErrorCode.inconsistent_group_protocol))


def sync_consumer_group(shard: Shard, ticket: Ticket, request: SyncGroup) -> None:
    shard.answer(ticket, SyncReply(error=ErrorCode.unknown_member_id))


def heartbeat_consumer_group(shard: Shard, ticket: Ticket, request: Heartbeat) -> None:
    shard.answer(ticket, HeartbeatReply(ErrorCode.unknown_member_id))


def leave_consumer_group(shard: Shard, ticket: Ticket, request: LeaveGroup) -> None:
    shard.answer(ticket, LeaveReply(ErrorCode.unknown_member_id))
