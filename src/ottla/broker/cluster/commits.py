"""Committing writes of the machines: what an answer means, and what no answer means."""

from __future__ import annotations

from ottla.coordination.port import Committed, Conflict, Coordination, OutcomeUnknownError, Revision
from ottla.machines.controller.writes import Write


async def commit(store: Coordination, write: Write) -> Revision | None:
    """The revision if the write was applied, None if it was not and never will be. Raises UnavailableError (it was not)
    and OutcomeUnknownError if even asking again settles nothing."""
    is_unsure = False
    for _ in range(3):
        try:
            outcome = await store.commit(write.conditions, write.operations)
        except OutcomeUnknownError:
            # The same conditions again: if they hold, the first one was not applied and cannot be any more.
            is_unsure = True
            continue
        if isinstance(outcome, Committed):
            return outcome.revision
        if is_unsure and isinstance(outcome, Conflict) and write.was_applied(outcome.entries):
            return max((entry.version for entry in outcome.entries.values() if entry is not None), default=Revision(0))
        return None
    raise OutcomeUnknownError(write.why)
