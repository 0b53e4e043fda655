"""Leader election and ISR membership of one partition, given the live brokers. Decides everything that is due at once.

A leader is elected from the first of these groups that has a candidate, in the order of the replicas:

- the live members of the ISR
- the live eligible replicas
- for `cache`, once all of these are known to have lost their pages: those whose disks survived
- for `memory`, once all of these are lost: any live replica, whose log starts anew
- only if the topic allows it: any live replica

Without a candidate the partition has no leader, and its ISR and eligible replicas stay as they are, so that the last
replicas that had everything are remembered.
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
from ottla.protocol.model.durability import Durability
from ottla.reach import branch

_ELIGIBLE = branch("a replica stays eligible after it left the ISR", __name__)
_ELECTED = branch("an eligible replica is elected", __name__)
_FLUSHED = branch("a cache replica is elected with what was flushed", __name__)
_ANEW = branch("a memory topic begins anew", __name__)
_LEADERLESS = branch("a partition loses its leader without a successor", __name__)
_RESTARTED = branch("a leader that restarted gets a new epoch", __name__)


def is_alive(member: Member, registration: Registration | None, durability: Durability) -> bool:
    """Returns whether the broker is registered and has kept the data that it had as this member."""
    return registration is not None and registration.kept.since(durability) <= member.broker_epoch <= registration.epoch


@dataclass(frozen=True, slots=True)
class View:
    """The replicas of one partition, as the image shows them."""

    image: ClusterImage
    key: PartitionKey
    rules: TopicRules

    def can_lead(self, broker_id: int) -> bool:
        """Returns whether the broker is registered and its log works. Says nothing about the contents of the log."""
        return self.image.registration(broker_id) is not None and not self.image.has_failed(
            broker_id, self.key, self.rules.durability
        )

    def is_alive(self, member: Member) -> bool:
        """Returns whether the member is registered, has kept its data and its log works."""
        registration = self.image.registration(member.broker_id)
        return is_alive(member, registration, self.rules.durability) and self.can_lead(member.broker_id)

    def has_its_disk(self, member: Member) -> bool:
        """For `cache`: returns whether the broker lost its pages but kept what was flushed."""
        registration = self.image.registration(member.broker_id)
        return is_alive(member, registration, Durability.DISK) and self.can_lead(member.broker_id)

    def is_lost(self, member: Member) -> bool:
        """Returns whether a later incarnation did not keep this member's data, so that it can never be alive again."""
        incarnation = self.image.incarnation(member.broker_id)
        if incarnation is not None and incarnation.value.kept.since(self.rules.durability) > member.broker_epoch:
            return True
        registration = self.image.registration(member.broker_id)
        return registration is not None and registration.kept.since(self.rules.durability) > member.broker_epoch

    def is_draining(self, broker_id: int) -> bool:
        """Returns whether the broker is registered and gives up its leaderships."""
        registration = self.image.registration(broker_id)
        return registration is not None and registration.is_draining

    def leader_stands(self, state: PartitionState) -> bool:
        """Returns whether the leader is still valid. A leader of an older incarnation is not, even inside the same
        lease (safety: one-history)."""
        registration = self.image.registration(state.leader)
        return (
            registration is not None
            and registration.epoch == state.leader_broker_epoch
            and any(self.is_alive(member) for member in state.isr if member.broker_id == state.leader)
        )

    def current(self, broker_id: int) -> Member:
        """Returns the broker with its current epoch. It must be registered."""
        registration = self.image.registration(broker_id)
        assert registration is not None, f"broker {broker_id} is not registered"
        return registration.member


def decide(state: PartitionState, view: View, *, prefer: bool = False, unclean: bool = False) -> PartitionState:
    """Returns the state as it should be, or the same state if nothing is due. Idempotent.

    `prefer` asks for the first replica as leader, if possible. `unclean` allows any replica, for this one decision.
    """
    in_sync = [member for member in state.isr if view.is_alive(member)]
    moved = _finish_reassignment(state, in_sync)
    in_sync = [member for member in in_sync if member.broker_id in moved.replicas]
    leader = _leader_in_sync(moved, in_sync, view, prefer)
    if leader is not None:
        return _led_by(state, moved, leader, in_sync, view)
    leader = _first(view, (member.broker_id for member in state.eligible if view.is_alive(member)), state)
    if leader is not None:
        _ELECTED()
        return _led_by(state, _finish_reassignment(state, [view.current(leader)]), leader, [view.current(leader)], view)
    if view.rules.durability is Durability.CACHE and _is_all_lost(state, view):
        # All of them lost power: the class promises no more than what was flushed.
        leader = _first(view, (member.broker_id for member in _had_all(state) if view.has_its_disk(member)), state)
        if leader is not None:
            _FLUSHED()
            return _led_uncleanly(state, view.current(leader))
    begins_anew = view.rules.goes_on_empty and _is_all_lost(state, view)
    if unclean or view.rules.unclean or begins_anew:
        leader = _first(view, filter(view.can_lead, state.replicas), state)
        if leader is not None:
            if begins_anew:
                _ANEW()
            elected = _led_uncleanly(state, view.current(leader))
            return replace(elected, anew_in_epoch=elected.leader_epoch) if begins_anew else elected
    return _without_leader(state)


def eligible_after(state: PartitionState, view: View, isr: Iterable[Member]) -> tuple[Member, ...]:
    """Returns the eligible replicas after the ISR has become `isr` (KIP-966).

    A replica that leaves an ISR which is then below min.insync.replicas has everything below the high watermark, and
    the high watermark does not advance from then on. Once the ISR is large enough again, the high watermark advances
    without the replicas outside the ISR.
    """
    new_isr = tuple(isr)
    if len(new_isr) >= view.rules.min_insync(state):
        return ()
    in_sync = {member.broker_id for member in new_isr}
    found: dict[int, Member] = {}
    for member in (*state.eligible, *state.isr):
        if member.broker_id not in in_sync and member.broker_id in state.replicas and not view.is_lost(member):
            found[member.broker_id] = member
    if found:
        _ELIGIBLE()
    return tuple(found[broker_id] for broker_id in state.replicas if broker_id in found)


def _finish_reassignment(state: PartitionState, in_sync: Iterable[Member]) -> PartitionState:
    """Completes a reassignment once all replicas of the target are in sync (KIP-455)."""
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
    """Returns the first candidate in the order of the replicas. Draining brokers come last."""
    found = set(broker_ids)
    ordered = [broker_id for broker_id in state.replicas if broker_id in found]
    ordered.sort(key=view.is_draining)
    return ordered[0] if ordered else None


def _led_by(
    state: PartitionState, moved: PartitionState, leader: int, in_sync: list[Member], view: View
) -> PartitionState:
    """Returns the state after a clean election, or with the same leader, which has everything that was acknowledged."""
    current = view.current(leader)
    isr = tuple(current if member.broker_id == leader else member for member in in_sync)
    if current.broker_id == state.leader and current != state.leader_member:
        _RESTARTED()
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
    """Returns the state after an unclean election. No other replica has this leader's log, so none stays in sync or
    eligible."""
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
    _LEADERLESS()
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
