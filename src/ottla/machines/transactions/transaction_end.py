"""The first phase of ending a transaction: the decision. It is made by the producer, by the transaction timeout, by a
new producer with the same transactional id, or by an operator."""

from __future__ import annotations

from dataclasses import replace

from ottla.machines.coordinators import Ticket
from ottla.machines.transactions import markers
from ottla.machines.transactions.decisions import Cause, Decision
from ottla.machines.transactions.identity import Identity, identify, refusal
from ottla.machines.transactions.records import (
    EPOCH_BUMPS_SINCE_VERSION,
    EPOCH_MAX,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    Transaction,
    TransactionState,
)
from ottla.machines.transactions.replies import NONE, AbortTransactionReply, EndTransactionReply
from ottla.machines.transactions.requests import AbortTransaction, EndTransaction
from ottla.machines.transactions.shard import Shard
from ottla.machines.transactions.timers import TimerKind
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

# -- ended by the producer ---------------------------------------------------------------------------------------------


_TIMED_OUT = branch("a transaction is aborted by its time-out", __name__)


def end_transaction(shard: Shard, ticket: Ticket, request: EndTransaction) -> None:
    """EndTxn: decides the outcome, or repeats the reply of an earlier attempt."""
    transaction = shard.tables.get(request.transactional_id)
    if not request.transactional_id:
        verdict: ErrorCode | None = ErrorCode.invalid_request
    elif transaction is None:
        verdict = ErrorCode.invalid_producer_id_mapping
    elif request.transaction_version >= EPOCH_BUMPS_SINCE_VERSION:
        verdict = _verdict(transaction, request)
    else:
        verdict = _verdict_without_bumps(transaction, request)
    if verdict is None:
        assert transaction is not None
        _decide(shard, ticket, request, transaction)
    elif verdict is NONE:
        assert transaction is not None
        shard.answer(ticket, EndTransactionReply(NONE, transaction.producer_id, transaction.producer_epoch))
    else:
        shard.answer(ticket, EndTransactionReply(verdict))


def _verdict(transaction: Transaction, request: EndTransaction) -> ErrorCode | None:
    """Returns None if the outcome is decided now, NONE if it was decided before and the producer retries, else an
    error.

    The epoch distinguishes a retry from the end of the next transaction. A producer that does not know whether the
    coordinator has its transaction may abort even if none has started; that too raises its epoch.
    """
    identity = identify(transaction, request.producer_id, request.producer_epoch)
    state = transaction.state
    if identity is Identity.PREVIOUS and (state.is_prepared or state.is_complete):
        return _outcome_again(state, request.is_commit)
    refused = refusal(identity)
    if refused is not None:
        return refused
    if state.is_prepared:
        return ErrorCode.concurrent_transactions
    if state is TransactionState.ONGOING or not request.is_commit:
        return None
    return ErrorCode.invalid_txn_state


def _verdict_without_bumps(transaction: Transaction, request: EndTransaction) -> ErrorCode | None:
    """Does the same for older clients, which keep their epoch: only the state reveals a retry."""
    refused = refusal(identify(transaction, request.producer_id, request.producer_epoch))
    if refused is not None:
        return refused
    if transaction.state is TransactionState.ONGOING:
        return None
    if transaction.state is TransactionState.EMPTY:
        return ErrorCode.invalid_txn_state
    return _outcome_again(transaction.state, request.is_commit)


def _outcome_again(state: TransactionState, is_commit: bool) -> ErrorCode:
    if state.is_commit != is_commit:
        return ErrorCode.invalid_txn_state
    return ErrorCode.concurrent_transactions if state.is_prepared else NONE


def _decide(shard: Shard, ticket: Ticket, request: EndTransaction, transaction: Transaction) -> None:
    bumps = request.transaction_version >= EPOCH_BUMPS_SINCE_VERSION
    next_id: int | None = NO_PRODUCER_ID
    if bumps and transaction.is_epoch_exhausted:
        next_id = shard.take_producer_id(ticket, request, request.transactional_id)
    if next_id is None:
        return
    decided = replace(
        transaction,
        state=TransactionState.PREPARE_COMMIT if request.is_commit else TransactionState.PREPARE_ABORT,
        client_version=request.transaction_version,
        next_producer_id=next_id,
    )
    if bumps:
        decided = replace(
            decided,
            producer_epoch=transaction.producer_epoch + 1,
            last_producer_epoch=transaction.producer_epoch,
        )
    _prepare(shard, request.transactional_id, decided, Cause.PRODUCER)
    goes_on_as = (decided.producer_id, decided.producer_epoch) if next_id == NO_PRODUCER_ID else (next_id, 0)
    shard.answer(ticket, EndTransactionReply(NONE, *goes_on_as))


# -- ended by somebody else --------------------------------------------------------------------------------------------


def abort_and_fence(shard: Shard, transactional_id: str, cause: Cause, *, own_epoch: int = NO_EPOCH) -> None:
    """Aborts the ongoing transaction with an epoch that nobody has, which fences its producer in the same step.

    `own_epoch` is set if the producer itself restarts: it may then ask for the raised epoch with this one.
    """
    transaction = shard.tables[transactional_id]
    assert transaction.state is TransactionState.ONGOING, "only a running transaction can be fenced"
    can_bump = transaction.producer_epoch < EPOCH_MAX
    fenced = replace(
        transaction,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=transaction.producer_epoch + 1 if can_bump else EPOCH_MAX,
        last_producer_epoch=own_epoch,
        # The markers have a higher epoch than the records, even if the producer does not know about epoch bumps.
        client_version=EPOCH_BUMPS_SINCE_VERSION if can_bump else 0,
    )
    _prepare(shard, transactional_id, fenced, cause)


def abort_by_operator(shard: Shard, ticket: Ticket, request: AbortTransaction) -> None:
    """Aborts an ongoing transaction at an operator's request."""
    transaction = shard.tables.get(request.transactional_id)
    error = NONE
    if transaction is None:
        error = ErrorCode.transactional_id_not_found
    elif transaction.state.is_prepared:
        error = ErrorCode.concurrent_transactions
    elif transaction.state is not TransactionState.ONGOING:
        error = ErrorCode.invalid_txn_state
    else:
        abort_and_fence(shard, request.transactional_id, Cause.OPERATOR)
    shard.answer(ticket, AbortTransactionReply(error))


def on_timeout(shard: Shard, transactional_id: str) -> None:
    """Aborts a transaction that is still ongoing at its deadline."""
    transaction = shard.tables.get(transactional_id)
    if transaction is not None and transaction.state is TransactionState.ONGOING:
        _TIMED_OUT()
        abort_and_fence(shard, transactional_id, Cause.TIMEOUT)


def watch_timeout(shard: Shard, transactional_id: str) -> None:
    """Starts the transaction timeout, counted from the start timestamp. A wall clock that jumped extends it by at most
    one timeout."""
    transaction = shard.tables[transactional_id]
    passed_ms = shard.now.wall_ms - transaction.started_ms
    left_ms = max(0, min(transaction.timeout_ms, transaction.timeout_ms - passed_ms))
    shard.start_timer(TimerKind.TIMEOUT, left_ms, transactional_id)


def _prepare(shard: Shard, transactional_id: str, decided: Transaction, cause: Cause) -> None:
    now_ms = shard.now.wall_ms
    shard.decisions[Decision(decided.state.is_commit, cause)] += 1
    prepared = replace(
        decided,
        updated_ms=now_ms,
        started_ms=decided.started_ms if decided.started_ms != NO_TIME else now_ms,
        previous_producer_id=decided.producer_id,
    )
    shard.stop_timer(TimerKind.TIMEOUT, transactional_id)
    shard.emit(transactional_id, prepared)
    markers.begin(shard, transactional_id)
