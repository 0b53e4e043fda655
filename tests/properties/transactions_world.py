"""A model of transactions: a coordinator with its log, partitions with theirs, a network that loses and repeats
messages.

Invariants: transactions are atomic, replies hold, fenced producers do not succeed, every transaction ends, and a
read_committed reader reads exactly the committed records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count
from random import Random
from typing import NamedTuple

from ottla.machines.coordinators import Instant
from ottla.machines.transactions import encoding
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.effects import AllocateProducerId, Effect, WriteMarkers
from ottla.machines.transactions.partition_table import AlreadyMarked, Marker
from ottla.machines.transactions.records import TopicPartition, TransactionState
from ottla.machines.transactions.replies import (
    AddPartitionsReply,
    EndTransactionReply,
    InitProducerReply,
    Reply,
)
from ottla.machines.transactions.requests import (
    AbortTransaction,
    AddPartitions,
    EndTransaction,
    InitProducer,
    Request,
)
from ottla.machines.transactions.shard import Answer, Step
from ottla.machines.transactions.verification import NO_GUARD
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.properties.transactions_clients import Client, Tag
from tests.properties.transactions_reading import committed_contents, read_committed, stable_offset
from tests.support.transactions_driver import Batch, Control, PartitionLog

CONFIG = TransactionConfig(id_expiration_ms=3_600_000, id_expiration_check_interval_ms=600_000)
PARTITIONS = [TopicPartition("t", index) for index in range(3)]


class Sent(NamedTuple):
    client: Client | None
    request: Request
    floor: tuple[int, int]
    """The epoch granted by InitProducerId before this was sent: a lower one must not succeed."""
    produce: tuple[TopicPartition, int, int] | None = None
    """The partition of a record, its number, and the guard."""
    turned: Tag | None = None
    """Set if this request aborts a transaction whose commit was already requested."""


class Mail(NamedTuple):
    """One marker in flight to one partition."""

    effect: WriteMarkers
    partition: TopicPartition
    generation: int
    """The generation of the coordinator that gets the report."""


class World:
    def __init__(self, random: Random, versions: Iterable[int], *, is_careless: bool = True) -> None:
        self.random = random
        self.is_careless = is_careless
        """Whether clients write to partitions that they have not added."""
        self.partitions = PARTITIONS
        self.logs = {partition: PartitionLog(is_watermark_held=True) for partition in PARTITIONS}
        self.elapsed_ms = 0
        self.deadline_ms: int | None = None
        self.log: list[list[tuple[bytes, bytes | None]]] = []
        self.watermark = 0
        self.generation = 0
        self._held: list[tuple[int, Answer | Effect]] = []
        self._sent: dict[int, Sent] = {}
        self._history: list[tuple[Client, Request, Tag]] = []
        self.mail: list[Mail] = []
        self._late: list[Mail] = []
        """Copies of markers, and markers of former coordinators, in flight on the network."""
        self.repeats = random.random() < 0.5
        self._verified: list[Sent] = []
        """Verified records that are not appended yet."""
        self._marking: list[tuple[Mail, int]] = []
        """Appended markers with their offsets: the coordinator is notified when they are committed."""
        self._produced: list[tuple[Client, Tag, TopicPartition, int, int]] = []
        self._tickets, self._numbers, self._ids = count(1), count(1), count(1)
        self.floors: dict[str, tuple[int, int]] = {}
        self.contents: dict[Tag, set[int]] = {}
        self.wanted: set[Tag] = set()
        self.outcomes: dict[Tag, bool] = {}
        self.coordinator = TransactionCoordinator(CONFIG)
        self._load()
        self.clients = [Client(self, place, f"id-{place % 2}", version) for place, version in enumerate(versions)]

    # -- the coordinator and its log -------------------------------------------------------------------------------

    @property
    def now(self) -> Instant:
        return Instant(self.elapsed_ms, 10**12 + self.elapsed_ms)

    def _load(self) -> None:
        self.coordinator = self._replayed()
        self._take(self.coordinator.loaded(self.generation, self.now))

    def _replayed(self, compacted_to: int = 0) -> TransactionCoordinator:
        """Replays after compaction of part of the log: the last record of each key, without tombstones."""
        records = list(chain.from_iterable(self.log))
        last = {key: place for place, (key, _) in enumerate(records[:compacted_to])}
        clean = [records[place] for place in sorted(last.values()) if records[place][1] is not None]
        coordinator = TransactionCoordinator(CONFIG)
        for key, value in clean + records[compacted_to:]:
            coordinator.replay(key, value)
        assert not coordinator.unreadable
        return coordinator

    def _take(self, step: Step) -> None:
        if step.records:
            self.log.append([encoding.encode(each) for each in step.records])
        self._held += [(len(self.log), each) for each in (*step.answers, *step.effects)]
        self.deadline_ms = step.deadline_ms

    def send(
        self,
        client: Client | None,
        request: Request,
        produce: tuple[TopicPartition, int, int] | None = None,
        turned: Tag | None = None,
    ) -> int:
        ticket = next(self._tickets)
        name = getattr(request, "transactional_id", "")
        self._sent[ticket] = Sent(client, request, self.floors.get(name, (-1, -1)), produce, turned)
        if client is not None:
            self._history.append((client, request, client.tag))
        self._take(self.coordinator.handle(ticket, request, self.now))
        return ticket

    def commit(self, batches: int | None = None) -> None:
        self.watermark = len(self.log) if batches is None else min(len(self.log), self.watermark + batches)
        released = [each for position, each in self._held if position <= self.watermark]
        self._held = [each for each in self._held if each[0] > self.watermark]
        for each in released:
            if isinstance(each, Answer):
                self._deliver(each.ticket, each.reply)
            elif isinstance(each, AllocateProducerId):
                self._allocate(each.transactional_id)
            else:
                self.mail += [Mail(each, partition, self.generation) for partition in sorted(each.partitions)]

    def _allocate(self, name: str) -> None:
        if self.random.random() < 0.8:
            self._take(self.coordinator.producer_id_allocated(name, next(self._ids), self.now))
        else:
            self._take(self.coordinator.producer_id_refused(name, self.now))

    def fail_over(self, kept: int) -> None:
        """Keeps that many of the batches above the high watermark."""
        self.check_tables()
        del self.log[self.watermark + kept :]
        self._held.clear()
        for sent in self._sent.values():
            if sent.produce is not None and sent.client is not None:
                sent.client.refused(sent.produce[1], ErrorCode.not_coordinator)
            elif sent.client is not None:
                sent.client.give_up()
        self._sent.clear()
        self.generation += 1
        self._late += self.mail
        self.mail.clear()
        self._load()

    def wait(self, duration_ms: int) -> None:
        until_ms = self.elapsed_ms + duration_ms
        while self.deadline_ms is not None and self.deadline_ms <= until_ms:
            self.elapsed_ms = max(self.elapsed_ms, self.deadline_ms)
            self._take(self.coordinator.tick(self.now))
        self.elapsed_ms = until_ms

    def _deliver(self, ticket: int, reply: Reply) -> None:
        sent = self._sent.pop(ticket)
        self._check_fence(sent, reply)
        if sent.produce is not None:
            assert isinstance(reply, AddPartitionsReply)
            error = reply.errors[0][1]
            if error is ErrorCode.none and self.random.random() < 0.4:
                self._verified.append(sent)
            else:
                self._append(sent, error)
        elif sent.turned is not None and isinstance(reply, EndTransactionReply) and reply.error is ErrorCode.none:
            self.told(sent.turned, is_commit=False)
        elif sent.client is not None:
            sent.client.take(ticket, reply)

    def echo(self, number: int) -> None:
        """An old request arrives again. Before version 2, a repeated EndTxn may end the next transaction: such clients
        never have two requests in flight."""
        if self._history:
            client, request, _ = self._history[number % len(self._history)]
            if client.version >= 2 or not isinstance(request, EndTransaction):
                self.send(None, request)

    def turn(self, client: Client) -> None:
        """Its last commit arrives again, as an abort."""
        ends = [(request, tag) for who, request, tag in self._history if who is client]
        if ends and client.version >= 2:
            request, tag = ends[-1]
            if isinstance(request, EndTransaction) and request.is_commit:
                self.send(None, replace(request, is_commit=False), turned=tag)

    def abort_by_operator(self, number: int) -> None:
        self.send(None, AbortTransaction(transactional_id=f"id-{number % 2}"))

    # -- records ---------------------------------------------------------------------------------------------------

    def produce(self, client: Client, partition: TopicPartition) -> None:
        """The leader verifies with the coordinator if necessary, and appends after the reply."""
        number = next(self._numbers)
        client.unacknowledged.add(number)
        self.contents[client.tag].add(number)
        guard = self.logs[partition].table.begin_verification(*client.identity, 0, self.now.wall_ms)
        if isinstance(guard, ErrorCode):
            client.refused(number, guard)
            return
        request = client.add_request(partition, verify_only=client.version < 2)
        if guard == NO_GUARD:
            floor = self.floors.get(client.transactional_id, (-1, -1))
            self._append(Sent(client, request, floor, (partition, number, guard)), ErrorCode.none)
        else:
            self.send(client, request, (partition, number, guard))

    def append_verified(self) -> None:
        if self._verified:
            self._append(self._verified.pop(self.random.randrange(len(self._verified))), ErrorCode.none)

    def _append(self, sent: Sent, error: ErrorCode) -> None:
        assert sent.produce is not None
        assert isinstance(sent.request, AddPartitions)
        client, request, (partition, number, guard) = sent.client, sent.request, sent.produce
        assert client is not None
        log = self.logs[partition]
        if error is ErrorCode.none:
            verdict = log.table.judge_batch(
                request.producer_id,
                request.producer_epoch,
                0,
                is_transactional=True,
                guard=guard,
                transaction_version=client.version,
            )
            error = verdict.error if isinstance(verdict, Refused) else error
        if error is not ErrorCode.none:
            client.refused(number, error)
            return
        offset = log.append(Batch(request.producer_id, request.producer_epoch, number))
        self._produced.append((client, client.tag, partition, offset, number))

    # -- partitions ------------------------------------------------------------------------------------------------

    def commit_partition(self, partition: TopicPartition, to: int | None = None) -> None:
        log = self.logs[partition]
        log.commit(log.end if to is None else max(log.watermark, min(to, log.end)))
        self.check_partition(partition)
        waiting, self._produced = self._produced, []
        for each in waiting:
            client, _, where, offset, number = each
            if where == partition and offset < log.watermark:
                client.acknowledged(number)
            else:
                self._produced.append(each)
        marking, self._marking = self._marking, []
        for mail, offset in marking:
            if mail.partition == partition and offset < log.watermark:
                self._report(mail, ErrorCode.none)
            else:
                self._marking.append((mail, offset))

    def move_leader(self, partition: TopicPartition, number: int) -> None:
        """The new leader has the committed records, and perhaps some more."""
        log = self.logs[partition]
        log.truncate(self.random.randint(log.watermark, log.end) if number % 2 else log.watermark)
        self.check_partition(partition)
        waiting, self._produced = self._produced, []
        for each in waiting:
            if each[2] == partition:
                each[0].refused(each[4], ErrorCode.not_leader_or_follower)
            else:
                self._produced.append(each)
        marking, self._marking = self._marking, []
        for mail, offset in marking:
            if mail.partition == partition:
                self._report(mail, ErrorCode.not_leader_or_follower)
            else:
                self._marking.append((mail, offset))

    # -- markers ---------------------------------------------------------------------------------------------------

    def mark(self, number: int) -> None:
        """Before version 2, a copy may end the next transaction, so there are none on the network (ADR 12)."""
        if not self.mail:
            return
        mail = self.mail.pop(number % len(self.mail))
        if self.repeats and mail.effect.transaction_version >= 2 and self.random.random() < 0.3:
            self._late.append(mail)
        self._mark(mail)

    def mark_late(self, number: int) -> None:
        if self._late:
            self._mark(self._late.pop(number % len(self._late)))

    def _mark(self, mail: Mail) -> None:
        effect, log = mail.effect, self.logs[mail.partition]
        marker = Marker(
            effect.producer_id,
            effect.producer_epoch,
            effect.coordinator_epoch,
            effect.is_commit,
            effect.transaction_version,
        )
        verdict = log.table.judge_marker(marker)
        if isinstance(verdict, Refused):
            self._report(mail, verdict.error)
        elif isinstance(verdict, AlreadyMarked):
            self._marking.append((mail, verdict.offset))
        else:
            self._marking.append((mail, log.append(Control(marker, self.now.wall_ms))))

    def lose_marker(self, number: int) -> None:
        if self.mail:
            self._report(self.mail.pop(number % len(self.mail)), ErrorCode.request_timed_out)

    def _report(self, mail: Mail, error: ErrorCode) -> None:
        if mail.generation == self.generation:
            effect = mail.effect
            self._take(
                self.coordinator.markers_written(
                    effect.transactional_id,
                    effect.producer_id,
                    effect.producer_epoch,
                    {mail.partition: error},
                    self.now,
                )
            )

    # -- invariants ------------------------------------------------------------------------------------------------

    def begun(self, tag: Tag) -> None:
        self.contents[tag] = set()

    def commit_wanted(self, tag: Tag) -> None:
        self.wanted.add(tag)

    def told(self, tag: Tag, *, is_commit: bool) -> None:
        assert self.outcomes.setdefault(tag, is_commit) == is_commit, "one outcome"

    def _check_fence(self, sent: Sent, reply: Reply) -> None:
        request = sent.request
        if isinstance(request, InitProducer):
            assert isinstance(reply, InitProducerReply)
            if reply.error is ErrorCode.none:
                granted = (reply.producer_id, reply.producer_epoch)
                name = request.transactional_id
                self.floors[name] = max(self.floors.get(name, (-1, -1)), granted)
        elif isinstance(request, AddPartitions | EndTransaction):
            has_passed = (
                reply.error is ErrorCode.none
                if isinstance(reply, EndTransactionReply)
                else isinstance(reply, AddPartitionsReply) and reply.errors[0][1] is ErrorCode.none
            )
            if has_passed:
                assert (request.producer_id, request.producer_epoch) >= sent.floor, "a fenced producer has succeeded"

    def check_tables(self) -> None:
        assert self.coordinator.tables == self._replayed().tables, "what it knew is what its log says"
        records = sum(map(len, self.log))
        compacted = self._replayed(self.random.randint(0, records))
        assert self.coordinator.tables == compacted.tables, "and what is left of it by compaction"

    def check_partition(self, partition: TopicPartition) -> None:
        log = self.logs[partition]
        assert log.table == log.replayed(), "leading and reading back are one"
        stable = log.table.last_stable_offset()
        assert stable == stable_offset(log.entries, log.watermark)
        aborted = log.table.aborted.between(0, stable)
        assert read_committed(log.entries[:stable], aborted) == committed_contents(log.entries, stable)
        low, high = sorted(self.random.choices(range(log.end + 1), k=2))
        overlapping = [each for each in log.table.aborted if each.last_offset >= low and each.first_offset < high]
        assert log.table.aborted.between(low, high) == overlapping

    def check(self) -> None:
        """Checks atomicity: all records of a transaction or none, where every partition has its marker."""
        committed = set(chain.from_iterable(committed_contents(log.entries, log.end) for log in self.logs.values()))
        for tag, contents in self.contents.items():
            found = contents & committed
            if found:
                assert tag in self.wanted, "nobody wanted to commit it"
                assert self.outcomes.get(tag, True), "it was said to be aborted"
            if self._is_over(contents):
                assert not found or found == contents, "a torn transaction"
                assert not self.outcomes.get(tag, False) or found == contents, "it was said to be committed"

    def _is_over(self, contents: set[int]) -> bool:
        opened = {
            entry.content
            for log in self.logs.values()
            for entry in log.entries[log.table.last_stable_offset() :]
            if isinstance(entry, Batch)
        }
        return not contents & opened and not self.mail and not self._marking

    # -- the end ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Without further faults, every transaction ends."""
        for _ in range(40):
            for client in self.clients:
                client.act(may_begin=False)
            self._run_dry()
            self.wait(1_000)
        for _ in range(10):
            self._run_dry()
            self.wait(5_000)
        for log in self.logs.values():
            assert not log.table.open_transactions(), "a transaction that nobody ends"
            assert log.table.last_stable_offset() == log.end
        states = {each.state for each in self.coordinator.tables.values()}
        assert not states & {
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
        }
        assert self.coordinator.waiting == 0
        self.check()
        self.check_tables()
        assert len(self.coordinator._shard.timers) == 1
        assert not self.coordinator._shard.markers

    def _run_dry(self) -> None:
        for _ in range(50):
            self.commit()
            while self._verified:
                self.append_verified()
            self.repeats = False
            while self.mail or self._late:
                self.mark(0)
                self.mark_late(0)
            for partition in self.partitions:
                self.commit_partition(partition)
            if not self._held and not self.mail:
                return
