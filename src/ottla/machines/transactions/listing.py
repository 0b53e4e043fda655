"""Lists, describes and expires transactional ids."""

from __future__ import annotations

from ottla.machines.coordinators import Ticket
from ottla.machines.transactions.records import Transaction, TransactionState
from ottla.machines.transactions.replies import (
    NONE,
    DescribeTransactionReply,
    ListedTransaction,
    ListTransactionsReply,
)
from ottla.machines.transactions.requests import DescribeTransaction, ListTransactions
from ottla.machines.transactions.shard import Shard
from ottla.machines.transactions.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode

EXPIRED_PER_STEP = 500
"""Maximum number of ids that expire in one step; the records of a step form one batch."""

LABELS = frozenset(state.label for state in TransactionState)


def describe_transaction(shard: Shard, ticket: Ticket, request: DescribeTransaction) -> None:
    """DescribeTransactions for one transactional id."""
    transaction = shard.tables.get(request.transactional_id)
    if not request.transactional_id:
        reply = DescribeTransactionReply(ErrorCode.invalid_request)
    elif transaction is None:
        reply = DescribeTransactionReply(ErrorCode.transactional_id_not_found)
    else:
        reply = DescribeTransactionReply(NONE, transaction)
    shard.answer(ticket, reply)


def list_transactions(shard: Shard, ticket: Ticket, request: ListTransactions) -> None:
    """ListTransactions for the ids of this partition."""
    listed = tuple(
        ListedTransaction(name, transaction.producer_id, transaction.state.label)
        for name, transaction in sorted(shard.tables.items())
        if _is_wanted(shard, name, transaction, request)
    )
    shard.answer(ticket, ListTransactionsReply(tuple(sorted(request.states - LABELS)), listed))


def _is_wanted(shard: Shard, name: str, transaction: Transaction, request: ListTransactions) -> bool:
    if request.states and transaction.state.label not in request.states:
        return False
    if request.producer_ids and transaction.producer_id not in request.producer_ids:
        return False
    if request.running_longer_than_ms >= 0 and not _runs_longer(shard, transaction, request.running_longer_than_ms):
        return False
    return request.id_matches is None or request.id_matches(name)


def _runs_longer(shard: Shard, transaction: Transaction, duration_ms: int) -> bool:
    """Returns whether a transaction has been running for longer than this. Only one that has started and not ended
    runs; Kafka also lists ids that have no transaction at all."""
    runs = transaction.state is TransactionState.ONGOING or transaction.state.is_prepared
    return runs and shard.now.wall_ms - transaction.started_ms > duration_ms


def expire(shard: Shard) -> None:
    """Writes tombstones for transactional ids that have been idle for too long."""
    latest_ms = shard.now.wall_ms - shard.config.id_expiration_ms
    expired = [name for name, transaction in shard.tables.items() if _is_expired(transaction, latest_ms)]
    for name in expired[:EXPIRED_PER_STEP]:
        shard.emit(name, None)
    is_more = len(expired) > EXPIRED_PER_STEP
    shard.start_timer(TimerKind.EXPIRATION, 0 if is_more else shard.config.id_expiration_check_interval_ms)


def _is_expired(transaction: Transaction, latest_ms: int) -> bool:
    is_idle = transaction.state is TransactionState.EMPTY or transaction.state.is_complete
    return is_idle and transaction.updated_ms <= latest_ms
