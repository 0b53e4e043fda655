"""The transactional batches of a produce request, and the verification of their transaction with its coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ottla.broker.clock_sleep import sleep
from ottla.broker.partition.batch_validation import NO_GUARD, BatchOrigin, guard_for
from ottla.broker.partition.transaction_verification import PAUSES_MS, VerificationRequest, is_early
from ottla.machines.transactions.records import TopicPartition
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, read_header
from ottla.protocol.wire.produce import ProduceRequest, TopicKey

if TYPE_CHECKING:
    from ottla.broker.api.api import Context
    from ottla.broker.partition.partition import Partition

ABORTABLE_FROM = 11
"""Clients from this version on know TRANSACTION_ABORTABLE (KIP-1050)."""
VERSION_2_FROM = 12
"""Clients from this version on let the broker add partitions to a transaction (KIP-890)."""
_ATTRIBUTES_LOW_AT = 22
_UNREACHED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.request_timed_out,
    }
)
NOT_LED = Refused(
    ErrorCode.not_leader_or_follower, "the leader changed while the transaction was verified with its coordinator"
)
Place = tuple[TopicKey, int]


def has_transactional(request: ProduceRequest) -> bool:
    """Whether the request has a transactional batch."""
    return any(_is_transactional(records) for _, _, records in _batches(request))


def _batches(request: ProduceRequest) -> Iterator[tuple[TopicKey, int, memoryview | None]]:
    for key, partitions in request.topics:
        for index, records in partitions:
            yield key, index, records


def _is_transactional(records: memoryview | None) -> bool:
    return (
        records is not None and len(records) >= HEADER_BYTES and bool(records[_ATTRIBUTES_LOW_AT] & TRANSACTIONAL_BIT)
    )


class TransactionalBatches:
    """The transactional batches of one request, by topic and partition."""

    def __init__(self, ctx: Context, request: ProduceRequest) -> None:
        self._ctx = ctx
        self._transactional_id = request.transactional_id or ""
        self.transaction_version = 2 if ctx.version >= VERSION_2_FROM else 0
        self.refused: dict[Place, Refused] = {}
        self._guards: dict[Place, int] = {}
        self._leader_epochs: dict[Place, int] = {}
        """Leader epochs from before the coordinator was asked: a partition that changed its role since has lost its
        guards."""
        self._asked: dict[TopicPartition, Place] = {}
        self._producer: tuple[int, int] = (-1, -1)
        self._headers = headers = {
            (key, index): read_header(records)
            for key, index, records in _batches(request)
            if records is not None and _is_transactional(records)
        }
        refused = self._refusal_of_all(headers)
        if refused is not None:
            self.refused = dict.fromkeys(headers, refused)
            return
        self._take_guards()

    @property
    def must_ask(self) -> bool:
        """Whether the coordinator has to be asked."""
        return bool(self._asked)

    def guarded(self, place: Place) -> BatchOrigin:
        """Returns the guard to present with the batch at this place."""
        return BatchOrigin(self._guards.get(place, NO_GUARD), self.transaction_version)

    def _refusal_of_all(self, headers: dict[Place, BatchHeader]) -> Refused | None:
        if not self._transactional_id:
            return Refused(ErrorCode.transactional_id_authorization_failed, "the request has no transactional id")
        if len({header.producer_id for header in headers.values()}) > 1:
            return Refused(
                ErrorCode.invalid_producer_id_mapping, "the request has transactional batches of more than one producer"
            )
        return None

    def _take_guards(self) -> None:
        self._guards.clear()
        self._asked.clear()
        for place, header in self._headers.items():
            if place not in self.refused:
                self._take_guard(place, header)

    def _has_lost_guards(self) -> bool:
        """Whether a marker has arrived in the meantime, of this transaction or, more often, of the one before it."""
        return any(not self._has(place, guard) for place, guard in self._guards.items())

    def _has(self, place: Place, guard: int) -> bool:
        partition = self._partition(place)
        known = partition.log.transactions.verifications.get(self._producer[0]) if partition is not None else None
        return known is not None and known.guard == guard

    def _take_guard(self, place: Place, header: BatchHeader) -> None:
        partition = self._partition(place)
        if partition is None or not partition.is_led_here:
            # This broker may become its leader before the coordinator replies for the others, but this partition was
            # not asked for.
            self.refused[place] = NOT_LED
            return
        if partition.topic.internal:
            return
        self._leader_epochs[place] = partition.leader_epoch
        guard = guard_for(partition.log, header, self._ctx.broker.clock.now_ms())
        if isinstance(guard, Refused):
            self.refused[place] = guard
        elif guard != NO_GUARD:
            self._guards[place] = guard
            self._asked[TopicPartition(partition.topic.name, partition.index)] = place
            self._producer = header.producer_id, header.producer_epoch

    def _partition(self, place: Place) -> Partition | None:
        topic = self._ctx.broker.topic_by(place[0])
        return topic.partition(place[1]) if topic is not None else None

    async def ask(self) -> None:
        """Asks the coordinator. Batches that it refuses are not appended."""
        broker = self._ctx.broker
        errors: Mapping[TopicPartition, ErrorCode] = {}
        for pause_ms in PAUSES_MS:
            asked = VerificationRequest(
                self._transactional_id, *self._producer, frozenset(self._asked), self.transaction_version
            )
            errors = await broker.verifier.verify(asked)
            if is_early(asked, errors.values()):
                await sleep(broker.clock, pause_ms)
            elif self.transaction_version < 2 or not self._has_lost_guards():
                break  # before version 2 the coordinator cannot tell a late batch from one of the next transaction
            self._take_guards()
            if not self._asked:
                break
        else:
            # The current guards were taken after the last reply.
            errors = dict.fromkeys(self._asked, ErrorCode.concurrent_transactions)
        for name, place in self._asked.items():
            error = errors.get(name, ErrorCode.none)
            if error is not ErrorCode.none:
                self.refused[place] = self._as_told(error)
        for place, leader_epoch in self._leader_epochs.items():
            partition = self._partition(place)
            if partition is None or not partition.is_led_here or partition.leader_epoch != leader_epoch:
                self.refused[place] = NOT_LED

    def _as_told(self, error: ErrorCode) -> Refused:
        """Translates an error into one that the client knows. If the client is to retry, the error must not make it
        look for another leader first."""
        if error in _UNREACHED or (error is ErrorCode.concurrent_transactions and self.transaction_version < 2):
            why = f"could not verify the transaction with its coordinator: {error.name}"
            return Refused(ErrorCode.not_enough_replicas, why)
        if error is ErrorCode.transaction_abortable and self._ctx.version < ABORTABLE_FROM:
            error = ErrorCode.invalid_txn_state
        return Refused(error, "rejected by the transaction coordinator")
