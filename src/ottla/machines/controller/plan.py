"""Plans everything that the controller has to write now, given the image. After these writes the plan is empty.

A lost reply, an unknown outcome or a new controller need no special case: whoever is the controller plans again. Each
write is conditional on the controller's entry and on the versions of the partitions (safety: controller-writes). A
write that removes a member from an ISR is also conditional on the standing of the leader: the remaining members must
still have everything when the write is applied, even if this image is slightly outdated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from functools import cache
from itertools import islice
from typing import NamedTuple

from ottla.coordination.port import Condition, Delete, HasVersion, Put
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.election import View, decide
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import (
    ControllerEntry,
    Member,
    PartitionKey,
    PartitionState,
    Versioned,
)
from ottla.machines.controller.writes import Limits, Packing, Write

NOBODY: Collection[PartitionKey] = frozenset()


class Kind(IntEnum):
    """The kinds of changes, most urgent first."""

    ELECT = 0
    SHRINK = 1
    MOVE = 2
    SETTLE = 3

    @property
    def words(self) -> str:
        """The description for the log, with `{}` in place of the number of partitions."""
        return _WORDS[self]


_WORDS = {
    Kind.ELECT: "new leaders, or none, for {} partition(s) without a live leader",
    Kind.SHRINK: "dead replicas are removed from the ISR of {} partition(s)",
    Kind.MOVE: "leadership of {} partition(s) moves",
    Kind.SETTLE: "reassignments or eligible leader replicas of {} partition(s) are completed",
}


class PartitionChange(NamedTuple):
    """A change of one partition that is to be written."""

    kind: Kind
    key: PartitionKey
    old: Versioned[PartitionState]
    new: PartitionState
    is_clean: bool
    """True if the new leader is known to have everything."""


def plan(
    image: ClusterImage,
    me: Versioned[ControllerEntry],
    rules: RuleBook,
    limits: Limits | None = None,
    *,
    among: Iterable[PartitionKey] | None = None,
    preferred: Collection[PartitionKey] = NOBODY,
) -> list[Write]:
    """Returns the writes that are due, elections first.

    `among` limits the partitions to examine; by default all are examined. The partitions in `preferred` get their first
    replica as leader if it is in sync.
    """
    limits = limits or Limits()
    due = islice(due_changes(image, rules, among, preferred), limits.changes_max)
    return writes_for(image, me, list(due), limits)


def writes_for(
    image: ClusterImage, me: Versioned[ControllerEntry], due: Collection[PartitionChange], limits: Limits
) -> list[Write]:
    """Packs changes and clean-up into writes. Returns none if a later controller is known."""
    found = image.controller
    if found is not None and found.version > me.version:
        return []
    fence = HasVersion(keys.CONTROLLER, me.version)
    writes = []
    for kind in Kind:
        writes += pack_changes(image, fence, [each for each in due if each.kind is kind], limits, kind.words)
    return writes + _clean_up(image, fence, limits)


def due_changes(
    image: ClusterImage,
    rules: RuleBook,
    among: Iterable[PartitionKey] | None = None,
    preferred: Collection[PartitionKey] = NOBODY,
) -> Iterator[PartitionChange]:
    """Yields the changes that are due. Partitions whose leaders are gone come first."""
    for key, found in _unsettled(image, among, preferred):
        topic = image.topic(key.topic_id)
        assert topic is not None, "partitions without a topic are not visible"
        state, view = found.value, View(image, key, rules.of(image, topic))
        new = decide(state, view, prefer=key in preferred)
        if new != state:
            yield PartitionChange(_kind(view, state, new), key, found, new, is_clean(view, state, new))


def is_clean(view: View, old: PartitionState, new: PartitionState) -> bool:
    """Returns whether the new leader is known to have everything that was acknowledged."""
    return any(view.is_alive(member) for member in (*old.isr, *old.eligible) if member.broker_id == new.leader)


def _unsettled(
    image: ClusterImage, among: Iterable[PartitionKey] | None, preferred: Collection[PartitionKey]
) -> Iterator[tuple[PartitionKey, Versioned[PartitionState]]]:
    """Skips, cheaply, the many partitions for which nothing can be due."""
    at_peace = _brokers_at_peace(image)
    later = []
    for key, found in image.partitions() if among is None else _those(image, among):
        state = found.value
        if state.leader_member not in at_peace:
            yield key, found
        elif state.eligible or state.adding or state.removing or not at_peace.issuperset(state.isr) or key in preferred:
            later.append((key, found))
    yield from later


def _those(
    image: ClusterImage, among: Iterable[PartitionKey]
) -> Iterator[tuple[PartitionKey, Versioned[PartitionState]]]:
    for key in among:
        found = image.partition(key)
        if found is not None:
            yield key, found


def _brokers_at_peace(image: ClusterImage) -> frozenset[Member]:
    """Returns the incarnations that are registered, not draining, and have no failed logs."""
    return frozenset(
        registration.member
        for registration in image.registrations()
        if not registration.is_draining and not image.has_failures(registration.broker_id)
    )


def _kind(view: View, old: PartitionState, new: PartitionState) -> Kind:
    if not view.leader_stands(old):
        return Kind.ELECT
    if any(not view.is_alive(member) for member in old.isr):
        return Kind.SHRINK
    return Kind.SETTLE if old.leader == new.leader or old.is_reassigning else Kind.MOVE


def pack_changes(
    image: ClusterImage, fence: Condition, due: Iterable[PartitionChange], limits: Limits, words: str
) -> list[Write]:
    """Packs changes into few writes. Partitions with the same leader are adjacent and share the condition on it."""
    packing = Packing(limits, [fence], words.format)
    standing = cache(image.standing)
    for each in sorted(due, key=lambda each: (each.new.leader, each.key)):
        text = keys.partition(each.key)
        conditions: list[Condition] = [HasVersion(text, each.old.version)]
        for broker_id in _whose_standing(each):
            conditions += standing(broker_id)
        packing.add(conditions, [Put(text, encoding.encode_partition(each.new))])
    return packing.writes()


def _whose_standing(due: PartitionChange) -> Iterator[int]:
    if not due.new.has_leader:
        return
    yield due.new.leader
    if not due.is_clean:
        # This election is justified only while all replicas that had everything are away, so none may have come back.
        for member in (*due.old.value.isr, *due.old.value.eligible):
            yield member.broker_id


def _clean_up(image: ClusterImage, fence: Condition, limits: Limits) -> list[Write]:
    """Deletes the partitions of deleted topics and of abandoned creations."""
    packing = Packing(limits, [fence], "{} partition(s) of deleted topics are removed".format)
    for key, found in sorted(image.left_over()):
        text = keys.partition(key)
        packing.add([HasVersion(text, found.version)], [Delete(text)])
    return packing.writes()
