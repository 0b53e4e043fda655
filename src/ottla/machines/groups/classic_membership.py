"""SyncGroup, Heartbeat and LeaveGroup of the classic protocol."""

from __future__ import annotations

from ottla.machines.coordinators import Ticket
from ottla.machines.groups import classic_members as guests
from ottla.machines.groups import classic_rebalance as rebalance
from ottla.machines.groups.classic_group import ClassicGroup, ClassicState
from ottla.machines.groups.records import ClassicRecord
from ottla.machines.groups.replies import NONE, HeartbeatReply, LeaveReply, LeftMember, SyncReply
from ottla.machines.groups.requests import NO_MEMBER_ID, Heartbeat, LeaveGroup, LeavingMember, SyncGroup
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode


def sync_group(shard: Shard, ticket: Ticket, request: SyncGroup) -> None:
    """SyncGroup, for groups of either protocol."""
    consumer_group = shard.tables.consumer.get(request.group)
    if consumer_group is not None and consumer_group.members:
        guests.sync_consumer_group(shard, ticket, request)
        return
    group = shard.classic.get(request.group)
    refusal = _sync_refusal(group, request)
    if refusal is not None or group is None:
        shard.answer(ticket, SyncReply(error=refusal or ErrorCode.unknown_member_id))
        return
    member = group.members[request.member_id]
    group.unsynced.discard(member.member_id)
    if not group.unsynced:
        shard.stop_timer(TimerKind.SYNC, group.name)
    # A member has one outstanding request: the earlier one has been abandoned.
    rebalance.answer_sync(shard, group, member, ErrorCode.rebalance_in_progress)
    member.sync_ticket = ticket
    if group.state is ClassicState.STABLE:
        rebalance.answer_sync(shard, group, member, NONE)
    elif member.member_id == group.leader:
        _assign(shard, group, request)


def _sync_refusal(group: ClassicGroup | None, request: SyncGroup) -> ErrorCode | None:
    if not request.group:
        return ErrorCode.invalid_group_id
    if group is None or group.state is ClassicState.EMPTY:
        return ErrorCode.unknown_member_id
    refusal = group.refusal(request.member_id, request.instance_id)
    if refusal is not None:
        return refusal
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is ClassicState.PREPARING else None


def _differ(said: str | None, known: str | None) -> bool:
    """Compares a value of the request with the group's. Older versions do not send it."""
    return said is not None and known is not None and said != known


def _assign(shard: Shard, group: ClassicGroup, request: SyncGroup) -> None:
    """Stores the leader's assignment. Members it omitted get nothing; members it invented are ignored."""
    assignments = dict(request.assignments)
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.turn(ClassicState.STABLE, shard.now.wall_ms)
    shard.emit(ClassicRecord(group.name, group.record(is_assigned=True)))
    for member in group.members.values():
        rebalance.answer_sync(shard, group, member, NONE)


def heartbeat(shard: Shard, ticket: Ticket, request: Heartbeat) -> None:
    """Heartbeat, for groups of either protocol."""
    if request.group in shard.tables.consumer:
        guests.heartbeat_consumer_group(shard, ticket, request)
        return
    shard.answer(ticket, HeartbeatReply(_heartbeat(shard, request)))


def _heartbeat(shard: Shard, request: Heartbeat) -> ErrorCode:
    if not request.group:
        return ErrorCode.invalid_group_id
    group = shard.classic.get(request.group)
    if group is None:
        return ErrorCode.unknown_member_id
    refusal = group.refusal(request.member_id, request.instance_id)
    if refusal is not None:
        return refusal
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    rebalance.keep_session(shard, group, group.members[request.member_id])
    return ErrorCode.rebalance_in_progress if group.state is ClassicState.PREPARING else NONE


def leave_group(shard: Shard, ticket: Ticket, request: LeaveGroup) -> None:
    """LeaveGroup, for groups of either protocol."""
    if not request.group:
        shard.answer(ticket, LeaveReply(ErrorCode.invalid_group_id))
        return
    if request.group in shard.tables.consumer:
        guests.leave_consumer_group(shard, ticket, request)
        return
    group = shard.classic.get(request.group)
    if group is None:
        left = tuple(
            LeftMember(each.member_id, each.instance_id, ErrorCode.unknown_member_id) for each in request.members
        )
        shard.answer(ticket, LeaveReply(NONE, left))
        return
    left = tuple(LeftMember(each.member_id, each.instance_id, _leave(shard, group, each)) for each in request.members)
    shard.answer(ticket, LeaveReply(NONE, left))
    if any(each.error is NONE for each in left):
        if group.state in (ClassicState.STABLE, ClassicState.COMPLETING):
            rebalance.prepare(shard, group)
        else:
            rebalance.complete_if_all_joined(shard, group)
        shard.forget_if_bare(group.name)


def _leave(shard: Shard, group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    member_id = leaving.member_id
    if member_id == NO_MEMBER_ID:
        # An administrator removes a static member by its instance id alone.
        found = None if leaving.instance_id is None else group.instances.get(leaving.instance_id)
        if found is None:
            return ErrorCode.unknown_member_id
        member_id = found
    elif member_id not in group.pending:
        refusal = group.refusal(member_id, leaving.instance_id)
        if refusal is not None:
            return refusal
    rebalance.remove(shard, group, member_id)
    return NONE
