"""One member's way from what it has to its target (KIP-848): first it gives up, then it gets.

A partition is handed out only if nobody has it. Its last owner has it until it confirms that it gave it up, by no
longer naming it among what it owns, or until it is removed from the group.
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
) -> CurrentAssignment:
    """The next step. `owned` is what the member says that it has; None says that this has not changed."""
    match current.state:
        case MemberState.STABLE if current.epoch == target_epoch:
            return current
        case MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & current.revoking:
                return current
            # It has given up what it was told to. Its epoch says so, also if there is more to give up.
            return _next(current, current.epoch + 1, target_epoch, target, owned, is_free)
        case _:
            return _next(current, current.epoch, target_epoch, target, owned, is_free)


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
    # What it has just confirmed to have given up is still noted as its own.
    mine = current.assigned | current.revoking
    gets = frozenset(each for each in target - keeps if each in mine or is_free(each))
    is_complete = keeps | gets == target
    state = MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS
    return CurrentAssignment(target_epoch, current.epoch, state, keeps | gets, NOTHING)
