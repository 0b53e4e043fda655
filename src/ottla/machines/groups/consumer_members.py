"""Changes of a consumer group: members join, change and leave; epochs and targets follow."""

from __future__ import annotations

from ottla.machines.groups.assignors import ASSIGNORS, AssignorInput
from ottla.machines.groups.consumer_rules import (
    is_unresolved,
    preferred_assignor,
    subscribed_names,
    subscribed_regexes,
    topics_of,
)
from ottla.machines.groups.reconciliation import reconcile
from ottla.machines.groups.records import (
    NOTHING,
    Assignment,
    ConsumerMember,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopicsRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicFacts,
)
from ottla.machines.groups.requests import STATIC_LEAVE_EPOCH
from ottla.machines.groups.shard import Shard
from ottla.machines.groups.tables import NEW_MEMBER, ConsumerGroup
from ottla.machines.groups.timers import TimerKind
from ottla.protocol.model.ids import TopicId


def subscribed_facts(shard: Shard, group: ConsumerGroup) -> dict[str, TopicFacts]:
    """Returns the subscribed topics that exist."""
    return {name: shard.topics[name] for name in subscribed_names(group) if name in shard.topics}


def note_topics(shard: Shard, name: str) -> bool:
    """Records the subscribed topics. Returns whether the topics or their partitions have changed."""
    group = shard.tables.consumer[name]
    facts = subscribed_facts(shard, group)
    if facts == group.topics:
        return False
    shard.emit(SubscribedTopicsRecord(name, tuple(sorted(facts.items()))))
    return True


def update_member(shard: Shard, name: str, member_id: str, new: ConsumerMember) -> bool:
    """Adds or changes a member. Returns whether its subscription differs from before.

    A new or changed subscription starts a new group epoch. A regular expression that is not resolved yet does so when
    it is resolved; otherwise the group would be assigned twice.
    """
    group = shard.tables.consumer.get(name) or ConsumerGroup()
    old = group.members.get(member_id)
    if new != old:
        shard.emit(MemberRecord(name, member_id, new))
    if member_id not in group.current:
        shard.emit(CurrentRecord(name, member_id, NEW_MEMBER))
    old_names, old_regex = ((), None) if old is None else (old.subscribed_names, old.subscribed_regex)
    has_new_names = frozenset(old_names) != frozenset(new.subscribed_names)
    has_new_regex = old_regex != new.subscribed_regex
    if has_new_regex:
        forget_regexes(shard, name)
    group = shard.tables.consumer[name]
    is_waiting = is_unresolved(group, new)
    if is_waiting:
        shard.unresolved.add(name)
    is_new_and_complete = (old is None or has_new_regex) and not is_waiting
    if has_new_names or is_new_and_complete or group.epoch == 0:
        note_topics(shard, name)
        bump_epoch(shard, name)
    return old is None or has_new_names or has_new_regex


def bump_epoch(shard: Shard, name: str) -> None:
    """Starts a new group epoch, because subscriptions, topics or members have changed."""
    shard.emit(GroupEpochRecord(name, shard.tables.consumer[name].epoch + 1))


def update_target(shard: Shard, name: str) -> None:
    """Computes the target assignment of the current group epoch, if it is not computed yet."""
    group = shard.tables.consumer[name]
    if group.epoch == group.target_epoch:
        return
    assign = ASSIGNORS[preferred_assignor(group, shard.config.consumer_assignors)]
    facts = {facts.id: facts.partition_count for facts in group.topics.values()}
    what = AssignorInput(
        {member_id: _topic_ids(group, member) for member_id, member in group.members.items()},
        facts,
        group.targets,
        {member_id: member.instance_id for member_id, member in group.members.items() if member.instance_id},
    )
    for member_id, target in sorted(assign(what).items()):
        if group.targets.get(member_id) != target:
            shard.emit(TargetRecord(name, member_id, target))
    shard.emit(TargetEpochRecord(name, group.epoch))


def _topic_ids(group: ConsumerGroup, member: ConsumerMember) -> frozenset[TopicId]:
    return frozenset(group.topics[topic].id for topic in topics_of(group, member) if topic in group.topics)


def reconcile_member(
    shard: Shard, name: str, member_id: str, owned: Assignment | None, *, has_new_subscription: bool = False
) -> CurrentAssignment:
    """Moves a member one step towards its target. A member of the consumer protocol has limited time to revoke
    partitions."""
    group = shard.tables.consumer[name]
    before, member = group.current_of(member_id), group.members[member_id]
    target = group.targets.get(member_id, NOTHING)
    unsubscribed = NOTHING
    if has_new_subscription or is_unresolved(group, member):
        subscribed = _topic_ids(group, member)
        target = frozenset(each for each in target if each[0] in subscribed)
        unsubscribed = frozenset(each for each in before.assigned if each[0] not in subscribed)
    after = reconcile(before, group.target_epoch, target, owned, lambda each: each not in group.owners, unsubscribed)
    if after != before:
        shard.emit(CurrentRecord(name, member_id, after))
        if after.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            shard.stop_timer(TimerKind.REVOCATION, name, member_id)
        else:
            shard.start_timer(TimerKind.REVOCATION, name, member.rebalance_timeout_ms, member_id)
    return after


def remove_member(shard: Shard, name: str, member_id: str) -> None:
    """Writes tombstones for a member."""
    shard.stop_member_timers(name, member_id)
    shard.emit(CurrentRecord(name, member_id, None))
    if member_id in shard.tables.consumer[name].targets:
        shard.emit(TargetRecord(name, member_id, None))
    shard.emit(MemberRecord(name, member_id, None))


def after_removal(shard: Shard, name: str) -> None:
    """Starts a new group epoch after members were removed."""
    forget_regexes(shard, name)
    note_topics(shard, name)
    bump_epoch(shard, name)


def replace_static(shard: Shard, name: str, old_id: str, new_id: str) -> None:
    """Gives a static member its new id. It keeps its target, and its partitions are reserved for it."""
    group = shard.tables.consumer[name]
    member, target, current = group.members[old_id], group.targets.get(old_id, NOTHING), group.current_of(old_id)
    remove_member(shard, name, old_id)
    shard.emit(MemberRecord(name, new_id, member))
    shard.emit(TargetRecord(name, new_id, target))
    shard.emit(CurrentRecord(name, new_id, CurrentAssignment(0, 0, current.state, current.assigned, current.revoking)))


def put_away(shard: Shard, name: str, member_id: str) -> None:
    """Marks a static member as temporarily away. Partitions that it was revoking count as revoked."""
    current = shard.tables.consumer[name].current_of(member_id)
    shard.stop_timer(TimerKind.REVOCATION, name, member_id)
    away = CurrentAssignment(STATIC_LEAVE_EPOCH, current.previous_epoch, current.state, current.assigned)
    shard.emit(CurrentRecord(name, member_id, away))


# -- regular expressions -----------------------------------------------------------------------------------------------


def on_regexes_resolved(shard: Shard, regexes: dict[str, tuple[str, ...]]) -> None:
    """Resolves the groups that had unresolved expressions. Each starts at most one new epoch."""
    for name in sorted(shard.unresolved & shard.tables.consumer.keys()):
        _resolve(shard, name, regexes)
    shard.unresolved.clear()


def _resolve(shard: Shard, name: str, regexes: dict[str, tuple[str, ...]]) -> None:
    """Records which topics the expressions of a group match. Starts a new epoch if the matches or the
    topics changed."""
    group = shard.tables.consumer[name]
    has_changed = False
    for regex in sorted(subscribed_regexes(group) & regexes.keys()):
        has_changed |= _note_regex(shard, name, regex, regexes[regex])
    has_changed |= note_topics(shard, name)
    if has_changed:
        bump_epoch(shard, name)


def _note_regex(shard: Shard, name: str, regex: str, topics: tuple[str, ...]) -> bool:
    """Records the matches of an expression. Returns whether they changed; an unresolved expression matches nothing."""
    known = shard.tables.consumer[name].regexes.get(regex)
    matching = tuple(sorted(topics))
    if known is not None and known.topics == matching:
        return False
    version = 0 if known is None else known.version + 1
    shard.emit(RegexRecord(name, regex, ResolvedRegex(matching, version, shard.now.wall_ms)))
    return known is not None or bool(matching)


def forget_regexes(shard: Shard, name: str) -> None:
    """Writes tombstones for expressions that no member uses any more."""
    group = shard.tables.consumer[name]
    for regex in sorted(group.regexes.keys() - subscribed_regexes(group)):
        shard.emit(RegexRecord(name, regex, None))


def on_topics_changed(shard: Shard, regexes: dict[str, tuple[str, ...]]) -> None:
    """Resolves the expressions of all groups again."""
    for name in sorted(shard.tables.consumer):
        _resolve(shard, name, regexes)
    shard.unresolved.clear()


def close_group(shard: Shard, name: str) -> None:
    """Writes tombstones for all records of a group."""
    group = shard.tables.consumer[name]
    for member_id in sorted(group.members):
        remove_member(shard, name, member_id)
    for regex in sorted(group.regexes):
        shard.emit(RegexRecord(name, regex, None))
    shard.emit(TargetEpochRecord(name, None))
    shard.emit(SubscribedTopicsRecord(name, None))
    shard.emit(GroupEpochRecord(name, None))
