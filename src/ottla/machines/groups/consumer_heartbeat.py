"""ConsumerGroupHeartbeat (KIP-848): the single request with which members join, stay, change and leave."""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.groups import consumer_members as members
from ottla.machines.groups import migration
from ottla.machines.groups.records import (
    ConsumerMember,
    CurrentAssignment,
    MemberState,
)
from ottla.machines.groups.replies import ConsumerHeartbeatReply
from ottla.machines.groups.requests import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ConsumerHeartbeat
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.tables import ConsumerGroup
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode, Refused


def heartbeat(shard: Shard, ticket: Ticket, request: ConsumerHeartbeat) -> None:
    """ConsumerGroupHeartbeat."""
    refusal = _malformed(shard, request)
    if refusal is None and request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
        refusal = _leave(shard, request)
        if refusal is None:
            left = ConsumerHeartbeatReply(member_id=request.member_id, member_epoch=request.member_epoch)
            shard.answer(ticket, left)
            return
    member_id = request.member_id or request.fresh_id
    if refusal is None:
        refusal = _admit(shard, request, member_id)
    if refusal is not None:
        shard.answer(ticket, ConsumerHeartbeatReply(error=refusal.error, message=refusal.message))
        return
    shard.answer(ticket, _stay(shard, request, member_id))


def _malformed(shard: Shard, request: ConsumerHeartbeat) -> Refused | None:
    why = None
    if not request.group:
        why = "GroupId can't be empty."
    elif request.instance_id == "":
        why = "InstanceId can't be empty."
    elif request.rack_id == "":
        why = "RackId can't be empty."
    elif request.member_epoch < STATIC_LEAVE_EPOCH:
        why = "MemberEpoch is invalid."
    elif request.member_epoch != JOIN_EPOCH and not request.member_id:
        why = "MemberId can't be empty."
    elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        why = "InstanceId can't be null."
    elif request.member_epoch == JOIN_EPOCH:
        why = _malformed_join(request)
    if why is not None:
        return Refused(ErrorCode.invalid_request, why)
    assignors = shard.config.consumer_assignors
    if request.assignor is not None and request.assignor not in assignors:
        supported = ", ".join(assignors)
        why = f"ServerAssignor {request.assignor} is not supported. Supported assignors: {supported}."
        return Refused(ErrorCode.unsupported_assignor, why)
    return None


def _malformed_join(request: ConsumerHeartbeat) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if not request.subscribed_names and not request.subscribed_regex:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be set in first request."
    return None


# -- admission ---------------------------------------------------------------------------------------------------------


def _admit(shard: Shard, request: ConsumerHeartbeat, member_id: str) -> Refused | None:
    """Checks that the member may proceed. Afterwards the group exists, and the member is in it or may be added."""
    is_joining = request.member_epoch == JOIN_EPOCH
    group = shard.tables.consumer.get(request.group)
    if group is None and is_joining:
        refusal = migration.open_consumer_group(shard, request.group, request.instance_id)
        if refusal is not None:
            return refusal
        group = shard.tables.consumer.get(request.group, ConsumerGroup())
    if group is None:
        return _no_such_group(shard, request)
    known_id = member_id if request.instance_id is None else group.instances.get(request.instance_id)
    if len(group.members) >= shard.config.consumer_size_max and known_id not in group.members:
        limit = shard.config.consumer_size_max
        return Refused(
            ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum capacity of {limit} members."
        )
    refusal = _admit_static(shard, request, group, member_id, known_id)
    if refusal is not None or is_joining:
        return refusal
    if member_id not in group.members:
        return Refused(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {request.group}.")
    return _epoch_refusal(request, group.current_of(member_id))


def _no_such_group(shard: Shard, request: ConsumerHeartbeat) -> Refused:
    """Returns the error for a missing consumer group. A member that was the last of this protocol and lost its session
    finds a classic group. It has to rejoin, but GROUP_ID_NOT_FOUND would be fatal for it. A static member gets that
    error, because another member may have taken its place."""
    if request.group in shard.tables.classic and request.instance_id is None:
        return Refused(ErrorCode.unknown_member_id, f"Group {request.group} has gone back to the classic protocol.")
    return Refused(ErrorCode.group_id_not_found, f"Consumer group {request.group} not found.")


def _admit_static(
    shard: Shard, request: ConsumerHeartbeat, group: ConsumerGroup, member_id: str, known_id: str | None
) -> Refused | None:
    instance_id = request.instance_id
    if instance_id is None:
        return None
    if request.member_epoch != JOIN_EPOCH:
        if known_id is None:
            return Refused(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if known_id != member_id:
            why = f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}."
            return Refused(ErrorCode.fenced_instance_id, why)
        return None
    if known_id is None or known_id == member_id:
        return None
    is_away = group.current_of(known_id).epoch == STATIC_LEAVE_EPOCH
    if not is_away and group.members[known_id].classic is None:
        why = f"Static member {member_id} cannot join: its instance id {instance_id} is owned by member {known_id}."
        return Refused(ErrorCode.unreleased_instance_id, why)
    members.replace_static(shard, request.group, known_id, member_id)
    return None


def _epoch_refusal(request: ConsumerHeartbeat, current: CurrentAssignment) -> Refused | None:
    epoch = request.member_epoch
    if current.state is MemberState.UNKNOWN and (request.owned is None or request.owned):
        why = "The member is in an unknown state. It must abandon all its partitions and rejoin."
        return Refused(ErrorCode.fenced_member_epoch, why)
    if epoch == current.epoch:
        return None
    # The reply with its new epoch may have been lost. In that case it owns nothing that it was not assigned.
    if epoch == current.previous_epoch and request.owned is not None and request.owned <= current.assigned:
        return None
    order = "greater" if epoch > current.epoch else "smaller"
    why = (
        f"The consumer group member has a {order} member epoch ({epoch}) than the one known by the group coordinator "
        f"({current.epoch}). The member must abandon all its partitions and rejoin."
    )
    return Refused(ErrorCode.fenced_member_epoch, why)


# -- a member's heartbeat ----------------------------------------------------------------------------------------------


def _stay(shard: Shard, request: ConsumerHeartbeat, member_id: str) -> ConsumerHeartbeatReply:
    name = request.group
    has_new_subscription = _update_member(shard, request, member_id)
    members.update_target(shard, name)
    group = shard.tables.consumer[name]
    before = group.current_of(member_id)
    after = members.reconcile_member(shard, name, member_id, request.owned, has_new_subscription=has_new_subscription)
    shard.start_timer(TimerKind.SESSION, name, shard.config.consumer_session_timeout_ms, member_id)
    is_full = request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_names is not None or request.subscribed_regex is not None)
        and request.owned is not None
    )
    return ConsumerHeartbeatReply(
        member_id=member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=shard.config.consumer_heartbeat_interval_ms,
        assignment=after.assigned if is_full or after.assigned != before.assigned else None,
    )


def _update_member(shard: Shard, request: ConsumerHeartbeat, member_id: str) -> bool:
    group = shard.tables.consumer.get(request.group)
    described = _described(request, None if group is None else group.members.get(member_id))
    return members.update_member(shard, request.group, member_id, described)


def _described(request: ConsumerHeartbeat, old: ConsumerMember | None) -> ConsumerMember:
    """Merges the request into the member. Fields that are None are unchanged."""
    if old is None:
        old = ConsumerMember(None, None, "", "", (), None, -1, None)
    regex = old.subscribed_regex if request.subscribed_regex is None else request.subscribed_regex or None
    names = old.subscribed_names if request.subscribed_names is None else tuple(sorted(set(request.subscribed_names)))
    return replace(
        old,
        instance_id=request.instance_id or old.instance_id,
        rack_id=request.rack_id or old.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_names=names,
        subscribed_regex=regex,
        rebalance_timeout_ms=old.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        assignor=request.assignor or old.assignor,
        classic=None,
    )


# -- leaving -----------------------------------------------------------------------------------------------------------


def _leave(shard: Shard, request: ConsumerHeartbeat) -> Refused | None:
    group = shard.tables.consumer.get(request.group)
    if group is None:
        return _no_such_group(shard, request)
    if request.instance_id is not None:
        known_id = group.instances.get(request.instance_id)
        if known_id is None:
            return Refused(ErrorCode.unknown_member_id, f"Instance id {request.instance_id} is unknown.")
        if known_id != request.member_id:
            return Refused(ErrorCode.fenced_instance_id, f"The instance id is owned by member {known_id}.")
    elif request.member_id not in group.members:
        return Refused(ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of the group.")
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        members.put_away(shard, request.group, request.member_id)
    else:
        migration.fence_member(shard, request.group, request.member_id)
    return None


def on_revocation_timeout(shard: Shard, name: str, member_id: str) -> None:
    """Fences a member that did not revoke its partitions in time."""
    group = shard.tables.consumer.get(name)
    current = None if group is None else group.current.get(member_id)
    if current is not None and current.state is MemberState.UNREVOKED_PARTITIONS:
        migration.fence_member(shard, name, member_id)


def on_loaded(shard: Shard) -> None:
    """Starts timers after loading. Every member gets a whole session to show up, and a whole timeout to revoke
    partitions."""
    for name, group in shard.tables.consumer.items():
        for member_id, member in group.members.items():
            classic = member.classic
            session_ms = shard.config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
            shard.start_timer(TimerKind.SESSION, name, session_ms, member_id)
            current = group.current_of(member_id)
            if classic is None and current.state is MemberState.UNREVOKED_PARTITIONS:
                shard.start_timer(TimerKind.REVOCATION, name, member.rebalance_timeout_ms, member_id)
