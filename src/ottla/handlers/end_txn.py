"""EndTxn (key 26), v0-5.

Behaviour: the transaction is committed or aborted. The reply comes when that is decided for good; partitions are marked
behind it, and the producer's next request is told to wait (CONCURRENT_TRANSACTIONS) until they are. Whoever asks again
because the reply was lost gets it again.
Versions: v2 knows PRODUCER_FENCED; v3 flexible; v5 is transaction version 2: the epoch is raised with each end, and the
reply says with what the producer goes on.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.handlers.api import Api, Context, reply
from ottla.handlers.transaction_calls import ask, fenced_in_words_of
from ottla.machines.transactions.replies import EndTransactionReply
from ottla.machines.transactions.requests import EndTransaction
from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.end_txn.v5 import EndTxnRequest

API = Api(26, "EndTxn", (0, 5))

_FENCED_FROM, _VERSION_2_FROM = 2, 5


async def handle(ctx: Context, request: EndTxnRequest) -> object:
    asked = EndTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_commit=request.committed,
        transaction_version=2 if ctx.version >= _VERSION_2_FROM else 0,
    )
    outcome = await ask(ctx, asked, request.transactional_id, EndTransactionReply)
    if isinstance(outcome, Refused):
        outcome = EndTransactionReply(outcome.error)
    is_told = outcome.error is ErrorCode.none
    return reply(
        ctx,
        error_code=fenced_in_words_of(ctx, outcome.error, _FENCED_FROM),
        producer_id=outcome.producer_id if is_told else -1,
        producer_epoch=outcome.producer_epoch if is_told else -1,
    )
