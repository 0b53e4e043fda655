"""A producer with a transactional id that behaves as clients do: it commits acknowledged records, retries when a reply
is lost, aborts when an outcome is unknown, and stops when it is fenced."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from ottla.machines.transactions.records import NO_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.machines.transactions.replies import AddPartitionsReply, EndTransactionReply, InitProducerReply, Reply
from ottla.machines.transactions.requests import AddPartitions, EndTransaction, InitProducer, Request
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from tests.properties.transactions_world import World

TIMEOUT_MS = 10_000
FATAL = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_txn_state)


class Tag(NamedTuple):
    """The transaction of a record, from its client's point of view."""

    client: int
    number: int


class Phase(Enum):
    NEW = auto()
    """It needs an id, or a new epoch."""
    READY = auto()
    RUNNING = auto()
    ENDING = auto()
    DEAD = auto()
    """Fenced. It has to be restarted."""


class Client:
    def __init__(self, world: World, place: int, transactional_id: str, version: int) -> None:
        self.world = world
        self.place = place
        self.transactional_id = transactional_id
        self.version = version
        self.identity = (NO_PRODUCER_ID, NO_EPOCH)
        self.phase = Phase.NEW
        self.number = 0
        self.added: set[TopicPartition] = set()
        self.unacknowledged: set[int] = set()
        self.failed = False
        """Some records of this transaction may be missing: it must not be committed."""
        self.commits = False
        self.waits_for: int | None = None
        """The ticket of its request."""
        self.loses_next = False

    @property
    def tag(self) -> Tag:
        return Tag(self.place, self.number)

    # -- actions ---------------------------------------------------------------------------------------------------

    def act(self, *, may_begin: bool = True) -> None:
        if self.waits_for is not None:
            return
        match self.phase:
            case Phase.NEW:
                self._init()
            case Phase.READY if may_begin:
                self._begin()
            case Phase.RUNNING:
                self._run(may_begin)
            case Phase.ENDING:
                self._end()
            case _:
                pass

    def _init(self) -> None:
        producer_id, epoch = self.identity
        self._send(
            InitProducer(
                transactional_id=self.transactional_id,
                timeout_ms=TIMEOUT_MS,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
        )

    def _begin(self) -> None:
        self.number += 1
        self.added.clear()
        self.unacknowledged.clear()
        self.failed = False
        self.phase = Phase.RUNNING
        self.world.begun(self.tag)

    def _run(self, may_go_on: bool) -> None:
        random = self.world.random
        if self.failed:
            self.decide(is_commit=False)
        elif may_go_on and random.random() < 0.7:
            partition = random.choice(self.world.partitions)
            # Not before its transaction has begun: while the previous one is open there, they cannot be told apart (ADR
            # 12).
            is_careless = self.world.is_careless and bool(self.added) and random.random() < 0.1
            if self.version >= 2 or partition in self.added or is_careless:
                self.world.produce(self, partition)
            else:
                self._add(partition)
        elif not self.unacknowledged:
            self.decide(is_commit=random.random() < 0.7 or not may_go_on)

    def _add(self, partition: TopicPartition) -> None:
        self._send(self.add_request(partition, verify_only=False))

    def add_request(self, partition: TopicPartition, *, verify_only: bool) -> AddPartitions:
        return AddPartitions(
            transactional_id=self.transactional_id,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            partitions=frozenset({partition}),
            transaction_version=self.version,
            verify_only=verify_only,
        )

    def decide(self, *, is_commit: bool) -> None:
        is_known = bool(self.added) if self.version < 2 else bool(self.world.contents[self.tag]) or not is_commit
        if not is_known:
            # No broker knows of this transaction.
            self._ended()
            return
        self.phase, self.commits = Phase.ENDING, is_commit
        if is_commit:
            self.world.commit_wanted(self.tag)
        self._end()

    def _end(self) -> None:
        self._send(
            EndTransaction(
                transactional_id=self.transactional_id,
                producer_id=self.identity[0],
                producer_epoch=self.identity[1],
                is_commit=self.commits,
                transaction_version=self.version,
            )
        )

    def _ended(self) -> None:
        """Before version 2, sequence numbers continue across transactions: after a gap only a new epoch helps."""
        self.phase = Phase.NEW if self.failed and self.version < 2 else Phase.READY

    def _send(self, request: Request) -> None:
        self.waits_for = self.world.send(self, request)

    # -- replies ---------------------------------------------------------------------------------------------------

    def take(self, ticket: int, reply: Reply) -> None:
        if ticket != self.waits_for:
            return
        self.waits_for = None
        if self.loses_next:
            self.loses_next = False
            return
        match reply:
            case InitProducerReply():
                self._initialised(reply)
            case AddPartitionsReply():
                self._added(reply)
            case EndTransactionReply():
                self._heard_end(reply)

    def _initialised(self, reply: InitProducerReply) -> None:
        if reply.error is ErrorCode.none:
            self.identity = (reply.producer_id, reply.producer_epoch)
            self.phase = Phase.READY
        elif reply.error in FATAL:
            self.phase = Phase.DEAD

    def _added(self, reply: AddPartitionsReply) -> None:
        for partition, error in reply.errors:
            if error is ErrorCode.none:
                self.added.add(partition)
            elif error in FATAL:
                self.phase = Phase.DEAD

    def _heard_end(self, reply: EndTransactionReply) -> None:
        if reply.error is ErrorCode.none:
            if self.version >= 2:
                self.identity = (reply.producer_id, reply.producer_epoch)
            self.world.told(self.tag, is_commit=self.commits)
            self._ended()
        elif reply.error in FATAL:
            self.phase = Phase.DEAD

    def acknowledged(self, number: int) -> None:
        self.unacknowledged.discard(number)

    def refused(self, number: int, error: ErrorCode) -> None:
        """A record was not written, or its outcome is unknown."""
        if number in self.unacknowledged:
            self.unacknowledged.discard(number)
            self.failed = True
            if error in FATAL and error is not ErrorCode.invalid_txn_state:
                self.phase = Phase.DEAD

    # -- events ----------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """It stops waiting: it repeats its request, and its records may be missing."""
        self.waits_for = None
        for number in list(self.unacknowledged):
            self.refused(number, ErrorCode.request_timed_out)

    def restart(self) -> None:
        """Another process with the same transactional id."""
        self.waits_for = None
        self.identity = (NO_PRODUCER_ID, NO_EPOCH)
        self.phase = Phase.NEW
        self.unacknowledged.clear()
        self.loses_next = False
