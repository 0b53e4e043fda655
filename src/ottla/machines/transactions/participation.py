"""Adds partitions to a transaction before anything is written to them: only those partitions get a marker."""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.transactions import transaction_end as ending
from ottla.machines.transactions.identity import identify, refusal
from ottla.machines.transactions.records import NO_EPOCH, Transaction, TransactionState
from ottla.machines.transactions.replies import NONE, AddPartitionsReply
from ottla.machines.transactions.requests import AddPartitions
from ottla.machines.transactions.shard import Shard
from ottla.protocol.model.errors import ErrorCode


def add_partitions(shard: Shard, ticket: Ticket, request: AddPartitions) -> None:
    """AddPartitionsToTxn: adds the partitions, or verifies that they were added."""
    transaction = shard.tables.get(request.transactional_id)
    error = _refusal(transaction, request)
    if error is not None or transaction is None:
        errors = tuple((partition, error or NONE) for partition in sorted(request.partitions))
    elif request.verify_only:
        errors = tuple((partition, _verified(transaction, partition)) for partition in sorted(request.partitions))
    else:
        _add(shard, transaction, request)
        errors = tuple((partition, NONE) for partition in sorted(request.partitions))
    shard.answer(ticket, AddPartitionsReply(errors))


def _refusal(transaction: Transaction | None, request: AddPartitions) -> ErrorCode | None:
    if not request.transactional_id:
        return ErrorCode.invalid_request
    if transaction is None:
        return ErrorCode.invalid_producer_id_mapping
    refused = refusal(identify(transaction, request.producer_id, request.producer_epoch))
    if refused is None and transaction.state.is_prepared:
        return ErrorCode.concurrent_transactions
    return refused


def _verified(transaction: Transaction, partition: tuple[str, int]) -> ErrorCode:
    return NONE if partition in transaction.partitions else ErrorCode.transaction_abortable


def _add(shard: Shard, transaction: Transaction, request: AddPartitions) -> None:
    is_ongoing = transaction.state is TransactionState.ONGOING
    if request.partitions <= transaction.partitions:
        # All partitions were added before, or there are none: this does not start a transaction.
        return
    now_ms = shard.now.wall_ms
    ongoing = replace(
        transaction,
        state=TransactionState.ONGOING,
        partitions=transaction.partitions | request.partitions,
        started_ms=transaction.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
        client_version=request.transaction_version,
        previous_producer_id=transaction.producer_id,
        last_producer_epoch=NO_EPOCH,
    )
    shard.emit(request.transactional_id, ongoing)
    if not is_ongoing:
        ending.watch_timeout(shard, request.transactional_id)
