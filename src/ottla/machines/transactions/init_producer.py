"""InitProducerId with a transactional id: gives a producer an id and an epoch, and fences the previous producer."""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.transactions import transaction_end as ending
from ottla.machines.transactions.decisions import Cause
from ottla.machines.transactions.identity import Identity, identify
from ottla.machines.transactions.records import (
    NO_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    NO_TIME,
    Transaction,
    TransactionState,
)
from ottla.machines.transactions.replies import NONE, InitProducerReply
from ottla.machines.transactions.requests import InitProducer
from ottla.machines.transactions.shard import Shard
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

_BUMPED = branch("the epoch of a transactional producer is raised", __name__)


def init_producer(shard: Shard, ticket: Ticket, request: InitProducer) -> None:
    """InitProducerId: grants an id and an epoch, or aborts the ongoing transaction first."""
    error = _invalid(shard, request)
    transaction = shard.tables.get(request.transactional_id)
    if error is not None:
        shard.answer(ticket, InitProducerReply(error))
    elif transaction is None:
        _first(shard, ticket, request)
    else:
        _again(shard, ticket, request, transaction)


def _invalid(shard: Shard, request: InitProducer) -> ErrorCode | None:
    if not request.transactional_id:
        return ErrorCode.invalid_request
    if request.two_phase_commit:
        # This is Kafka's error if the operator has not allowed two-phase commit.
        return ErrorCode.transactional_id_authorization_failed
    if request.keep_prepared:
        return ErrorCode.unsupported_version
    if not 0 < request.timeout_ms <= shard.config.timeout_max_ms:
        return ErrorCode.invalid_transaction_timeout
    return None


def _first(shard: Shard, ticket: Ticket, request: InitProducer) -> None:
    """Grants the first epoch of a new id. A producer with an older id arrives here too, if its transactional id has
    expired."""
    producer_id = shard.take_producer_id(ticket, request, request.transactional_id)
    if producer_id is None:
        return
    first = Transaction(
        producer_id=producer_id,
        producer_epoch=0,
        timeout_ms=request.timeout_ms,
        state=TransactionState.EMPTY,
        updated_ms=shard.now.wall_ms,
        previous_producer_id=producer_id,
    )
    _grant(shard, ticket, request, first)


def _again(shard: Shard, ticket: Ticket, request: InitProducer, transaction: Transaction) -> None:
    goes_on = request.producer_id != NO_PRODUCER_ID
    identity = identify(transaction, request.producer_id, request.producer_epoch) if goes_on else None
    if identity in (Identity.FENCED, Identity.STRANGER):
        shard.answer(ticket, InitProducerReply(ErrorCode.producer_fenced))
    elif transaction.state.is_prepared:
        shard.answer(ticket, InitProducerReply(ErrorCode.concurrent_transactions))
    elif transaction.state is TransactionState.ONGOING:
        # The current producer aborts its own transaction; a new producer aborts its predecessor's. Both retry.
        cause, own_epoch = (Cause.RESTART, transaction.producer_epoch) if goes_on else (Cause.NEW_PRODUCER, NO_EPOCH)
        ending.abort_and_fence(shard, request.transactional_id, cause, own_epoch=own_epoch)
        shard.answer(ticket, InitProducerReply(ErrorCode.concurrent_transactions))
    elif identity is Identity.PREVIOUS:
        _grant(shard, ticket, request, transaction)
    else:
        _raise(shard, ticket, request, replace(transaction, last_producer_epoch=NO_EPOCH), goes_on)


def _raise(shard: Shard, ticket: Ticket, request: InitProducer, transaction: Transaction, goes_on: bool) -> None:
    """Raises the producer to the next epoch, or to a new id if the epochs are exhausted. A producer that continues may
    retry with its present id and epoch."""
    raised = replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        last_producer_epoch=transaction.producer_epoch if goes_on else NO_EPOCH,
    )
    if transaction.is_epoch_exhausted:
        producer_id = shard.take_producer_id(ticket, request, request.transactional_id)
        if producer_id is None:
            return
        raised = replace(raised, producer_id=producer_id, producer_epoch=0)
    else:
        _BUMPED()
        raised = replace(raised, producer_epoch=transaction.producer_epoch + 1)
    _grant(shard, ticket, request, raised)


def _grant(shard: Shard, ticket: Ticket, request: InitProducer, transaction: Transaction) -> None:
    granted = replace(
        transaction,
        state=TransactionState.EMPTY,
        timeout_ms=request.timeout_ms,
        partitions=NO_PARTITIONS,
        started_ms=NO_TIME,
        updated_ms=shard.now.wall_ms,
    )
    shard.emit(request.transactional_id, granted)
    shard.answer(ticket, InitProducerReply(NONE, granted.producer_id, granted.producer_epoch))
