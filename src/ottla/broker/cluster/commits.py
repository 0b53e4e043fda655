"""Commits writes of the state machines and resolves unknown outcomes."""

from __future__ import annotations

from ottla.coordination.port import Committed, Conflict, Coordination, OutcomeUnknownError, Revision
from ottla.machines.controller.writes import Write
from ottla.reach import branch

_UNSURE = branch("a write to the store is repeated because its outcome is unknown", __name__)
_APPLIED = branch("a repeated write to the store finds that it was applied", __name__)


async def commit(store: Coordination, write: Write) -> Revision | None:
    """Returns the revision if the write was applied, or None if it was not and never will be. Raises UnavailableError
    if it was not applied, and OutcomeUnknownError if even repeating it does not tell."""
    is_unsure = False
    for _ in range(3):
        try:
            outcome = await store.commit(write.conditions, write.operations)
        except OutcomeUnknownError:
            # Repeat with the same conditions: if they still hold, the first attempt was not applied and can no longer
            # be.
            _UNSURE()
            is_unsure = True
            continue
        if isinstance(outcome, Committed):
            return outcome.revision
        if is_unsure and isinstance(outcome, Conflict) and write.was_applied(outcome.entries):
            _APPLIED()
            return max((entry.version for entry in outcome.entries.values() if entry is not None), default=Revision(0))
        return None
    raise OutcomeUnknownError(write.why)
