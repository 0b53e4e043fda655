"""Producer ids that are unique within a cluster."""

from __future__ import annotations

import contextlib

from ottla.coordination.port import (
    Committed,
    Coordination,
    HasVersion,
    IsAbsent,
    OutcomeUnknownError,
    Put,
    UnavailableError,
)
from ottla.protocol.model.errors import ErrorCode, Refused

PRODUCER_IDS = "ids/producers"


async def reserve_producer_ids(store: Coordination, count: int) -> int | Refused:
    """Reserves `count` consecutive ids and returns the first. No other broker of the cluster gets them."""
    try:
        while True:
            found = await store.get(PRODUCER_IDS)
            first = int(found.value) if found is not None else 0
            condition = IsAbsent(PRODUCER_IDS) if found is None else HasVersion(PRODUCER_IDS, found.version)
            # After an unknown outcome the next attempt reads again; at worst a block of ids is never used.
            with contextlib.suppress(OutcomeUnknownError):
                outcome = await store.commit([condition], [Put(PRODUCER_IDS, str(first + count).encode())])
                if isinstance(outcome, Committed):
                    return first
    except UnavailableError as error:
        return Refused(ErrorCode.coordinator_not_available, str(error))
