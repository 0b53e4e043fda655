"""Assignors of consumer groups: pure functions from subscriptions to a target assignment.

`range` gives each member a contiguous range of partitions of each topic, the same range in all topics with the same
subscribers, so that co-partitioned topics stay together. `uniform` gives every member the same number of partitions and
moves as few as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ottla.machines.groups.records import NOTHING, Assigned, Assignment
from ottla.protocol.model.ids import TopicId

Target = dict[str, Assignment]


@dataclass(frozen=True, slots=True)
class AssignorInput:
    """The input of an assignor."""

    subscriptions: Mapping[str, frozenset[TopicId]]
    """Subscribed topics by member. Contains only topics that exist."""
    partition_counts: Mapping[TopicId, int]
    previous: Mapping[str, Assignment] = field(default_factory=dict)
    instances: Mapping[str, str] = field(default_factory=dict)
    """The instance ids of static members, which keep their place when they rejoin under another member id."""

    def partitions(self) -> list[Assigned]:
        """Returns all partitions of the topics that any member subscribes to, sorted."""
        wanted = frozenset[TopicId]().union(*self.subscriptions.values())
        return [(topic, index) for topic in sorted(wanted) for index in range(self.partition_counts[topic])]

    def in_order(self, members: list[str]) -> list[str]:
        """Sorts members by instance id, or by member id for dynamic ones, so that a restart keeps the order."""
        return sorted(members, key=lambda member: (self.instances.get(member, member), member))


def assign_range(what: AssignorInput) -> Target:
    """Assigns contiguous ranges of each topic's partitions."""
    subscribers: dict[TopicId, list[str]] = {}
    for member in what.in_order(list(what.subscriptions)):
        for topic in what.subscriptions[member]:
            subscribers.setdefault(topic, []).append(member)
    target: dict[str, set[Assigned]] = {member: set() for member in what.subscriptions}
    for topic, members in subscribers.items():
        least, extra = divmod(what.partition_counts[topic], len(members))
        first = 0
        for place, member in enumerate(members):
            end = first + least + (place < extra)
            target[member].update((topic, index) for index in range(first, end))
            first = end
    return {member: frozenset(assigned) for member, assigned in target.items()}


def assign_uniform(what: AssignorInput) -> Target:
    """Assigns equal numbers of partitions, keeping previous assignments where possible."""
    if not what.subscriptions:
        return {}
    kinds = set(what.subscriptions.values())
    return _spread_alike(what) if len(kinds) == 1 else _spread_unlike(what)


def _kept(what: AssignorInput) -> dict[str, list[Assigned]]:
    """Returns the partitions that members had and may keep; each partition once."""
    taken: set[Assigned] = set()
    kept: dict[str, list[Assigned]] = {}
    for member in what.in_order(list(what.subscriptions)):
        topics = what.subscriptions[member]
        kept[member] = [
            each
            for each in sorted(what.previous.get(member, NOTHING) - taken)
            if each[0] in topics and each[1] < what.partition_counts[each[0]]
        ]
        taken.update(kept[member])
    return kept


def _spread_alike(what: AssignorInput) -> Target:
    """Assigns partitions if all members have the same subscription. Every member gets the same number, some one more;
    members that already had more are preferred for it."""
    kept = _kept(what)
    partitions = what.partitions()
    least, extra = divmod(len(partitions), len(kept))
    room: dict[str, int] = {}
    for member, assigned in kept.items():
        has_more = extra > 0 and len(assigned) > least
        extra -= has_more
        del assigned[least + has_more :]
        room[member] = least + has_more - len(assigned)
        if has_more:
            room[member] = 0
    for member, assigned in kept.items():
        if extra > 0 and len(assigned) <= least:
            room[member] += 1
            extra -= 1
    taken = {each for assigned in kept.values() for each in assigned}
    open_members = deque(member for member in kept if room[member] > 0)
    for each in partitions:
        if each in taken:
            continue
        member = open_members.popleft()
        kept[member].append(each)
        room[member] -= 1
        if room[member] > 0:
            open_members.append(member)
    return {member: frozenset(assigned) for member, assigned in kept.items()}


def _spread_unlike(what: AssignorInput) -> Target:
    """Assigns partitions if subscriptions differ: keeps the previous assignment, gives each remaining partition to the
    member with the fewest, then moves partitions until no move helps.

    The result is an optimal semi-matching: there is no chain of moves left from one member to another that has at least
    two partitions fewer.
    """
    kept = {member: set(assigned) for member, assigned in _kept(what).items()}
    subscribers: dict[TopicId, list[str]] = {}
    for member in kept:
        for topic in what.subscriptions[member]:
            subscribers.setdefault(topic, []).append(member)
    taken = {each for assigned in kept.values() for each in assigned}
    rest = [each for each in what.partitions() if each not in taken]
    for each in sorted(rest, key=lambda each: (len(subscribers[each[0]]), each)):
        kept[min(subscribers[each[0]], key=lambda member: len(kept[member]))].add(each)
    settled: set[str] = set()
    while len(settled) < len(kept):
        member = max((each for each in kept if each not in settled), key=lambda each: len(kept[each]))
        if not _relieve(member, kept, subscribers):
            settled.add(member)
    return {member: frozenset(assigned) for member, assigned in kept.items()}


def _relieve(start: str, kept: dict[str, set[Assigned]], subscribers: Mapping[TopicId, list[str]]) -> bool:
    """Gives one partition of this member away, perhaps through others, to a member that has at least two fewer."""
    came_from: dict[str, tuple[str, Assigned]] = {}
    queue = deque([start])
    seen_topics: set[TopicId] = set()
    while queue:
        member = queue.popleft()
        if len(kept[member]) <= len(kept[start]) - 2:
            while member != start:
                giver, each = came_from[member]
                kept[giver].remove(each)
                kept[member].add(each)
                member = giver
            return True
        for each in sorted(kept[member]):
            if each[0] in seen_topics:
                continue  # all members that could take it are known already
            seen_topics.add(each[0])
            for other in subscribers[each[0]]:
                if other != start and other not in came_from:
                    came_from[other] = (member, each)
                    queue.append(other)
    return False


ASSIGNORS: Mapping[str, Callable[[AssignorInput], Target]] = {"uniform": assign_uniform, "range": assign_range}
