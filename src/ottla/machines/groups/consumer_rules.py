"""Rules of a consumer-protocol group: who may commit and fetch offsets, and what the group subscribes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ottla.machines.groups.records import ConsumerMember, MemberState
from ottla.machines.groups.requests import CommitOffsets, FetchOffsets
from ottla.machines.groups.tables import ConsumerGroup
from ottla.protocol.model.errors import ErrorCode


def offset_commit_refusal(group: ConsumerGroup, request: CommitOffsets) -> ErrorCode | None:
    """Returns the error for an offset commit, or None if it is allowed."""
    if request.generation < 0 and not group.members:
        return None
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if request.producer_id is None and member.classic is None and not request.knows_epochs:
        return ErrorCode.unsupported_version
    return _epoch_refusal(group, request.member_id, member, request.generation)


def offset_fetch_refusal(group: ConsumerGroup, request: FetchOffsets) -> ErrorCode | None:
    """Returns the error for an offset fetch, or None if it is allowed."""
    if request.member_id is None and request.member_epoch < 0:
        return None
    member = group.members.get(request.member_id or "")
    if member is None or request.member_id is None:
        return ErrorCode.unknown_member_id
    return _epoch_refusal(group, request.member_id, member, request.member_epoch)


def _epoch_refusal(group: ConsumerGroup, member_id: str, member: ConsumerMember, epoch: int) -> ErrorCode | None:
    current = group.current_of(member_id)
    if current.epoch == epoch:
        return None
    return ErrorCode.stale_member_epoch if member.classic is None else ErrorCode.illegal_generation


def subscribed_names(group: ConsumerGroup) -> frozenset[str]:
    """Returns the topics that any member subscribes to."""
    return frozenset[str]().union(*(topics_of(group, member) for member in group.members.values()))


def topics_of(group: ConsumerGroup, member: ConsumerMember) -> frozenset[str]:
    """Returns the topics a member subscribes to, by name and by regular expression, including names of topics that do
    not exist. An unresolved expression matches nothing."""
    names = frozenset(member.subscribed_names)
    if member.subscribed_regex:
        resolved = group.regexes.get(member.subscribed_regex)
        if resolved is not None:
            return names.union(resolved.topics)
    return names


def is_unresolved(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Returns whether the topics that match the member's regular expression are not known yet."""
    return bool(member.subscribed_regex) and member.subscribed_regex not in group.regexes


def subscribed_regexes(group: ConsumerGroup) -> set[str]:
    """Returns the regular expressions to which members subscribe."""
    return {member.subscribed_regex for member in group.members.values() if member.subscribed_regex}


def group_state(group: ConsumerGroup) -> str:
    """Returns the state as DescribeGroups and ListGroups show it."""
    if not group.members:
        return "Empty"
    if group.epoch > group.target_epoch:
        return "Assigning"
    if all(is_reconciled(group, member_id) for member_id in group.members):
        return "Stable"
    return "Reconciling"


def is_reconciled(group: ConsumerGroup, member_id: str) -> bool:
    """Returns whether the member has reached its target."""
    current = group.current_of(member_id)
    return current.state is MemberState.STABLE and current.epoch == group.target_epoch


def preferred_assignor(group: ConsumerGroup, assignors: Sequence[str]) -> str:
    """Returns the assignor that most members ask for; the first configured one if none asks."""
    votes = Counter(member.assignor for member in group.members.values() if member.assignor is not None)
    return max(sorted(votes), key=votes.__getitem__, default=assignors[0])
