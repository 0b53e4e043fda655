"""Invariants inside the brokers of a simulated cluster with transactions, in addition to `cluster_checks`.

The committed batches of each partition are tracked one by one with a simple model, and brokers are compared with it:

    decision            no marker is in a log before its decision is committed, and none has another outcome
    complete            no transaction is complete before each of its partitions has a committed marker
    last stable offset  a leader's is the start of the first open transaction, and never decreases
    every one ends      no transaction is open at the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ottla.broker.partition.partition import Partition
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.batch_effects import marker_in
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.machines.controller.state import PartitionKey
from ottla.machines.transactions.encoding import decode
from ottla.machines.transactions.records import TopicPartition, TransactionRecord
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.record import decode_batch
from tests.simulation.cluster_checks import ClusterChecks
from tests.simulation.committed import Committed

Decision = tuple[int, int, bool]
"""Producer id, epoch, and whether it is committed."""


@dataclass(slots=True)
class Followed:
    """The committed state of one partition."""

    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """First offsets by producer id, in the order of the log."""
    batches: dict[int, list[int]] = field(default_factory=dict)
    """First offsets of all batches of each open transaction, by producer id."""
    stable: int = 0
    """The correct last stable offset of a log from which nothing was deleted."""

    def stable_of(self, start: int) -> tuple[int, int]:
        """Returns the lowest and the highest correct last stable offset of a log with this start. They differ if the
        first records of an open transaction were deleted: a replica that was copied afterwards has never seen them, and
        counts the transaction from the first record that is left of it."""
        firsts = (next((at for at in found if at >= start), self.end) for found in self.batches.values())
        return max(self.stable, start), max(min([self.end, *firsts]), start)


class TransactionChecks(ClusterChecks):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._followed: dict[PartitionKey, Followed] = {}
        self._decided: set[Decision] = set()
        self._prepared: dict[str, tuple[int, frozenset[TopicPartition]]] = {}
        self._stable: dict[tuple[str, PartitionKey, int], int] = {}
        self.on_step: Callable[[str, PartitionKey], None] | None = None
        """Called with "decision" or "marker" when a leader appends one, before it is replicated."""

    def open_transactions(self) -> dict[str, list[int]]:
        """Producers with open transactions, by partition."""
        return {
            f"{self._name_of(key)}-{key.partition}": list(followed.open)
            for key, followed in self._followed.items()
            if followed.open
        }

    def committed_batches(self) -> Iterator[tuple[str, int, Iterable[bytes]]]:
        """Batches by topic and partition, in the order of their offsets."""
        for key, committed in self._committed.items():
            yield self._name_of(key), key.partition, (batch.content for batch in committed.batches.values())

    def _name_of(self, key: PartitionKey) -> str:
        topic = self.image.topic(key.topic_id)
        return "" if topic is None else topic.name

    # -- committed state -------------------------------------------------------------------------------------------

    def _on_committed(self, partition: Partition) -> None:
        super()._on_committed(partition)
        key = PartitionKey(partition.topic.id, partition.index)
        committed = self._committed.get(key)
        if committed is not None:
            self._follow(key, committed)
            self._compare_stable(partition, key)

    def _follow(self, key: PartitionKey, committed: Committed) -> None:
        followed = self._followed.setdefault(key, Followed())
        while (batch := committed.batches.get(followed.end)) is not None:
            self._take(key, followed, batch.content)
            followed.end = batch.end
        followed.stable = min([followed.end, *followed.open.values()])

    def _take(self, key: PartitionKey, followed: Followed, content: bytes) -> None:
        header = read_header(memoryview(content))
        if header.is_control:
            followed.open.pop(header.producer_id, None)
            followed.batches.pop(header.producer_id, None)
        elif header.is_transactional:
            followed.open.setdefault(header.producer_id, header.base_offset)
            followed.batches.setdefault(header.producer_id, []).append(header.base_offset)
        elif self._name_of(key) == STATE_TOPIC:
            for record in _records(content):
                self._on_record(key, record)

    def _on_record(self, key: PartitionKey, record: TransactionRecord) -> None:
        name, value = record.transactional_id, record.value
        if value is None:
            return
        if value.state.is_prepared:
            self._decided.add((value.producer_id, value.producer_epoch, value.state.is_commit))
            self._prepared[name] = value.producer_id, value.partitions
        elif value.state.is_complete and name in self._prepared:
            producer_id, partitions = self._prepared.pop(name)
            for topic, index in sorted(partitions):
                followed = self._followed.get(self._key_named(topic, index), Followed())
                if producer_id in followed.open:
                    text = f"{name} is complete, and producer {producer_id} has an open transaction in {topic}-{index}"
                    self._violated("complete", key, text)

    def _key_named(self, name: str, index: int) -> PartitionKey:
        return PartitionKey(next(topic.id for topic in self.image.topics() if topic.name == name), index)

    # -- brokers ---------------------------------------------------------------------------------------------------

    def _compare_stable(self, partition: Partition, key: PartitionKey) -> None:
        followed = self._followed[key]
        watermark, found = partition.high_watermark, partition.last_stable_offset
        at = self._process(), key, partition.leader_epoch
        lowest, highest = followed.stable_of(partition.log.start_offset)
        if watermark == followed.end and not lowest <= found <= highest:
            text = f"is {found} with watermark {watermark}; {followed.open} are open"
            self._violated("last stable offset", key, text)
        if found < self._stable.get(at, 0):
            self._violated("last stable offset", key, f"went back from {self._stable[at]} to {found}")
        self._stable[at] = found

    def _on_lead(self, partition: Partition, epoch: int) -> None:
        super()._on_lead(partition, epoch)
        key = PartitionKey(partition.topic.id, partition.index)
        stable = self._followed.get(key, Followed()).stable
        for each in partition.log.transactions.open_transactions():
            is_newest = self._newest[key][0] == epoch
            if is_newest and each.first_offset < stable:
                text = f"was {stable}, and {self._process()} leads in epoch {epoch} with {each} open"
                self._violated("last stable offset", key, text)

    def _on_appended(self, log: AnyLog, batch: Any) -> None:
        super()._on_appended(log, batch)
        header = read_header(batch)
        key = PartitionKey(log.key.topic_id, log.key.partition)
        marker = marker_in(header, batch) if header.is_control else None
        if marker is not None:
            if (marker.producer_id, marker.producer_epoch, marker.is_commit) not in self._decided:
                self._violated("decision", key, f"{marker} is appended, and that is not decided")
            self._tell("marker", key, header.leader_epoch)
        elif self._name_of(key) == STATE_TOPIC and self.on_step is not None:
            values = [record.value for record in _records(bytes(batch))]
            if any(value is not None and value.state.is_prepared for value in values):
                self._tell("decision", key, header.leader_epoch)

    def _tell(self, what: str, key: PartitionKey, epoch: int) -> None:
        if self.on_step is not None and self._leaders.get((key, epoch)) == self._process():
            self.on_step(what, key)


def _records(batch: bytes) -> Iterator[TransactionRecord]:
    for each in decode_batch(memoryview(batch)):
        assert each.key is not None
        record = decode(bytes(each.key), None if each.value is None else bytes(each.value))
        if isinstance(record, TransactionRecord):
            yield record
