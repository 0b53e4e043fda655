"""Who leads a partition and who is in sync, given who is alive. Decides all that is due for one partition at once.

A leader is elected from the alive members of the ISR, in the order of the replicas; then from the alive eligible
replicas; then, for `cache`, once the pages of all of them are known to be lost, from those with their disk; then, for
`memory`, once all of them are lost, any alive replica, whose log begins anew; then, only where a topic allows it, any
alive replica. Without any the partition has no leader, and its ISR and eligible
replicas stay as they are, so that the last ones who had everything are remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.rules import TopicRules
from ottla.machines.controller.state import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    Member,
    PartitionKey,
    PartitionState,
    Registration,
)
from ottla.model.durability import Durability


def is_alive(member: Member, registration: Registration | None, durability: Durability) -> bool:
    """Whether the broker is there and has kept what it had when it was this member."""
    return registration is not None and registration.kept.since(durability) <= member.broker_epoch <= registration.epoch


@dataclass(frozen=True, slots=True)
class View:
    """One partition's replicas, as the image shows them."""

    image: ClusterImage
    key: PartitionKey
    rules: TopicRules

    def can_lead(self, broker_id: int) -> bool:
        """It is there, and its log works. Says nothing of what is in the log."""
        return self.image.registration(broker_id) is not None and not self.image.has_failed(
            broker_id, self.key, self.rules.durability
        )

    def is_alive(self, member: Member) -> bool:
        registration = self.image.registration(member.broker_id)
        return is_alive(member, registration, self.rules.durability) and self.can_lead(member.broker_id)

    def has_its_disk(self, member: Member) -> bool:
        """For `cache`: it lost its pages, and kept what was flushed."""
        registration = self.image.registration(member.broker_id)
        return is_alive(member, registration, Durability.DISK) and self.can_lead(member.broker_id)

    def is_lost(self, member: Member) -> bool:
        """A later incarnation did not keep what this one had: it will never be alive again."""
        incarnation = self.image.incarnation(member.broker_id)
        if incarnation is not None and incarnation.value.kept.since(self.rules.durability) > member.broker_epoch:
            return True
        registration = self.image.registration(member.broker_id)
        return registration is not None and registration.kept.since(self.rules.durability) > member.broker_epoch

    def is_draining(self, broker_id: int) -> bool:
        registration = self.image.registration(broker_id)
        return registration is not None and registration.is_draining

    def leader_stands(self, state: PartitionState) -> bool:
        """A leader of an older incarnation is no leader any more, even inside the same lease (SAFETY 1)."""
        registration = self.image.registration(state.leader)
        return (
            registration is not None
            and registration.epoch == state.leader_broker_epoch
            and any(self.is_alive(member) for member in state.isr if member.broker_id == state.leader)
        )

    def current(self, broker_id: int) -> Member:
        registration = self.image.registration(broker_id)
        assert registration is not None, f"broker {broker_id} is not registered"
        return registration.member


def decide(state: PartitionState, view: View, *, prefer: bool = False, unclean: bool = False) -> PartitionState:
    """The state as it should be; the same one if nothing is due. To decide again changes nothing more.

    `prefer` asks for the first replica as leader if it can be; `unclean` allows any replica, for this once.
    """
    in_sync = [member for member in state.isr if view.is_alive(member)]
    moved = _finish_reassignment(state, in_sync)
    in_sync = [member for member in in_sync if member.broker_id in moved.replicas]
    leader = _leader_in_sync(moved, in_sync, view, prefer)
    if leader is not None:
        return _led_by(state, moved, leader, in_sync, view)
    leader = _first(view, (member.broker_id for member in state.eligible if view.is_alive(member)), state)
    if leader is not None:
        return _led_by(state, _finish_reassignment(state, [view.current(leader)]), leader, [view.current(leader)], view)
    if view.rules.durability is Durability.CACHE and _is_all_lost(state, view):
        # The power of all of them was cut: the class promises no more than what was flushed.
        leader = _first(view, (member.broker_id for member in _had_all(state) if view.has_its_disk(member)), state)
        if leader is not None:
            return _led_uncleanly(state, view.current(leader))
    begins_anew = view.rules.goes_on_empty and _is_all_lost(state, view)
    if unclean or view.rules.unclean or begins_anew:
        leader = _first(view, filter(view.can_lead, state.replicas), state)
        if leader is not None:
            elected = _led_uncleanly(state, view.current(leader))
            return replace(elected, anew_in_epoch=elected.leader_epoch) if begins_anew else elected
    return _without_leader(state)


def eligible_after(state: PartitionState, view: View, isr: Iterable[Member]) -> tuple[Member, ...]:
    """The eligible replicas once the ISR is this one (KIP-966).

    Who leaves an ISR that is then below min.insync.replicas has everything below the watermark, which stands still
    from then on. When there are enough again, the watermark moves on without those who are not in the ISR.
    """
    new_isr = tuple(isr)
    if len(new_isr) >= view.rules.min_insync(state):
        return ()
    in_sync = {member.broker_id for member in new_isr}
    found: dict[int, Member] = {}
    for member in (*state.eligible, *state.isr):
        if member.broker_id not in in_sync and member.broker_id in state.replicas and not view.is_lost(member):
            found[member.broker_id] = member
    return tuple(found[broker_id] for broker_id in state.replicas if broker_id in found)


def _finish_reassignment(state: PartitionState, in_sync: Iterable[Member]) -> PartitionState:
    """Complete when all replicas of the target are in sync (KIP-455)."""
    if not state.is_reassigning:
        return state
    target = state.target
    if not target or not {member.broker_id for member in in_sync}.issuperset(target):
        return state
    return replace(state, replicas=target, adding=(), removing=())


def _leader_in_sync(state: PartitionState, in_sync: list[Member], view: View, prefer: bool) -> int | None:
    alive = {member.broker_id for member in in_sync}
    candidates = [broker_id for broker_id in state.replicas if broker_id in alive]
    staying = [broker_id for broker_id in candidates if not view.is_draining(broker_id)] or candidates
    if not staying:
        return None
    may_stay = view.leader_stands(state) and state.leader in staying
    if may_stay and not (prefer and staying[0] == state.replicas[0]):
        return state.leader
    return staying[0]


def _first(view: View, broker_ids: Iterable[int], state: PartitionState) -> int | None:
    """The first in the order of the replicas; a broker that is draining comes last."""
    found = set(broker_ids)
    ordered = [broker_id for broker_id in state.replicas if broker_id in found]
    ordered.sort(key=view.is_draining)
    return ordered[0] if ordered else None


def _led_by(
    state: PartitionState, moved: PartitionState, leader: int, in_sync: list[Member], view: View
) -> PartitionState:
    """A clean election, or none: the leader has everything that was acknowledged."""
    current = view.current(leader)
    isr = tuple(current if member.broker_id == leader else member for member in in_sync)
    is_new_epoch = current != state.leader_member or not set(moved.replicas).issuperset(state.replicas)
    return replace(
        moved,
        leader=current.broker_id,
        leader_broker_epoch=current.broker_epoch,
        leader_epoch=state.leader_epoch + is_new_epoch,
        isr=isr,
        eligible=eligible_after(moved, view, isr),
    )


def _led_uncleanly(state: PartitionState, leader: Member) -> PartitionState:
    """Nobody else has what this one has, so nobody else stays in sync or eligible."""
    return replace(
        _finish_reassignment(state, [leader]),
        leader=leader.broker_id,
        leader_broker_epoch=leader.broker_epoch,
        leader_epoch=state.leader_epoch + 1,
        isr=(leader,),
        eligible=(),
    )


def _without_leader(state: PartitionState) -> PartitionState:
    if not state.has_leader:
        return state
    return replace(
        state,
        leader=NO_LEADER,
        leader_broker_epoch=NO_BROKER_EPOCH,
        leader_epoch=state.leader_epoch + 1,
    )


def _had_all(state: PartitionState) -> tuple[Member, ...]:
    return (*state.isr, *state.eligible)


def _is_all_lost(state: PartitionState, view: View) -> bool:
    return all(view.is_lost(member) for member in _had_all(state))
