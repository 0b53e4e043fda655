"""One assigned partition of a consumer: its positions and its buffer. Pure: nothing is sent here.

`position` is the next offset to be returned to the user. `fetch_offset` is the next offset to request from the broker;
it is ahead of `position` by the buffered records. `settled_position` is behind `position` by the records that were
returned last and that the user may still be processing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from ottla.client.consumer.types import ConsumerRecord, FetchedBatch, TopicPartition
from ottla.client.errors import ClientError, CorruptBatchError, DeserializationError
from ottla.client.serialization import Convert
from ottla.protocol.records.batch import Batch
from ottla.protocol.records.bridge import decode_records
from ottla.protocol.records.errors import CorruptRecords

EARLIEST = -2
LATEST = -1


class PartitionReader:
    """The buffer and the positions of one partition."""

    def __init__(self, at: TopicPartition, offset: int | None, reset_to: int | None, fetch_bytes_max: int) -> None:
        self.at = at
        self.position: int | None = offset
        self.fetch_offset: int | None = offset
        """None until the position was looked up by `lookup`."""
        self.lookup: int | None = reset_to if offset is None else None
        """The timestamp for ListOffsets: EARLIEST, LATEST or a time in milliseconds."""
        self.generation = 0
        """Increases with each seek, so that replies to older requests are recognised."""
        self.fetch_bytes_max = fetch_bytes_max
        self.not_before_s = 0.0
        self.failure: ClientError | None = None
        self.high_watermark = -1
        self.buffered_bytes = 0
        self.paused = False
        self.fetch_end: int | None = None
        """Offsets from here on are not requested, because the user reads a range."""
        self.wants_committed = False
        """Whether the position is to be set to the committed offset of the group."""
        self.committed: int | None = None
        """The committed offset of the group, as far as this consumer knows."""
        self._unsettled_from: int | None = None
        self._began_at: int | None = None
        """Where the user began to read after the last seek."""
        self._batches: deque[FetchedBatch] = deque()
        self._rows: list[ConsumerRecord] = []
        self._rows_at = 0

    @property
    def has_data(self) -> bool:
        """Whether batches are buffered."""
        return bool(self._batches)

    @property
    def is_at_end(self) -> bool:
        """Whether the whole range was fetched."""
        return self.fetch_end is not None and self.fetch_offset is not None and self.fetch_offset >= self.fetch_end

    @property
    def settled_position(self) -> int | None:
        """The offset before which all records were returned and processed: the user has asked for more since."""
        return self.position if self._unsettled_from is None else self._unsettled_from

    def settle(self) -> None:
        """Marks the returned records as processed."""
        self._unsettled_from = None

    def _handing_out(self) -> None:
        if self._unsettled_from is None:
            self._unsettled_from = self.position
        if self._began_at is None:
            self._began_at = self.position

    def begin_at_committed(self, offset: int | None, reset_to: int | None) -> None:
        """Sets the position to the committed offset; None means that nothing is committed."""
        if offset is None and self._began_at is not None:
            self._move(self._began_at, None)
            return
        self._move(offset, reset_to if offset is None else None)
        self.committed = offset

    def return_to_committed(self) -> None:
        """Requests the committed offset again, so that records returned since the last commit are returned again."""
        self._move(None, None)
        self.wants_committed = True

    def seek(self, offset: int) -> None:
        """Continues at this offset and drops the buffer."""
        self._move(offset, None)
        self._began_at = None

    def rewind(self, offset: int) -> None:
        """Returns records from this offset on again, because the user did not use them. Earlier ones are unaffected."""
        unsettled_from = self._unsettled_from
        self._move(offset, None)
        if unsettled_from is not None and unsettled_from < offset:
            self._unsettled_from = unsettled_from

    def seek_by_lookup(self, timestamp: int) -> None:
        """Continues at an offset that is looked up by timestamp."""
        self._move(None, timestamp)
        self._began_at = None

    def _move(self, offset: int | None, lookup: int | None) -> None:
        self.generation += 1
        self.position = self.fetch_offset = offset
        self.lookup = lookup
        self.failure = None
        self.wants_committed = False
        self._unsettled_from = None
        self.not_before_s = 0.0
        self._batches.clear()
        self._drop_rows()
        self.buffered_bytes = 0

    def resume_from_lookup(self, timestamp: int) -> None:
        """Looks the fetch offset up again, because it is out of range. Buffered records are still returned."""
        self.fetch_offset = None
        self.lookup = timestamp

    def looked_up(self, offset: int) -> None:
        """Sets the fetch offset to the result of a lookup."""
        self.fetch_offset = offset
        self.lookup = None
        if self.position is None or not self._batches:
            self.position = offset

    def add(self, batches: Iterable[FetchedBatch]) -> int:
        """Buffers the batches of a fetch and advances `fetch_offset`. Returns the number of whole batches."""
        count = 0
        for fetched in batches:
            self._batches.append(fetched)
            self.buffered_bytes += len(fetched.batch.data)
            self.fetch_offset = fetched.batch.header.next_offset
            count += 1
        return count

    def take_records(
        self, records_max: int, *, check_crc: bool, convert: Convert | None = None
    ) -> list[ConsumerRecord]:
        """Returns up to `records_max` records of one batch. Empty once no visible records are left.

        A record that `convert` rejects ends the list. If it is the first one, the error is raised and the position
        stays before it.
        """
        while self._batches:
            self._load_rows(check_crc)
            taken = self._rows[self._rows_at : self._rows_at + records_max]
            if convert is not None:
                taken = _converted(taken, convert)
            self._rows_at += len(taken)
            if taken:
                self._handing_out()
                self.position = taken[-1].offset + 1
            if self._rows_at >= len(self._rows):
                self._drop_first_batch()
            if taken:
                return taken
        return []

    def each_record(self, *, check_crc: bool, convert: Convert | None = None) -> Iterator[ConsumerRecord]:
        """Yields the records of the first batch and advances the position. A seek ends the iteration.

        Raises the exception of `convert`, with the position before that record.
        """
        if not self._batches:
            return
        first = self._batches[0]
        self._load_rows(check_crc)
        while self._batches and self._batches[0] is first and self._rows_at < len(self._rows):
            record = self._rows[self._rows_at]
            if convert is not None:
                record = convert(record)
            self._rows_at += 1
            if self._unsettled_from is None:
                self._handing_out()
            self.position = record.offset + 1
            yield record
        if self._batches and self._batches[0] is first:
            self._drop_first_batch()

    def _load_rows(self, check_crc: bool) -> None:
        if not self._rows:
            self._rows = self._decode(self._batches[0], check_crc)

    def _decode(self, fetched: FetchedBatch, check_crc: bool) -> list[ConsumerRecord]:
        if not fetched.visible:
            return []
        topic, partition = self.at
        try:
            records = decode_records([fetched.batch], from_offset=fetched.from_offset, check_crc=check_crc)
        except CorruptRecords as damage:
            raise self.damaged_at(fetched.batch.header.base_offset, damage) from damage
        return [ConsumerRecord(topic, partition, *record) for record in records]

    def damaged_at(self, offset: int, cause: Exception) -> CorruptBatchError:
        """Returns the exception for a damaged batch."""
        return CorruptBatchError(*self.at, offset, str(cause))

    def peek_batches(self, bytes_max: int) -> tuple[list[Batch], int]:
        """Returns whole batches for a table, at least one if there is one, and the offset to begin with."""
        while self._batches and not self._batches[0].visible:
            self._drop_first_batch()
        taken: list[Batch] = []
        size_bytes = 0
        for fetched in self._batches:
            data_bytes = len(fetched.batch.data)
            begins_inside = fetched.from_offset > fetched.batch.header.base_offset
            if taken and (size_bytes + data_bytes > bytes_max or begins_inside):
                break
            if fetched.visible:
                taken.append(fetched.batch)
                size_bytes += data_bytes
        if not taken:
            return [], 0
        # Some records of the first batch may have been returned already.
        begin = self.position if self._rows and self.position is not None else self._batches[0].from_offset
        return taken, begin

    def drop_through(self, last: Batch) -> None:
        """Drops the batches that `peek_batches` returned, up to this one."""
        self._handing_out()
        while self._batches:
            done = self._batches[0].batch is last
            self._drop_first_batch()
            if done:
                return

    def _drop_first_batch(self) -> None:
        fetched = self._batches.popleft()
        self.buffered_bytes -= len(fetched.batch.data)
        self.position = fetched.batch.header.next_offset
        self._drop_rows()

    def _drop_rows(self) -> None:
        self._rows = []
        self._rows_at = 0


def _converted(records: list[ConsumerRecord], convert: Convert) -> list[ConsumerRecord]:
    """Converts the records before the first one that fails. Raises if that is the very first."""
    done: list[ConsumerRecord] = []
    for record in records:
        try:
            done.append(convert(record))
        except DeserializationError:
            if not done:
                raise
            break
    return done
