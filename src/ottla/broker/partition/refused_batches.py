"""Remembers refused batches of idempotent producers, so that later batches in flight wait for them.

A client has several batches in flight. One is refused because too few replicas are in sync, and the next one arrives
when there are enough again. This caused two bugs, both found by the siege test:

* A log that does not know a producer accepts any first sequence, as Kafka does, because the producer's earlier batches
  may have been removed. So the second batch was accepted, and librdkafka takes every batch before an acknowledged one
  as acknowledged.
* A log that knows the producer returns OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch and sends all
  its batches again, including an earlier batch that is in the log and was answered with
  NOT_ENOUGH_REPLICAS_AFTER_APPEND. That batch was then in the log twice.

A producer never skips a batch within an epoch. So every batch after a refused one is refused with the same error until
the refused one is sent again; the client then resends them in order. Refusals are remembered only briefly, because they
concern batches in flight: an old refusal may have been resolved by another broker, or the client may have given up.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.model.errors import Refused
from ottla.protocol.records.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header

PRODUCERS_MAX = 1000
REMEMBERED_MS = 30_000


class _First(NamedTuple):
    epoch: int
    sequence: int
    refusal: Refused
    at_ms: int


class RefusedBatches:
    """The refused batches of one partition on one broker, in memory."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, _First] = {}
        """The earliest refused batch by producer, in order of arrival."""

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, records: memoryview | None, refusal: Refused, now_ms: int) -> None:
        """Remembers a valid batch that was refused with a retriable error: the client will send it again."""
        if not refusal.error.retriable or records is None or len(records) < HEADER_BYTES:
            return
        header = read_header(records)
        if header.magic != MAGIC or header.producer_id < 0:
            return
        new = _First(header.producer_epoch, header.base_sequence, refusal, now_ms)
        known = self._first.pop(header.producer_id, None)
        is_later = known is not None and new.epoch == known.epoch and new.sequence > known.sequence
        is_fresh = known is not None and now_ms < known.at_ms + REMEMBERED_MS
        self._first[header.producer_id] = known if known is not None and is_later and is_fresh else new
        if len(self._first) > PRODUCERS_MAX:
            del self._first[next(iter(self._first))]

    def before(self, header: BatchHeader, missing: int | None, now_ms: int) -> Refused | None:
        """Returns the refusal that a batch has to wait for, if any. `missing` is the sequence that the log expects
        next, if it knows the producer; a refusal of any other sequence is out of date."""
        known = self._first.get(header.producer_id)
        if known is None:
            return None
        is_behind = header.producer_epoch == known.epoch and header.base_sequence > known.sequence
        if is_behind and missing in (None, known.sequence) and now_ms < known.at_ms + REMEMBERED_MS:
            return known.refusal
        del self._first[header.producer_id]
        return None
