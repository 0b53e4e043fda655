"""Migration of groups between protocols while their members are alive (KIP-848, group.consumer.migration.policy).

A classic group becomes a consumer group when the first member of the consumer protocol joins; its classic members stay
(`classic_guests`). It becomes classic again when the last member of the consumer protocol leaves. Numbering continues:
a generation becomes the group epoch and vice versa, so that nothing from the past looks current.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.machines.groups import classic_rebalance as rebalance
from ottla.machines.groups import consumer_members as members
from ottla.machines.groups.classic_group import ClassicGroup, ClassicState, Member
from ottla.machines.groups.consumer_protocol import (
    NamedPartition,
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
)
from ottla.machines.groups.records import (
    CONSUMER_PROTOCOL_TYPE,
    Assigned,
    Assignment,
    ClassicGeneration,
    ClassicProtocols,
    ClassicRecord,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    TargetEpochRecord,
    TargetRecord,
)
from ottla.machines.groups.replies import JoinReply
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.tables import ConsumerGroup
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode, Refused

# -- from classic to consumer ------------------------------------------------------------------------------------------


def open_consumer_group(shard: Shard, name: str, instance_id: str | None) -> Refused | None:
    """Replaces or upgrades a classic group, for a member of the consumer protocol that is about to join."""
    group = shard.classic.get(name)
    if group is None:
        return None
    if group.state is ClassicState.EMPTY:
        _drop_classic(shard, group)
        return None
    upgraded = _upgraded(shard, group)
    if isinstance(upgraded, Refused):
        return upgraded
    if len(group.members) >= shard.config.consumer_size_max and instance_id not in group.instances:
        return Refused(ErrorCode.group_max_size_reached, "The group has reached its maximum number of members.")
    _upgrade(shard, group, upgraded)
    return None


class _Upgraded(NamedTuple):
    member_id: str
    member: ConsumerMember
    assigned: Assignment
    claimed: Assignment
    """Partitions that the member owned when it last joined. It may still own them if it does not know its assignment
    yet."""


def _upgraded(shard: Shard, group: ClassicGroup) -> list[_Upgraded] | Refused:
    why = None
    if not shard.config.migration_policy.allows_upgrade:
        why = "the online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        why = "its members are not consumers"
    elif len(group.members) > shard.config.consumer_size_max:
        why = "it has more members than a consumer group may have"
    else:
        found = [_upgraded_member(shard, group, member) for member in group.members.values()]
        known = [each for each in found if each is not None]
        if len(known) == len(found):
            return known
        why = "the subscriptions or assignments of its members cannot be read"
    return Refused(ErrorCode.group_id_not_found, f"Group {group.name} is not a consumer group: {why}.")


def _upgraded_member(shard: Shard, group: ClassicGroup, member: Member) -> _Upgraded | None:
    protocol = group.protocol if member.metadata(group.protocol) else group.choose_protocol()
    subscription = read_subscription(member.metadata(protocol))
    assigned = read_assignment(member.assignment)
    if subscription is None or assigned is None:
        return None
    described = guest(
        member.client_id,
        member.client_host,
        member.instance_id,
        subscription,
        member.rebalance_timeout_ms,
        ClassicProtocols(member.session_timeout_ms, member.protocols),
    )
    claimed = with_ids(shard, subscription.owned)
    return _Upgraded(member.member_id, described, with_ids(shard, assigned), claimed)


def guest(
    client_id: str,
    client_host: str,
    instance_id: str | None,
    subscription: Subscription,
    rebalance_timeout_ms: int,
    classic: ClassicProtocols,
) -> ConsumerMember:
    """Returns a member of a consumer group that speaks the classic protocol."""
    topics = tuple(sorted(set(subscription.topics)))
    rack_id = subscription.rack_id or None
    return ConsumerMember(
        instance_id, rack_id, client_id, client_host, topics, None, rebalance_timeout_ms, None, classic
    )


def with_ids(shard: Shard, partitions: frozenset[NamedPartition]) -> Assignment:
    """Replaces topic names by ids. Topics that no longer exist are omitted."""
    return frozenset((shard.topics[topic].id, index) for topic, index in partitions if topic in shard.topics)


def _upgrade(shard: Shard, group: ClassicGroup, upgraded: list[_Upgraded]) -> None:
    """Converts a classic group. Members keep their partitions until they report otherwise; the reply to their next
    heartbeat asks them to rejoin."""
    name, epoch = group.name, group.generation
    _drop_classic(shard, group)
    for each in upgraded:
        shard.emit(MemberRecord(name, each.member_id, each.member))
    members.note_topics(shard, name)
    free = {each for one in upgraded for each in one.assigned | one.claimed}
    assigned = {one.member_id: _take(free, one.assigned) for one in upgraded}
    for member_id, member, _, claimed in upgraded:
        mine = assigned[member_id] | _take(free, claimed)
        shard.emit(TargetRecord(name, member_id, assigned[member_id]))
        shard.emit(CurrentRecord(name, member_id, CurrentAssignment(epoch, epoch, MemberState.STABLE, mine)))
        assert member.classic is not None, "it was a member of a classic group"
        shard.start_timer(TimerKind.SESSION, name, member.classic.session_timeout_ms, member_id)
    shard.emit(TargetEpochRecord(name, epoch))
    # The last leader need not have assigned all partitions.
    members.bump_epoch(shard, name)


def _take(free: set[Assigned], wanted: Assignment) -> Assignment:
    taken = wanted & free
    free -= taken
    return taken


def _drop_classic(shard: Shard, group: ClassicGroup) -> None:
    for member in group.members.values():
        again = JoinReply(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
        rebalance.answer_join(shard, group, member, again)
        rebalance.answer_sync(shard, group, member, ErrorCode.rebalance_in_progress)
    for member_id in (*group.members, *group.pending):
        shard.stop_timer(TimerKind.SESSION, group.name, member_id)
    shard.stop_timer(TimerKind.JOIN, group.name)
    shard.stop_timer(TimerKind.SYNC, group.name)
    del shard.classic[group.name]
    if group.name in shard.tables.classic:
        shard.emit(ClassicRecord(group.name, None))
    shard.emit(GroupEpochRecord(group.name, group.generation))


# -- from consumer to classic ------------------------------------------------------------------------------------------


def close_empty_consumer_group(shard: Shard, name: str) -> None:
    """Replaces an empty consumer group by a classic group, for a member that is about to join."""
    epoch = shard.tables.consumer[name].epoch
    members.close_group(shard, name)
    generation = ClassicGeneration(CONSUMER_PROTOCOL_TYPE, epoch, None, None, shard.now.wall_ms)
    shard.emit(ClassicRecord(name, generation))
    shard.classic[name] = ClassicGroup.of(name, generation)


def fence_member(shard: Shard, name: str, member_id: str) -> None:
    """Removes a member that leaves or is fenced. If it was the last of the consumer protocol, the group becomes classic
    again."""
    if _may_downgrade(shard, shard.tables.consumer[name], member_id):
        _downgrade(shard, name, member_id)
    else:
        members.remove_member(shard, name, member_id)
        members.after_removal(shard, name)


def downgrade_for_static(shard: Shard, name: str, instance_id: str | None) -> bool:
    """Lets a static member of the classic protocol replace the last member of the consumer protocol. Returns whether
    the group was downgraded."""
    group = shard.tables.consumer[name]
    old_id = None if instance_id is None else group.instances.get(instance_id)
    if old_id is None or not _may_downgrade(shard, group, old_id):
        return False
    _downgrade(shard, name, old_id)
    return True


def _may_downgrade(shard: Shard, group: ConsumerGroup, leaving_id: str) -> bool:
    return (
        shard.config.migration_policy.allows_downgrade
        and group.members[leaving_id].classic is None
        and 1 < len(group.members) <= shard.config.size_max + 1
        and all(member.classic is not None for member_id, member in group.members.items() if member_id != leaving_id)
    )


def _downgrade(shard: Shard, name: str, leaving_id: str) -> None:
    """Converts a consumer group to a classic one. All members have to rejoin, so no assignment needs to be
    preserved."""
    consumer_group = shard.tables.consumer[name]
    group = ClassicGroup(name, shard.now.wall_ms)
    group.generation = consumer_group.epoch
    for member_id, member in consumer_group.members.items():
        if member_id != leaving_id:
            group.add(_downgraded_member(shard, consumer_group, member_id, member), CONSUMER_PROTOCOL_TYPE)
    group.protocol = group.choose_protocol()
    group.state = ClassicState.STABLE
    members.close_group(shard, name)
    shard.classic[name] = group
    shard.emit(ClassicRecord(name, group.record(is_assigned=False)))
    for each in group.members.values():
        rebalance.keep_session(shard, group, each)
    rebalance.prepare(shard, group)


def _downgraded_member(shard: Shard, group: ConsumerGroup, member_id: str, member: ConsumerMember) -> Member:
    assert member.classic is not None, "only guests stay"
    return Member(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
        assignment=assignment_bytes(shard, group, member_id),
    )


def assignment_bytes(shard: Shard, group: ConsumerGroup, member_id: str) -> bytes:
    """Encodes the assignment of a classic member, in the version in which it subscribed."""
    classic = group.members[member_id].classic
    subscription = None if classic is None else read_subscription(classic.protocols[0][1])
    version = 0 if subscription is None else subscription.version
    assigned = group.current_of(member_id).assigned
    names = ((shard.topic_names[topic_id], index) for topic_id, index in assigned if topic_id in shard.topic_names)
    return write_assignment(names, version)
