"""Reassignments (KIP-455) and requested leader elections, which the controller carries out.

A reassignment first adds the new replicas to the old ones. The plan completes it when all replicas of the target are in
sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from ottla.coordination.port import HasVersion
from ottla.machines.controller import keys
from ottla.machines.controller.assignment import check_manual
from ottla.machines.controller.election import View, decide
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.plan import Kind, PartitionChange, is_clean, pack_changes
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import ControllerEntry, PartitionKey, PartitionState, Versioned
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.errors import ErrorCode, Refused


class TopicPartitionName(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int


class ElectionType(Enum):
    """The kind of an election. The values are those of the ElectLeaders request."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The writes to commit, and the result for each partition: None if it is part of the writes or needs no change."""

    writes: list[Write] = field(default_factory=list)
    refused: dict[TopicPartitionName, Refused | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress, as ListPartitionReassignments reports it."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What the controller needs to serve these requests."""

    image: ClusterImage
    me: Versioned[ControllerEntry]
    rules: RuleBook
    limits: Limits = field(default_factory=Limits)

    def view(self, key: PartitionKey) -> View:
        """Returns a view of a visible partition, with the rules of its topic."""
        topic = self.image.topic(key.topic_id)
        assert topic is not None, "the partition is visible"
        return View(self.image, key, self.rules.of(self.image, topic))

    def find(self, named: TopicPartitionName) -> tuple[PartitionKey, Versioned[PartitionState]] | Refused:
        """Returns the named partition, or the refusal if there is none."""
        topic = self.image.topic_named(named.topic)
        if topic is None:
            return Refused(ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {named.topic}.")
        key = PartitionKey(topic.id, named.partition)
        found = self.image.partition(key)
        if found is None:
            reason = f"Unable to find partition {named.topic}:{named.partition}."
            return Refused(ErrorCode.unknown_topic_or_partition, reason)
        return key, found

    def writes(self, due: Iterable[PartitionChange], words: str) -> list[Write]:
        """Packs the changes into writes that apply only while this broker is the controller."""
        fence = HasVersion(keys.CONTROLLER, self.me.version)
        return pack_changes(self.image, fence, due, self.limits, words)


# -- reassignments ----------------------------------------------------------------------------------------------------


def reassign(
    controlling: ControllerContext,
    targets: Mapping[TopicPartitionName, Sequence[int] | None],
    *,
    allow_shared_machine: bool = False,
    allow_factor_change: bool = True,
) -> Outcomes:
    """Assigns new replicas to each partition; a target of None cancels the reassignment in progress."""
    outcomes, due = Outcomes(), []
    for named, target in targets.items():
        found = controlling.find(named)
        if isinstance(found, Refused):
            outcomes.refused[named] = found
            continue
        key, old = found
        view = controlling.view(key)
        new: PartitionState | Refused
        if target is None:
            new = _cancelled(view, named, old.value)
        else:
            refused = _check_target(view.image, old.value, target, allow_shared_machine, allow_factor_change)
            new = refused or _reassigned(view, old.value, tuple(target))
        outcomes.refused[named] = new if isinstance(new, Refused) else None
        if not isinstance(new, Refused) and new != old.value:
            due.append(PartitionChange(Kind.SETTLE, key, old, new, is_clean(view, old.value, new)))
    outcomes.writes.extend(controlling.writes(due, "replicas of {} partition(s) are reassigned"))
    return outcomes


def _check_target(
    image: ClusterImage,
    state: PartitionState,
    target: Sequence[int],
    allow_shared_machine: bool,
    allow_factor_change: bool,
) -> Refused | None:
    refused = check_manual(image, target, had=state.original, allow_shared_machine=allow_shared_machine)
    if refused is None and not allow_factor_change and len(target) != len(state.original):
        return Refused(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(state.original)} to {len(target)}.",
        )
    return refused


def _reassigned(view: View, state: PartitionState, target: tuple[int, ...]) -> PartitionState:
    """Starts a reassignment. Replicas that an earlier reassignment was adding and that this one does not want are both
    in `adding` and in `removing`: they are dropped."""
    original = state.original
    unwanted = tuple(broker_id for broker_id in state.replicas if broker_id not in target)
    arriving = tuple(broker_id for broker_id in (*target, *unwanted) if broker_id not in original)
    new = replace(state, replicas=target + unwanted, adding=arriving, removing=unwanted)
    # A target that is already in sync is reached at once.
    return decide(new, view) if view.leader_stands(state) else new


def _cancelled(view: View, named: TopicPartitionName, state: PartitionState) -> PartitionState | Refused:
    if not state.is_reassigning:
        return Refused(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
    original = state.original
    isr = tuple(member for member in state.isr if member.broker_id in original)
    eligible = tuple(member for member in state.eligible if member.broker_id in original)
    reverted = replace(state, replicas=original, adding=(), removing=(), isr=isr, eligible=eligible)
    if not any(view.is_alive(member) for member in (*isr, *eligible)):
        # There is nothing to revert to: only the replicas being added have everything, or no replica is alive.
        return Refused(
            ErrorCode.invalid_replica_assignment,
            f"Unable to revert partition assignment for {named.topic}:{named.partition} because it would require an"
            " unclean leader election.",
        )
    new = decide(reverted, view)
    if new.leader == state.leader and not set(original).issuperset(state.replicas):
        new = replace(new, leader_epoch=state.leader_epoch + 1)
    return new


def list_reassignments(
    image: ClusterImage, named: Iterable[TopicPartitionName] | None = None
) -> dict[TopicPartitionName, Reassignment]:
    """Returns the reassignments in progress, of all partitions or of the given ones."""
    found = {}
    for key in image.reassigning():
        topic, partition = image.topic(key.topic_id), image.partition(key)
        assert topic is not None, "the partition is visible"
        assert partition is not None, "the partition is visible"
        state = partition.value
        adding = tuple(broker_id for broker_id in state.adding if broker_id not in state.removing)
        found[TopicPartitionName(topic.name, key.partition)] = Reassignment(state.replicas, adding, state.removing)
    wanted = sorted(found) if named is None else named
    return {name: found[name] for name in wanted if name in found}


# -- elections --------------------------------------------------------------------------------------------------------


def elect_leaders(
    controlling: ControllerContext, named: Iterable[TopicPartitionName] | None, election_type: ElectionType
) -> Outcomes:
    """Elects leaders of the given partitions, or of all. In the latter case partitions that need no election are
    omitted."""
    image = controlling.image
    wanted = (
        list(named)
        if named is not None
        else [
            TopicPartitionName(topic.name, index) for topic in image.topics() for index in image.partitions_of(topic.id)
        ]
    )
    outcomes, due = Outcomes(), []
    for each in wanted:
        new = _elected(controlling, each, election_type)
        if isinstance(new, PartitionChange):
            due.append(new)
        elif named is None and new.error is ErrorCode.election_not_needed:
            continue
        outcomes.refused[each] = new if isinstance(new, Refused) else None
    words = f"{election_type.name.lower()} leaders of " + "{} partition(s)"
    outcomes.writes.extend(controlling.writes(due, words))
    return outcomes


def _elected(
    controlling: ControllerContext, named: TopicPartitionName, election_type: ElectionType
) -> PartitionChange | Refused:
    found = controlling.find(named)
    if isinstance(found, Refused):
        return found
    key, old = found
    state = old.value
    is_unclean = election_type is ElectionType.UNCLEAN
    if state.has_leader if is_unclean else state.leader == state.replicas[0]:
        return Refused(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
    view = controlling.view(key)
    new = decide(state, view, prefer=not is_unclean, unclean=is_unclean)
    if is_unclean and not new.has_leader:
        reason = "Eligible topic partition leaders are not available."
        return Refused(ErrorCode.eligible_leaders_not_available, reason)
    if not is_unclean and new.leader != state.replicas[0]:
        return Refused(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
    return PartitionChange(Kind.ELECT, key, old, new, is_clean(view, state, new))
