"""Checks brokers whose logs are rolled, deleted and compacted, in addition to `cluster_checks` and
`transactions_checks`.

    log start               it never goes back in a log, and never passes what was below a watermark
    deleted records         nobody leads with a log that begins below what DeleteRecords reported
    committed               of a compacted topic: the reference model of `compacted` instead of byte by byte
    one history an epoch    of a compacted topic: an offset has one record, wherever it is
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ottla.broker.partition.partition import Partition
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.compaction.compaction import Compaction
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.machines.controller.state import PartitionKey
from ottla.protocol.model.durability import Durability
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.record import Record
from ottla.reach import branch
from tests.simulation.committed import Committed
from tests.simulation.compacted import written_batch
from tests.simulation.transactions_checks import TransactionChecks

_LEADER_ROLLED = branch("a leader rolls a segment", __name__)
_FOLLOWER_ROLLED = branch("a follower rolls a segment", __name__)
_LEADER_EXPIRED = branch("the start of a leader's log moves", __name__)
_FOLLOWER_EXPIRED = branch("the start of a follower's log moves", __name__)
_OPEN_WHILE_COMPACTED = branch("a log with an open transaction is compacted", __name__)


class LongChecks(TransactionChecks):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trimmed: dict[tuple[str, int], int] = {}
        """Where each partition begins, as DeleteRecords reported."""
        self._trimmed_in: dict[tuple[str, int], dict[str, int]] = {}
        """The incarnation of each broker's process when DeleteRecords last reported a start."""
        self.passed: dict[tuple[str, int], int] = {}
        """The highest start that a log of the partition ever had: a reader may find nothing below it."""
        self._default_ms = self._defaults.get("log.retention.ms", "")

    def _hooks(self) -> list[tuple[type, str, Callable[..., Any]]]:
        moves: list[tuple[type, str]] = [
            *((FileLog, name) for name in ("advance_start", "become")),
            *((MemoryLog, name) for name in ("advance_start", "_retain")),
        ]
        return [
            *super()._hooks(),
            *((owner, name, self._around_start) for owner, name in moves),
            (FileLog, "roll", self._around_roll),
            (Compaction, "_take_place", self._around_swap),
        ]

    def _around_roll(self, original: Callable[[FileLog], None]) -> Callable[[FileLog], None]:
        def roll(log: FileLog) -> None:
            if isinstance(log.events, Partition):
                (_LEADER_ROLLED if log.events.leading is not None else _FOLLOWER_ROLLED)()
            original(log)

        return roll

    def _around_swap(self, original: Callable[..., None]) -> Callable[..., None]:
        def take_place(compaction: Compaction, *arguments: Any) -> None:
            if compaction.log.transactions.open_producers:
                _OPEN_WHILE_COMPACTED()
            original(compaction, *arguments)

        return take_place

    def _policy(self, key: PartitionKey) -> str:
        topic = self.image.topic(key.topic_id)
        return "delete" if topic is None else topic.configs.get("cleanup.policy", "delete")

    def _new_committed(self, key: PartitionKey) -> Committed:
        topic, policy = self.image.topic(key.topic_id), self._policy(key)
        configs = topic.configs if topic is not None else {}
        by_size = "retention.bytes" in configs
        expires = "delete" in policy and (by_size or configs.get("retention.ms", self._default_ms) != "-1")
        return Committed(may_delete=expires, is_compacted="compact" in policy)

    def may_delete(self, topic: str, partition: int) -> None:
        """Records of the partition are about to be deleted by request."""
        found = next((each for each in self.image.topics() if each.name == topic), None)
        if found is not None:
            self._committed_of(PartitionKey(found.id, partition)).may_delete = True

    def is_compacted(self, topic: str) -> bool:
        return any(
            "compact" in self._policy(PartitionKey(each.id, 0)) for each in self.image.topics() if each.name == topic
        )

    def compare_compacted(self, partition: Partition, process: str) -> None:
        """Compares a replica of a compacted topic with all that was committed."""
        key = PartitionKey(partition.topic.id, partition.index)
        committed = self._committed_of(key)
        missing = committed.first_missing(partition.log, may_be_damaged=self._may_be_damaged(process))
        if missing is not None:
            self._violated("replicas", key, f"{process} has not offset {missing[0]}: {missing[1]}")

    def timestamps(self) -> dict[tuple[str, int], dict[int, int]]:
        """Returns the timestamp of each committed record, by partition and offset."""
        found: dict[tuple[str, int], dict[int, int]] = {}
        for topic, partition, batches in self.committed_batches():
            times = found.setdefault((topic, partition), {})
            for content in batches:
                batch = written_batch(read_header(memoryview(content)), content)
                times.update((record.offset, record.timestamp_ms) for record in batch.records)
        return found

    # -- the start of a log ------------------------------------------------------------------------------------

    def _around_start(self, original: Callable[..., None]) -> Callable[..., None]:
        def move(log: AnyLog, *arguments: Any) -> None:
            before, end = log.start_offset, log.end_offset
            original(log, *arguments)
            if isinstance(log, FileLog) and arguments and isinstance(arguments[0], FileLog):  # it was cut and reopened
                key = PartitionKey(log.key.topic_id, log.key.partition)
                self._committed_of(key).tombstones.pop(log, None)
            is_reset = log.start_offset == log.end_offset != end
            if log.start_offset != before and not is_reset:
                self._on_start_moved(log, before)

        return move

    def _on_start_moved(self, log: AnyLog, before: int) -> None:
        if isinstance(log.events, Partition):
            (_LEADER_EXPIRED if log.events.leading is not None else _FOLLOWER_EXPIRED)()
        key = PartitionKey(log.key.topic_id, log.key.partition)
        start = log.start_offset
        if start < before:
            self._violated("log start", key, f"of {self._process()} went back from {before} to {start}")
        committed = self._committed_of(key)
        if start > committed.end:
            text = f"of {self._process()} moved from {before} to {start}, and the watermark was never above"
            self._violated("log start", key, f"{text} {committed.end}")
        topic = self.image.topic(key.topic_id)
        if topic is not None:
            place = topic.name, int(key.partition)
            self.passed[place] = max(start, self.passed.get(place, 0))

    def on_trimmed(self, topic: str, partition: int, start: int) -> None:
        """An operator was told that DeleteRecords has moved the start."""
        self.trimmed[topic, partition] = max(start, self.trimmed.get((topic, partition), 0))
        self._trimmed_in[topic, partition] = {name: self._world.hosts[name].incarnation for name in self._programs}

    def may_forget_start(self, topic: str, partition: int, names: Iterable[str]) -> bool:
        """Whether one of these brokers may have forgotten where DeleteRecords made its log start. A `cache` log writes
        its start with the next checkpoint, as Kafka does, so a process that dies before that forgets it. `disk` logs
        journal it."""
        if self.has_losses(topic, partition):
            return True
        found = next(each for each in self.image.topics() if each.name == topic)
        if self.durability_of(PartitionKey(found.id, partition)) is Durability.DISK:
            return False
        before = self._trimmed_in.get((topic, partition), {})
        return any(self._world.hosts[name].incarnation != before.get(name) for name in names)

    def _on_lead(self, partition: Partition, epoch: int) -> None:
        super()._on_lead(partition, epoch)
        place = partition.topic.name, partition.index
        trimmed = self.trimmed.get(place, 0)
        newest_epoch = self._newest[PartitionKey(partition.topic.id, partition.index)][0]
        is_forgotten = partition.log.start_offset < trimmed and epoch >= newest_epoch
        if is_forgotten and not self.may_forget_start(*place, [self._process().partition("/")[0]]):
            key = PartitionKey(partition.topic.id, partition.index)
            text = f"{self._process()} leads in epoch {epoch} with a log that begins at {partition.log.start_offset}"
            self._violated("deleted records", key, f"{text}; {trimmed} was reported as its start")

    # -- appends -----------------------------------------------------------------------------------------------

    def _on_appended(self, log: AnyLog, batch: Any) -> None:
        key = PartitionKey(log.key.topic_id, log.key.partition)
        if "compact" not in self._policy(key):
            super()._on_appended(log, batch)
            return
        header = read_header(batch)
        for record in written_batch(header, bytes(batch)).records:
            if record.value is None:
                self._committed_of(key).tombstones.setdefault(log, set()).add(record.offset)
            known = self._contents_of_record(key, header.leader_epoch, record)
            if known is not None:
                text = f"{self._process()} writes {record} in epoch {header.leader_epoch}, where {known!r} was"
                self._violated("one history an epoch", key, text)

    def _contents_of_record(self, key: PartitionKey, epoch: int, record: Record) -> bytes | None:
        """Returns another record that was written at this offset in this epoch, if any."""
        content = repr((record.key, record.value, record.timestamp_ms)).encode()
        known = self._contents.setdefault((key, epoch, record.offset), content)
        return None if known == content else known
