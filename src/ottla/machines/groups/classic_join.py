"""JoinGroup of the classic protocol: admits members and decides whether that needs a new generation."""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.groups import classic_rebalance as rebalance
from ottla.machines.groups.classic_group import ClassicGroup, ClassicState, Member
from ottla.machines.groups.classic_members import fits, join_consumer_group
from ottla.machines.groups.migration import close_empty_consumer_group, downgrade_for_static
from ottla.machines.groups.records import ClassicRecord
from ottla.machines.groups.replies import JoinReply
from ottla.machines.groups.requests import NO_MEMBER_ID, JoinGroup
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode


def join_group(shard: Shard, ticket: Ticket, request: JoinGroup) -> None:
    """JoinGroup, for groups of either protocol."""
    refusal = _malformed(shard, request)
    if refusal is not None:
        _refuse(shard, ticket, request.member_id, refusal)
        return
    consumer_group = shard.tables.consumer.get(request.group)
    is_new = request.member_id == NO_MEMBER_ID
    if consumer_group is not None and consumer_group.members:
        may_downgrade = is_new and fits(consumer_group, request)
        if not may_downgrade or not downgrade_for_static(shard, request.group, request.instance_id):
            join_consumer_group(shard, ticket, request)
            return
    elif consumer_group is not None and is_new:
        close_empty_consumer_group(shard, request.group)
    join_classic_group(shard, ticket, request)
    shard.forget_if_bare(request.group)


def join_classic_group(shard: Shard, ticket: Ticket, request: JoinGroup) -> None:
    """JoinGroup for a classic group, which is created if it does not exist."""
    is_new = request.member_id == NO_MEMBER_ID
    group = shard.classic.get(request.group)
    if group is None:
        if not is_new:
            _refuse(shard, ticket, request.member_id, ErrorCode.unknown_member_id)
            return
        group = shard.classic[request.group] = ClassicGroup(request.group, shard.now.wall_ms)
    if not _has_room(shard, group, request.member_id):
        rebalance.remove(shard, group, request.member_id)
        _refuse(shard, ticket, NO_MEMBER_ID, ErrorCode.group_max_size_reached)
        rebalance.settle_after_removal(shard, group)
    elif not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
        _refuse(shard, ticket, request.member_id, ErrorCode.inconsistent_group_protocol)
    elif is_new:
        _join_new(shard, ticket, request, group)
    elif request.member_id in group.pending and request.instance_id is None:
        _add(shard, ticket, request, group, request.member_id)
    else:
        _join_known(shard, ticket, request, group)


def _malformed(shard: Shard, request: JoinGroup) -> ErrorCode | None:
    if not request.group:
        return ErrorCode.invalid_group_id
    config = shard.config
    if not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
        return ErrorCode.invalid_session_timeout
    return None


def _has_room(shard: Shard, group: ClassicGroup, member_id: str) -> bool:
    if group.state is ClassicState.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is ClassicState.PREPARING:
        # Counts joined members instead of the size: with a lowered limit, the last ones to join are rejected.
        return (member is not None and member.is_joining) or group.joining_count < shard.config.size_max
    return member is not None or len(group.members) < shard.config.size_max


def _join_new(shard: Shard, ticket: Ticket, request: JoinGroup, group: ClassicGroup) -> None:
    if request.instance_id is not None:
        member_id = f"{request.instance_id}-{request.fresh_id}"
        if request.instance_id in group.instances:
            _replace_static(shard, ticket, request, group, member_id)
        else:
            _add(shard, ticket, request, group, member_id)
        return
    member_id = f"{request.client_id}-{request.fresh_id}"
    if request.needs_known_id:
        group.pending.add(member_id)
        shard.start_timer(TimerKind.SESSION, group.name, request.session_timeout_ms, member_id)
        _refuse(shard, ticket, member_id, ErrorCode.member_id_required)
    else:
        _add(shard, ticket, request, group, member_id)


def _add(shard: Shard, ticket: Ticket, request: JoinGroup, group: ClassicGroup, member_id: str) -> None:
    member = Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        join_ticket=ticket,
        is_new=True,
    )
    if group.is_initial:
        group.has_new_member = True
    group.add(member, request.protocol_type)
    shard.start_timer(TimerKind.SESSION, group.name, shard.config.new_member_join_timeout_ms, member_id)
    rebalance.rebalance_or_complete(shard, group)


def _join_known(shard: Shard, ticket: Ticket, request: JoinGroup, group: ClassicGroup) -> None:
    refusal = group.refusal(request.member_id, request.instance_id)
    if refusal is None and group.state is ClassicState.EMPTY:
        refusal = ErrorCode.unknown_member_id
    if refusal is not None:
        _refuse(shard, ticket, request.member_id, refusal)
        return
    member = group.members[request.member_id]
    is_unchanged = member.protocols == request.protocols
    is_leader = member.member_id == group.leader
    if group.state is ClassicState.COMPLETING and is_unchanged:
        # The first reply was lost.
        shard.answer(ticket, rebalance.current_generation(group, member))
    elif group.state is ClassicState.STABLE and is_unchanged and not is_leader:
        shard.answer(ticket, rebalance.current_generation(group, member))
    else:
        # A leader that rejoins wants to reassign partitions, for example because it has discovered other topics.
        _update(shard, ticket, request, group, member)
        rebalance.rebalance_or_complete(shard, group)


def _update(shard: Shard, ticket: Ticket, request: JoinGroup, group: ClassicGroup, member: Member) -> None:
    group.update_protocols(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    # A member has one outstanding request: an earlier one has been abandoned, or will be.
    again = JoinReply(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
    rebalance.answer_join(shard, group, member, again)
    member.join_ticket = ticket


def _replace_static(shard: Shard, ticket: Ticket, request: JoinGroup, group: ClassicGroup, new_id: str) -> None:
    """Replaces a static member that was restarted. A client that still uses its old id is fenced."""
    old_id = group.instances[request.instance_id or ""]
    old_leader = group.leader
    member = group.members[old_id]
    shard.stop_timer(TimerKind.SESSION, group.name, old_id)
    fenced = JoinReply(error=ErrorCode.fenced_instance_id, member_id=old_id)
    rebalance.answer_join(shard, group, member, fenced)
    rebalance.answer_sync(shard, group, member, ErrorCode.fenced_instance_id)
    shard.stop_timer(TimerKind.SESSION, group.name, old_id)
    member = group.rename(old_id, new_id)
    rebalance.keep_session(shard, group, member)
    _update(shard, ticket, request, group, member)
    if group.state is ClassicState.PREPARING:
        rebalance.complete_if_all_joined(shard, group)
    elif group.state is ClassicState.STABLE and group.choose_protocol() == group.protocol:
        shard.emit(ClassicRecord(group.name, group.record(is_assigned=True)))
        rebalance.answer_join(shard, group, member, _welcome_back(request, group, member, old_leader))
    else:
        # Completing: the leader may know only the old id and would leave the new one without partitions.
        rebalance.prepare(shard, group)


def _welcome_back(request: JoinGroup, group: ClassicGroup, member: Member, old_leader: str | None) -> JoinReply:
    """Continues the current generation. The leader must not reassign: it is told to skip the assignment, or that the
    previous leader is still the leader."""
    reply = rebalance.current_generation(group, member)
    if request.can_skip_assignment:
        return replace(reply, skip_assignment=member.member_id == group.leader)
    return replace(reply, leader=old_leader or "", members=())


def _refuse(shard: Shard, ticket: Ticket, member_id: str, error: ErrorCode) -> None:
    shard.answer(ticket, JoinReply(error=error, member_id=member_id))
