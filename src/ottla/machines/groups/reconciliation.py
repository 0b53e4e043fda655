"""Reconciliation (KIP-848): moves a member from its current assignment to its target, revoking first.

A partition is assigned only if no member owns it. Its last owner keeps it until it confirms the revocation, by no
longer listing the partition among those it owns, or until it is removed from the group.

A member that changes its subscription loses the partitions of other topics at once, even if there is no new target yet:
a regular expression has to be resolved first.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.machines.groups.records import NOTHING, Assigned, Assignment, CurrentAssignment, MemberState


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_free: Callable[[Assigned], bool],
    unsubscribed: Assignment = NOTHING,
) -> CurrentAssignment:
    """Returns the next step. `owned` are the partitions that the member reports; None means they have not changed.
    `unsubscribed` are assigned partitions of topics that the member has just unsubscribed from."""
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            return _without(current, unsubscribed, owned)
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & current.revoking:
                return _without(current, unsubscribed, owned)
            # It has revoked what it was asked to. Its epoch shows that, even if there is more to revoke. After a change
            # of its subscription there may be no later epoch yet.
            return _next(current, min(current.epoch + 1, target_epoch), target_epoch, target, owned, is_free)
        case _:
            return _next(current, current.epoch, target_epoch, target, owned, is_free)


def _without(current: CurrentAssignment, unsubscribed: Assignment, owned: Assignment | None) -> CurrentAssignment:
    """Revokes partitions and keeps everything else."""
    if not unsubscribed:
        return current
    keeps = current.assigned - unsubscribed
    revoking = current.revoking | unsubscribed
    if owned is None or owned & revoking:
        return CurrentAssignment(
            current.epoch, current.previous_epoch, MemberState.UNREVOKED_PARTITIONS, keeps, revoking
        )
    return CurrentAssignment(current.epoch, current.previous_epoch, current.state, keeps, current.revoking)


def _next(
    current: CurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_free: Callable[[Assigned], bool],
) -> CurrentAssignment:
    keeps = current.assigned & target
    revoking = current.assigned - target
    if revoking and (owned is None or owned & revoking):
        return CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, keeps, revoking)
    # Partitions whose revocation it has just confirmed are still recorded as its own.
    mine = current.assigned | current.revoking
    gets = frozenset(each for each in target - keeps if each in mine or is_free(each))
    is_complete = keeps | gets == target
    state = MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS
    return CurrentAssignment(target_epoch, current.epoch, state, keeps | gets, NOTHING)
