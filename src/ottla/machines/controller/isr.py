"""ISR changes by the leader, with a compare-and-set. A concurrent write of the controller makes it fail, and vice
versa."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ottla.coordination.port import Condition, Put
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.election import View, eligible_after
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.rules import TopicRules
from ottla.machines.controller.state import Member, PartitionKey, PartitionState
from ottla.machines.controller.writes import Write
from ottla.protocol.model.errors import ErrorCode, Refused


def isr_change(
    image: ClusterImage, rules: TopicRules, key: PartitionKey, leader: Member, isr: Iterable[tuple[int, int]]
) -> Write | Refused | None:
    """Returns the write with which `leader` changes the ISR; None if the ISR is already as wanted.

    The leader vouches for incarnations (broker id, broker epoch) that it has heard from. A member that was not in the
    ISR as this incarnation must be registered as it, now and when the write is applied. The same holds for the leader
    itself: a process that was paused while its broker was restarted must not remove the other members.
    """
    found = image.partition(key)
    if found is None:
        return Refused(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    state, wanted = found.value, tuple(Member(*member) for member in isr)
    view = View(image, key, rules)
    refused = _check_leader(view, state, leader) or _check_members(state, leader, wanted)
    if refused is not None:
        return refused
    conditions: list[Condition] = [image.unchanged(keys.partition(key)), *image.standing(leader.broker_id)]
    for member in set(wanted) - set(state.isr):
        refused = _check_added(view, member)
        if refused is not None:
            return refused
        if member.broker_id != leader.broker_id:
            conditions += image.standing(member.broker_id)
    if set(wanted) == set(state.isr):
        return None
    new = replace(state, isr=wanted, eligible=eligible_after(state, view, wanted))
    why = f"the ISR of {key.topic_id}-{key.partition} becomes {sorted(member.broker_id for member in wanted)}"
    return Write(tuple(conditions), (Put(keys.partition(key), encoding.encode_partition(new)),), why)


def _check_leader(view: View, state: PartitionState, leader: Member) -> Refused | None:
    if state.leader_member == leader and view.leader_stands(state):
        return None
    return Refused(
        ErrorCode.not_leader_or_follower,
        f"Broker {leader.broker_id} in epoch {leader.broker_epoch} is not the leader, or has lost this log.",
    )


def _check_members(state: PartitionState, leader: Member, wanted: tuple[Member, ...]) -> Refused | None:
    broker_ids = [member.broker_id for member in wanted]
    if (
        len(set(broker_ids)) != len(broker_ids)
        or leader.broker_id not in broker_ids
        or not set(broker_ids) <= set(state.replicas)
    ):
        return Refused(
            ErrorCode.invalid_request,
            f"The ISR {broker_ids} does not consist of the leader {leader.broker_id} and other replicas of"
            f" {list(state.replicas)}, each once.",
        )
    return None


def _check_added(view: View, member: Member) -> Refused | None:
    registration = view.image.registration(member.broker_id)
    if registration is None or registration.member != member:
        reason = "is not registered in this epoch"
    elif registration.is_draining:
        reason = "is draining"
    elif not view.can_lead(member.broker_id):
        reason = "has lost this log"
    else:
        return None
    return Refused(ErrorCode.ineligible_replica, f"Broker {member.broker_id} in epoch {member.broker_epoch} {reason}.")
