"""Batches of idempotent producers that were refused, while later ones are on their way: those have to wait.

A client has several batches in flight. One is refused because too few replicas are in sync, and the next comes when
there are enough again. Two things went wrong here, and the siege found both:

* A log that has never heard of a producer lets it begin anywhere, as Kafka does, because its batches may have been
  removed. So the second batch was taken; and librdkafka takes all before an acknowledged batch for acknowledged.
* A log that knows the producer says OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then begins a new epoch and sends all of
  them again, also a batch before these that is in the log and was answered with NOT_ENOUGH_REPLICAS_AFTER_APPEND: it
  was there twice.

A producer never leaves out a batch within an epoch. So what comes after a refused batch is refused in the same way,
until that one comes again: the client sends them again in their order, and nothing else happens. This is about what
is on its way, so it is soon over: a refusal of long ago may have been made good by another broker, or been given up.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model.errors import Refused
from ottla.records.batch import HEADER_BYTES, MAGIC, BatchHeader, read_header

PRODUCERS_MAX = 1000
REMEMBERED_MS = 30_000


class _First(NamedTuple):
    epoch: int
    sequence: int
    refusal: Refused
    at_ms: int


class RefusedBatches:
    """Of one partition, on one broker, in memory."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, _First] = {}
        """The earliest batch that was refused, by producer, in the order of coming."""

    def __bool__(self) -> bool:
        return bool(self._first)

    def note(self, records: memoryview | None, refusal: Refused, now_ms: int) -> None:
        """A batch that was not taken, though nothing is wrong with it: the client will send it again."""
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
        """Why a batch has to wait for an earlier one. `missing` is what the log expects next, if it knows: a refusal of
        anything else is out of date."""
        known = self._first.get(header.producer_id)
        if known is None:
            return None
        is_behind = header.producer_epoch == known.epoch and header.base_sequence > known.sequence
        if is_behind and missing in (None, known.sequence) and now_ms < known.at_ms + REMEMBERED_MS:
            return known.refusal
        del self._first[header.producer_id]
        return None
