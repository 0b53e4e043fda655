"""Commits the writes of administrators' requests, and turns failures of the store into replies for clients."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.broker.cluster.commits import commit
from ottla.broker.cluster.membership import Membership
from ottla.coordination.port import OutcomeUnknownError, Revision, UnavailableError
from ottla.machines.controller.writes import Write
from ottla.protocol.model.errors import ErrorCode, Refused

log = logging.getLogger("ottla.cluster")

TRIES = 5
"""Maximum number of attempts. Each conflict means that another broker's write succeeded; with few brokers, a handful of
attempts is plenty."""


async def commit_or_refuse(membership: Membership, write: Write) -> Revision | Refused | None:
    """Commits a write. Returns None, with a fresh image, if another write came first and a retry may succeed."""
    try:
        revision = await commit(membership.store, write)
        if revision is None:
            # The image is behind and has to catch up before a retry can succeed.
            await membership.refresh()
            return None
    except UnavailableError as error:
        return Refused(ErrorCode.coordinator_not_available, f"the coordination store is not available: {error}")
    except OutcomeUnknownError:
        return Refused(ErrorCode.request_timed_out, "the outcome of the write to the coordination store is unknown")
    log.info("%s", write.why)
    return revision


async def commit_all(membership: Membership, decide: Callable[[], list[Write]]) -> Refused | None:
    """Commits writes in order, and waits until this broker's image shows them. After a conflict, the writes are decided
    again: `decide` returns those that the image does not show yet."""
    for _ in range(TRIES):
        last: Revision | None = None
        for write in decide():
            outcome = await commit_or_refuse(membership, write)
            if isinstance(outcome, Refused):
                return outcome
            if outcome is None:
                break
            last = outcome
        else:
            if last is not None:
                await membership.seen(last)
            return None
    return busy("the change could not be made")


def busy(what: str) -> Refused:
    """Returns the refusal of a request that met a conflict in every attempt."""
    return Refused(ErrorCode.request_timed_out, f"{what}: repeated conflicts with concurrent changes; retry")
