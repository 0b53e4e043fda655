"""The result of a fetch for one partition, and which of its batches a consumer may see. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ottla.protocol.records.batch import Batch
from ottla.protocol.records.control import ControlKind, decode_control
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.record import Headers, decode_batch

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class TopicPartition(NamedTuple):
    """A topic name and a partition number; accepted wherever a `(topic, partition)` tuple is.

    consumer.seek(TopicPartition("orders", 0), 42)
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ConsumerRecord(NamedTuple):
    """A record as the consumer returns it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    """Bytes, or the result of the consumer's `key_deserializer`. None if the record has no key."""
    value: Any
    """Bytes, or the result of the consumer's `value_deserializer`. None if the record is a tombstone."""
    headers: Headers

    @property
    def at(self) -> TopicPartition:
        """The topic and the partition."""
        return TopicPartition(self.topic, self.partition)


class FetchedBatch(NamedTuple):
    """A batch as received. A batch is never cut, so records before `from_offset` must be skipped."""

    batch: Batch
    from_offset: int
    visible: bool
    """False for control batches and aborted transactions, which only advance the position."""


def visible_batches(
    batches: Iterable[Batch], from_offset: int, aborted: Sequence[tuple[int, int]] | None
) -> Iterator[FetchedBatch]:
    """Marks the batches that a reader may see. `aborted` (producer id, first offset) is None for read_uncommitted.

    An aborted transaction extends from its first offset to its abort marker.
    """
    starts = sorted(aborted or (), key=lambda each: each[1])
    open_aborts: set[int] = set()
    at = 0
    for batch in batches:
        header = batch.header
        while at < len(starts) and starts[at][1] <= header.last_offset:
            open_aborts.add(starts[at][0])
            at += 1
        if header.is_control:
            if header.producer_id in open_aborts and _is_abort(batch):
                open_aborts.discard(header.producer_id)
            yield FetchedBatch(batch, from_offset, visible=False)
        else:
            hidden = header.is_transactional and header.producer_id in open_aborts
            yield FetchedBatch(batch, from_offset, visible=not hidden)


def _is_abort(batch: Batch) -> bool:
    records = decode_batch(batch.data)
    if not records:
        raise CorruptRecords("a control batch without a record")
    return decode_control(records[0]).kind is ControlKind.abort
