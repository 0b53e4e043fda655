"""The records that clients of long logs have sent, and the results that a reader may get.

Every record has a header with an id of its own, so that a tombstone is told from another one. A key belongs to one
producer, which sends its records in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from ottla.client.consumer.types import ConsumerRecord
from tests.simulation.violations import Violation

Partition = tuple[str, int]
ID_HEADER = "id"


class Fate(Enum):
    """What a client knows of a record or a transaction."""

    UNKNOWN = "may be written"
    WRITTEN = "acknowledged or committed"
    NOT_WRITTEN = "refused or aborted"


@dataclass(slots=True)
class LongTransaction:
    fate: Fate = Fate.NOT_WRITTEN
    """Until somebody asks for the commit, nothing of it may be read as committed."""


@dataclass(slots=True)
class Sent:
    """A record that a client sent."""

    number: int
    at: Partition
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    transaction: LongTransaction | None = None
    fate: Fate = Fate.UNKNOWN
    offset: int = -1
    is_weak: bool = False
    """Sent without idempotence: it may be there twice, and out of order."""

    @property
    def id(self) -> bytes:
        return b"%d" % self.number

    @property
    def is_certain(self) -> bool:
        """Whether readers of committed records must find it."""
        if self.transaction is not None and self.transaction.fate is not Fate.WRITTEN:
            return False
        return self.fate is Fate.WRITTEN and self.offset >= 0

    @property
    def is_excluded(self) -> bool:
        """Whether readers of committed records must not find it."""
        is_aborted = self.transaction is not None and self.transaction.fate is Fate.NOT_WRITTEN
        return is_aborted or self.fate is Fate.NOT_WRITTEN


@dataclass(frozen=True, slots=True)
class Skip:
    """Offsets that a reader passed without getting a record."""

    reader: str
    at: Partition
    first: int
    end: int
    passed: int
    """The highest start that a log of the partition had by then."""


@dataclass
class LongHistory:
    """`may_lose` says of a partition whether records of it were lost that its class may lose."""

    may_lose: Callable[[str, int], bool]
    sent: dict[bytes, Sent] = field(default_factory=dict)
    seen: dict[str, dict[Partition, dict[int, bytes]]] = field(default_factory=dict)
    """Record ids by offset, of each reader."""
    skips: list[Skip] = field(default_factory=list)
    looked_up: list[tuple[Partition, int, int, int]] = field(default_factory=list)
    """Partition, time asked for, offset and timestamp of the reply."""

    def new(
        self,
        at: Partition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        transaction: LongTransaction | None = None,
    ) -> Sent:
        record = Sent(len(self.sent) + 1, at, key, value, timestamp_ms, transaction)
        self.sent[record.id] = record
        return record

    @property
    def acknowledged(self) -> int:
        return sum(record.is_certain for record in self.sent.values())

    # -- readers -----------------------------------------------------------------------------------------------

    def note_read(self, reader: str, record: ConsumerRecord, position: int | None, passed: int) -> None:
        """Checks a record that a reader got, whose position was `position` if it has one."""
        at = record.topic, record.partition
        sent = self.known(record)
        seen = self.seen.setdefault(reader, {}).setdefault(at, {})
        if not self.may_lose(*at):
            if position is not None and record.offset < position:
                raise Violation("order of reading", f"{reader} got {record.offset} of {at} after {position - 1}")
            if position is not None and record.offset > position:
                self.skips.append(Skip(reader, at, position, record.offset, passed))
            if seen.get(record.offset, sent.id) != sent.id:
                raise Violation("seen", f"{reader} got two records at offset {record.offset} of {at}")
        seen[record.offset] = sent.id

    def known(self, record: ConsumerRecord) -> Sent:
        """Returns the record that was sent, if its content is that."""
        found = self.sent.get(dict(record.headers).get(ID_HEADER) or b"")
        content = record.topic, record.partition, record.key, record.value, record.timestamp_ms
        if found is None or content != (*found.at, found.key, found.value, found.timestamp_ms):
            raise Violation("written", f"{content} at offset {record.offset}, and {found} was sent")
        return found

    # -- the end -----------------------------------------------------------------------------------------------

    def check(self, log: dict[Partition, dict[int, Sent]], starts: dict[Partition, int], compacted: set[str]) -> None:
        """`log` is what a reader of committed records found in the end, from the start of each partition on."""
        for at, found in log.items():
            self._check_once(at, found)
            if not self.may_lose(*at):
                certain = [each for each in self.sent.values() if each.at == at and each.is_certain]
                certain = [each for each in certain if each.offset >= starts[at]]
                if at[0] in compacted:
                    self._check_keys(at, found, certain)
                else:
                    self._check_all(at, found, certain)
                self._check_seen(at, self._newest_of_keys(found) if at[0] in compacted else found)
        self._check_skips(compacted)

    def _check_once(self, at: Partition, found: dict[int, Sent]) -> None:
        ids = [record.id for record in found.values() if not record.is_weak]
        if len(set(ids)) < len(ids):
            raise Violation("once", f"{at} has records twice: {ids}")
        for offset, record in found.items():
            if record.is_excluded:
                raise Violation("aborted", f"{at}, {offset}: {record}")
            if record.is_certain and record.offset != offset and not self.may_lose(*at):
                raise Violation("acknowledged", f"{at}: {record} is at {offset}")
        newest: dict[bytes | None, int] = {}
        for record in found.values():
            if record.is_weak or record.key is None:
                continue
            if record.number < newest.get(record.key, 0):
                raise Violation("order", f"{at}: {record} comes after number {newest[record.key]} of its key")
            newest[record.key] = record.number

    def _check_all(self, at: Partition, found: dict[int, Sent], certain: Iterable[Sent]) -> None:
        gone = [record for record in certain if record.offset not in found]
        if gone:
            raise Violation("acknowledged", f"{at}: not where the producer was told: {gone}")

    def _check_keys(self, at: Partition, found: dict[int, Sent], certain: Iterable[Sent]) -> None:
        last: dict[bytes | None, Sent] = {}
        for record in sorted(certain, key=lambda each: each.offset):
            last[record.key] = record
        by_key: dict[bytes | None, list[int]] = {}
        for offset, record in found.items():
            by_key.setdefault(record.key, []).append(offset)
        for key, record in last.items():
            offsets = by_key.get(key, [])
            if any(offset >= record.offset for offset in offsets):
                continue
            if record.value is None:
                continue  # whether it may be gone is checked log by log
            if not offsets and self._may_be_deleted_later(record):
                continue
            raise Violation("compacted", f"{at}: {record} is gone, and of its key there is {offsets}")

    def _may_be_deleted_later(self, record: Sent) -> bool:
        """Whether a later tombstone of the key may have been written."""
        return any(
            each.value is None and each.number > record.number and not each.is_excluded
            for each in self.sent.values()
            if each.at == record.at and each.key == record.key
        )

    def _newest_of_keys(self, found: dict[int, Sent]) -> dict[int, Sent]:
        """Other records of a key may have been compacted where a reader read, and not where all is read in the end. So
        may a record before a tombstone that this replica never got, and a tombstone after `delete.retention.ms`."""
        newest = {record.key: offset for offset, record in found.items()}
        kept = [at for at in newest.values() if found[at].value is not None]
        return {at: found[at] for at in kept if not self._may_be_deleted_later(found[at])}

    def _check_seen(self, at: Partition, found: dict[int, Sent]) -> None:
        for reader, seen in self.seen.items():
            missed = [offset for offset, record in found.items() if seen.get(at, {}).get(offset) != record.id]
            if missed:
                raise Violation("seen", f"{reader} did not see {at}: {missed}")

    def _check_skips(self, compacted: set[str]) -> None:
        certain: dict[Partition, list[Sent]] = {}
        for record in self.sent.values():
            if record.is_certain:
                certain.setdefault(record.at, []).append(record)
        for skip in self.skips:
            if skip.at[0] in compacted or self.may_lose(*skip.at):
                continue
            first = max(skip.first, skip.passed)
            skipped = [record for record in certain.get(skip.at, []) if first <= record.offset < skip.end]
            if skipped:
                raise Violation("seen", f"{skip}: {skipped}")
