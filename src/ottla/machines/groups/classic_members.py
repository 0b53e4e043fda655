"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Such a member sees its member epoch as the generation. None of these members is the leader: the coordinator assigns the
partitions. A member is asked to rejoin when its target has changed, or when the partitions it waits for have become
free.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.groups import consumer_members as members
from ottla.machines.groups import migration
from ottla.machines.groups.consumer_protocol import read_subscription
from ottla.machines.groups.records import (
    CONSUMER_PROTOCOL_TYPE,
    NOTHING,
    ClassicProtocols,
    ConsumerMember,
    MemberState,
)
from ottla.machines.groups.replies import NONE, HeartbeatReply, JoinReply, LeaveReply, LeftMember, SyncReply
from ottla.machines.groups.requests import NO_MEMBER_ID, Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.tables import ConsumerGroup
from ottla.machines.groups.timers import TimerKind, TimerName
from ottla.protocol.model.errors import ErrorCode


def join_consumer_group(shard: Shard, ticket: Ticket, request: JoinGroup) -> None:
    """JoinGroup of a classic member."""
    name, group = request.group, shard.tables.consumer[request.group]
    is_new = request.member_id == NO_MEMBER_ID
    member_id = request.member_id or f"{request.instance_id or request.client_id}-{request.fresh_id}"
    refusal = _join_refusal(shard, group, request, member_id)
    if refusal is None and is_new and request.instance_id is None and request.needs_known_id:
        refusal = ErrorCode.member_id_required
    if refusal is not None:
        shard.answer(ticket, JoinReply(error=refusal, member_id=member_id))
        return
    old_id = group.instances.get(request.instance_id or "")
    if old_id is not None and old_id != member_id:
        members.replace_static(shard, name, old_id, member_id)
    subscription = read_subscription(request.protocols[0][1])
    assert subscription is not None, "checked before"
    members.update_member(shard, name, member_id, _described(request, group.members.get(member_id)))
    members.update_target(shard, name)
    owned = migration.with_ids(shard, subscription.owned)
    current = members.reconcile_member(shard, name, member_id, owned)
    shard.stop_timer(TimerKind.MEMBER_JOIN, name, member_id)
    shard.start_timer(TimerKind.SESSION, name, request.session_timeout_ms, member_id)
    shard.start_timer(TimerKind.MEMBER_SYNC, name, request.rebalance_timeout_ms, member_id)
    reply = JoinReply(
        member_id=member_id,
        generation=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=request.protocols[0][0],
    )
    shard.answer(ticket, reply)


def _join_refusal(shard: Shard, group: ConsumerGroup, request: JoinGroup, member_id: str) -> ErrorCode | None:
    known_id = group.instances.get(request.instance_id) if request.instance_id is not None else member_id
    if request.instance_id is not None and request.member_id != NO_MEMBER_ID and known_id != member_id:
        return ErrorCode.unknown_member_id if known_id is None else ErrorCode.fenced_instance_id
    if len(group.members) >= shard.config.consumer_size_max and known_id not in group.members:
        return ErrorCode.group_max_size_reached
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not fits(group, request):
        return ErrorCode.inconsistent_group_protocol
    subscription = read_subscription(request.protocols[0][1])
    if request.member_id != NO_MEMBER_ID and known_id not in group.members and subscription and subscription.owned:
        # The member was removed and does not know it. Other members have its partitions; it has to give them up first.
        return ErrorCode.unknown_member_id
    return None


def fits(group: ConsumerGroup, request: JoinGroup) -> bool:
    """Returns whether all classic members would have a protocol in common, so that they can become a classic group
    again."""
    if not request.protocols or read_subscription(request.protocols[0][1]) is None:
        return False
    common = {name for name, _ in request.protocols}
    for member_id, member in group.members.items():
        is_replaced = request.instance_id is not None and member.instance_id == request.instance_id
        if member.classic is not None and member_id != request.member_id and not is_replaced:
            common &= {name for name, _ in member.classic.protocols}
    return bool(common)


def _described(request: JoinGroup, old: ConsumerMember | None) -> ConsumerMember:
    subscription = read_subscription(request.protocols[0][1])
    assert subscription is not None, "checked before"
    described = migration.guest(
        request.client_id,
        request.client_host,
        request.instance_id,
        subscription,
        request.rebalance_timeout_ms,
        ClassicProtocols(request.session_timeout_ms, request.protocols),
    )
    return described if old is None else replace(described, rack_id=described.rack_id or old.rack_id)


# -- other requests ----------------------------------------------------------------------------------------------------


def sync_consumer_group(shard: Shard, ticket: Ticket, request: SyncGroup) -> None:
    """SyncGroup of a classic member."""
    name, group = request.group, shard.tables.consumer[request.group]
    refusal = _refusal(group, request.member_id, request.instance_id, request.generation)
    if refusal is None:
        refusal = _sync_refusal(shard, group, request)
    if refusal is not None:
        shard.answer(ticket, SyncReply(error=refusal))
        return
    classic = group.members[request.member_id].classic
    assert classic is not None, "checked before"
    shard.stop_timer(TimerKind.MEMBER_SYNC, name, request.member_id)
    shard.start_timer(TimerKind.SESSION, name, classic.session_timeout_ms, request.member_id)
    reply = SyncReply(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=classic.protocols[0][0],
        assignment=migration.assignment_bytes(shard, group, request.member_id),
    )
    shard.answer(ticket, reply)


def _sync_refusal(shard: Shard, group: ConsumerGroup, request: SyncGroup) -> ErrorCode | None:
    classic = group.members[request.member_id].classic
    assert classic is not None, "checked before"
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        return ErrorCode.inconsistent_group_protocol
    if request.protocol not in (None, classic.protocols[0][0]):
        return ErrorCode.inconsistent_group_protocol
    current = group.current_of(request.member_id)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        _ask_to_join(shard, request.group, group, request.member_id)
        return ErrorCode.rebalance_in_progress
    return None


def heartbeat_consumer_group(shard: Shard, ticket: Ticket, request: Heartbeat) -> None:
    """Heartbeat of a classic member."""
    group = shard.tables.consumer[request.group]
    refusal = _refusal(group, request.member_id, request.instance_id, request.generation)
    if refusal is None:
        classic = group.members[request.member_id].classic
        assert classic is not None, "checked before"
        shard.start_timer(TimerKind.SESSION, request.group, classic.session_timeout_ms, request.member_id)
        if _has_to_join(group, request.member_id):
            _ask_to_join(shard, request.group, group, request.member_id)
            refusal = ErrorCode.rebalance_in_progress
    shard.answer(ticket, HeartbeatReply(refusal or NONE))


def _has_to_join(group: ConsumerGroup, member_id: str) -> bool:
    current = group.current_of(member_id)
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    waits_for = group.targets.get(member_id, NOTHING) - current.assigned
    return current.state is MemberState.UNRELEASED_PARTITIONS and not any(each in group.owners for each in waits_for)


def _ask_to_join(shard: Shard, name: str, group: ConsumerGroup, member_id: str) -> None:
    if TimerName(TimerKind.MEMBER_JOIN, name, member_id) not in shard.timers:
        shard.start_timer(TimerKind.MEMBER_JOIN, name, group.members[member_id].rebalance_timeout_ms, member_id)


def leave_consumer_group(shard: Shard, ticket: Ticket, request: LeaveGroup) -> None:
    """LeaveGroup of classic members."""
    name, group = request.group, shard.tables.consumer[request.group]
    left = []
    for leaving in request.members:
        member_id, error = _leaving(group, leaving)
        if error is NONE:
            members.remove_member(shard, name, member_id)
        left.append(LeftMember(leaving.member_id, leaving.instance_id, error))
    if any(each.error is NONE for each in left):
        members.after_removal(shard, name)
    shard.answer(ticket, LeaveReply(NONE, tuple(left)))


def _leaving(group: ConsumerGroup, leaving: LeavingMember) -> tuple[str, ErrorCode]:
    member_id = leaving.member_id
    if leaving.instance_id is not None:
        known_id = group.instances.get(leaving.instance_id)
        if known_id is None:
            return member_id, ErrorCode.unknown_member_id
        if member_id not in (NO_MEMBER_ID, known_id):
            return member_id, ErrorCode.fenced_instance_id
        member_id = known_id
    member = group.members.get(member_id)
    return member_id, ErrorCode.unknown_member_id if member is None or member.classic is None else NONE


def _refusal(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
    if instance_id is not None:
        known_id = group.instances.get(instance_id)
        if known_id is None:
            return ErrorCode.unknown_member_id
        if known_id != member_id:
            return ErrorCode.fenced_instance_id
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.unknown_member_id
    return None if group.current_of(member_id).epoch == generation else ErrorCode.illegal_generation
