"""Lists, describes and deletes groups for administrators, and cleans up groups that are no longer needed."""

from __future__ import annotations

from ottla.machines.coordinators import Ticket
from ottla.machines.groups import offset_requests
from ottla.machines.groups.classic_group import ClassicState
from ottla.machines.groups.consumer_members import close_group
from ottla.machines.groups.consumer_rules import group_state, preferred_assignor
from ottla.machines.groups.records import CONSUMER_PROTOCOL_TYPE, NOTHING, ClassicRecord
from ottla.machines.groups.replies import (
    NONE,
    DeleteGroupReply,
    DescribeConsumerReply,
    DescribedConsumer,
    DescribedMember,
    DescribeReply,
    ListedGroup,
    ListGroupsReply,
)
from ottla.machines.groups.requests import DeleteGroup, DescribeConsumerGroup, DescribeGroup, ListGroups
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode


def list_groups(shard: Shard, ticket: Ticket, request: ListGroups) -> None:
    """ListGroups, with its filters."""
    states = {state.strip().lower() for state in request.states}
    types = {kind.strip().lower() for kind in request.types}
    listed = (_listed(shard, group) for group in sorted(shard.group_names()))
    wanted = (
        each
        for each in listed
        if (not states or each.state.lower() in states) and (not types or each.type.lower() in types)
    )
    shard.answer(ticket, ListGroupsReply(tuple(wanted)))


def _listed(shard: Shard, name: str) -> ListedGroup:
    consumer_group = shard.tables.consumer.get(name)
    if consumer_group is not None:
        return ListedGroup(name, CONSUMER_PROTOCOL_TYPE, group_state(consumer_group), "Consumer")
    group = shard.classic.get(name)
    if group is None:
        return ListedGroup(name, "", ClassicState.EMPTY, "Classic")
    return ListedGroup(name, group.protocol_type or "", group.state, "Classic")


def states(shard: Shard) -> list[str]:
    """Returns the state of each group."""
    return [_listed(shard, group).state for group in shard.group_names()]


def describe_group(shard: Shard, ticket: Ticket, request: DescribeGroup) -> None:
    """DescribeGroups for one group. A missing group is Dead, which is not an error before version 6 of the API."""
    group = shard.classic.get(request.group)
    if group is None:
        is_simple = request.group not in shard.tables.consumer and shard.tables.offsets.has_group(request.group)
        error = NONE if is_simple else ErrorCode.group_id_not_found
        shard.answer(ticket, DescribeReply(error=error, state=ClassicState.EMPTY if is_simple else "Dead"))
        return
    is_stable = group.state is ClassicState.STABLE
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if is_stable else b"",
            member.assignment if is_stable else b"",
        )
        for member in group.members.values()
    )
    reply = DescribeReply(
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if is_stable else "",
        members=members,
    )
    shard.answer(ticket, reply)


def describe_consumer_group(shard: Shard, ticket: Ticket, request: DescribeConsumerGroup) -> None:
    """ConsumerGroupDescribe for one group."""
    group = shard.tables.consumer.get(request.group)
    if group is None:
        shard.answer(ticket, DescribeConsumerReply(error=ErrorCode.group_id_not_found))
        return
    members = tuple(
        DescribedConsumer(member_id, member, group.current_of(member_id), group.targets.get(member_id, NOTHING))
        for member_id, member in group.members.items()
    )
    reply = DescribeConsumerReply(
        state=group_state(group),
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        assignor=preferred_assignor(group, shard.config.consumer_assignors),
        members=members,
    )
    shard.answer(ticket, reply)


def delete_group(shard: Shard, ticket: Ticket, request: DeleteGroup) -> None:
    """DeleteGroups for one group. Only an empty group is deleted."""
    error = _delete_refusal(shard, request.group)
    if error is NONE:
        offset_requests.remove_all(shard, request.group)
        _close(shard, request.group)
    shard.answer(ticket, DeleteGroupReply(error))


def _delete_refusal(shard: Shard, name: str) -> ErrorCode:
    if not shard.exists(name):
        return ErrorCode.group_id_not_found
    return NONE if _is_empty(shard, name) else ErrorCode.non_empty_group


def _is_empty(shard: Shard, name: str) -> bool:
    consumer_group = shard.tables.consumer.get(name)
    if consumer_group is not None:
        return not consumer_group.members
    group = shard.classic.get(name)
    return group is None or group.state is ClassicState.EMPTY


def _close(shard: Shard, name: str) -> None:
    if name in shard.tables.consumer:
        close_group(shard, name)
    group = shard.classic.pop(name, None)
    for member_id in group.pending if group is not None else ():
        shard.stop_timer(TimerKind.SESSION, name, member_id)
    if name in shard.tables.classic:
        shard.emit(ClassicRecord(name, None))


def clean_up(shard: Shard) -> None:
    """Removes offsets whose retention has expired, and groups without members and offsets."""
    for name in sorted(shard.group_names()):
        if offset_requests.expire(shard, name) and _is_empty(shard, name):
            group = shard.classic.get(name)
            if group is None or group.is_bare:
                _close(shard, name)
