"""The assignors with which the leader of a classic group distributes partitions, by Kafka's names. Pure.

`range` gives each member a contiguous range of each topic's partitions. `roundrobin` deals out all partitions one by
one. `cooperative-sticky` gives all members equally many and moves as few as possible, in two rebalances: a partition
that moves is first assigned to nobody, so that its owner revokes it, and then the former owner rejoins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from ottla.client.consumer.types import TopicPartition
from ottla.client.groups.classic_formats import MemberSubscription

RANGE = "range"
ROUND_ROBIN = "roundrobin"
COOPERATIVE_STICKY = "cooperative-sticky"

Members = Mapping[str, MemberSubscription]
Counts = Mapping[str, int]
"""The number of partitions of each topic. Topics that do not exist are left out."""
Assignments = dict[str, set[TopicPartition]]


def assign(assignor: str, members: Members, counts: Counts) -> Assignments:
    """Returns the assignment of each member by the named assignor."""
    return _ASSIGNORS[assignor](members, counts)


def _range(members: Members, counts: Counts) -> Assignments:
    given = _nothing(members)
    for topic, subscribers in _subscribers(members, counts).items():
        least, extra = divmod(counts[topic], len(subscribers))
        first = 0
        for place, member in enumerate(subscribers):
            end = first + least + (place < extra)
            given[member].update(TopicPartition(topic, index) for index in range(first, end))
            first = end
    return given


def _round_robin(members: Members, counts: Counts) -> Assignments:
    given = _nothing(members)
    circle = deque(_in_order(members))
    for at in _partitions(_subscribers(members, counts), counts):
        while at.topic not in members[circle[0]].topics:
            circle.rotate(-1)
        given[circle[0]].add(at)
        circle.rotate(-1)
    return given


def _cooperative_sticky(members: Members, counts: Counts) -> Assignments:
    given = _sticky(members, counts)
    for member, partitions in given.items():
        owned_by_others = {at for other, each in members.items() if other != member for at in each.owned}
        partitions -= owned_by_others - members[member].owned
    return given


def _sticky(members: Members, counts: Counts) -> Assignments:
    """Keeps current assignments, gives the rest to the members with the fewest, then balances by moving partitions."""
    subscribers = _subscribers(members, counts)
    given = _kept(members, counts)
    taken = {at for partitions in given.values() for at in partitions}
    rest = [at for at in _partitions(subscribers, counts) if at not in taken]
    for at in sorted(rest, key=lambda each: (len(subscribers[each.topic]), each)):
        given[min(subscribers[at.topic], key=lambda member: len(given[member]))].add(at)
    settled: set[str] = set()
    while len(settled) < len(given):
        member = max((each for each in given if each not in settled), key=lambda each: len(given[each]))
        if not _relieve(member, given, subscribers):
            settled.add(member)
    return given


def _kept(members: Members, counts: Counts) -> Assignments:
    """Returns the partitions that members own and may keep. If two claim the same one, the later generation wins."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member in _in_order(members):
        subscription = members[member]
        for at in subscription.owned:
            if at.topic in subscription.topics and at.partition < counts.get(at.topic, 0):
                claims.setdefault(at, []).append((subscription.generation, member))
    given = _nothing(members)
    for at, claimed in claims.items():
        latest = max(generation for generation, _ in claimed)
        owners = [member for generation, member in claimed if generation == latest]
        if len(owners) == 1:  # otherwise the owner is unclear, so both revoke it first
            given[owners[0]].add(at)
    return given


def _relieve(start: str, given: Assignments, subscribers: Mapping[str, list[str]]) -> bool:
    """Moves one partition away from this member, possibly via others, to a member with at least two fewer."""
    came_from: dict[str, tuple[str, TopicPartition]] = {}
    queue = deque([start])
    seen_topics: set[str] = set()
    while queue:
        member = queue.popleft()
        if len(given[member]) <= len(given[start]) - 2:
            while member != start:
                giver, at = came_from[member]
                given[giver].remove(at)
                given[member].add(at)
                member = giver
            return True
        for at in sorted(given[member], reverse=True):
            if at.topic in seen_topics:
                continue  # all possible receivers are known already
            seen_topics.add(at.topic)
            for other in sorted(subscribers[at.topic], key=lambda each: len(given[each])):
                if other != start and other not in came_from:
                    came_from[other] = (member, at)
                    queue.append(other)
    return False


def _subscribers(members: Members, counts: Counts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in _in_order(members):
        for topic in members[member].topics:
            if counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return dict(sorted(found.items()))


def _partitions(subscribers: Mapping[str, list[str]], counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for topic in subscribers for index in range(counts[topic])]


def _in_order(members: Members) -> list[str]:
    """Sorts static members first, by the instance id that they keep over restarts."""
    return sorted(members, key=lambda member: (members[member].instance_id is None, _name(members, member), member))


def _name(members: Members, member: str) -> str:
    instance_id = members[member].instance_id
    return member if instance_id is None else instance_id


def _nothing(members: Members) -> Assignments:
    return {member: set() for member in _in_order(members)}


_ASSIGNORS: dict[str, Callable[[Members, Counts], Assignments]] = {
    RANGE: _range,
    ROUND_ROBIN: _round_robin,
    COOPERATIVE_STICKY: _cooperative_sticky,
}
ASSIGNORS = tuple(_ASSIGNORS)
