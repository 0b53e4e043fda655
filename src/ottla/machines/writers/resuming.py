"""After a cut: what of a writer's records is in the log.

A writer's ids are the sequences of its batches, as far as 31 bits go. Unlike a Kafka producer's they may have gaps: an
append that was refused has an id and no record. The writer says up to which id all is settled; the log says which id is
its last. In between, an id is in the log, or it was refused: ids are taken in their order, so what is below the last
one was decided on before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SEQUENCE_MASK = 0x7FFFFFFF
BACK_MAX = 1 << 30
"""More than ever is in flight: what seems further ahead is behind."""
NO_ID = -1


class Placed(NamedTuple):
    """Ids that are in the log."""

    first_id: int
    record_count: int
    base_offset: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


class Missing(NamedTuple):
    """Ids that are not, and never will be."""

    first_id: int
    record_count: int


def sequence_of(record_id: int) -> int:
    return record_id & SEQUENCE_MASK


def id_of(sequence: int, settled_id: int) -> int:
    """The id of a sequence, near the one that is settled. Below it: the log has lost what it acknowledged."""
    ahead = (sequence - settled_id) & SEQUENCE_MASK
    return settled_id + ahead if ahead <= BACK_MAX else settled_id + ahead - SEQUENCE_MASK - 1


def account_for(settled_id: int, last_id: int, batches: Iterable[Placed]) -> list[Placed | Missing]:
    """All ids above the settled one up to the last, in their order. The batches are the writer's, in order."""
    accounts: list[Placed | Missing] = []
    at = settled_id + 1
    for batch in batches:
        first, end = max(batch.first_id, at), min(batch.first_id + batch.record_count, last_id + 1)
        if first >= end:
            continue
        if first > at:
            accounts.append(Missing(at, first - at))
        accounts.append(Placed(first, end - first, batch.base_offset + first - batch.first_id))
        at = end
    if at <= last_id:
        accounts.append(Missing(at, last_id + 1 - at))
    return accounts
