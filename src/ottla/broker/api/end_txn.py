"""EndTxn (key 26), v0-5.

Behaviour: commits or aborts a transaction. The reply is sent when the decision is final. Markers are written
afterwards; until then the producer's next request gets CONCURRENT_TRANSACTIONS. A retry after a lost reply gets the
same reply.
Versions: v2 knows PRODUCER_FENCED; v3 flexible; v5 is transaction version 2: the epoch is raised with each transaction,
and the reply has the producer id and epoch to continue with.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.transaction_calls import ask, fenced_in_words_of
from ottla.machines.transactions.replies import EndTransactionReply
from ottla.machines.transactions.requests import EndTransaction
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.end_txn.v5 import EndTxnRequest

API = Api(26, "EndTxn", (0, 5))

_FENCED_FROM, _VERSION_2_FROM = 2, 5


async def handle(ctx: Context, request: EndTxnRequest) -> object:
    """Commits or aborts a transaction. Returns the next producer id and epoch to clients of transaction version 2."""
    asked = EndTransaction(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_commit=request.committed,
        transaction_version=2 if ctx.version >= _VERSION_2_FROM else 0,
    )
    refused = refusal(ctx, rules.END_TXN, request.transactional_id)
    outcome = await ask(ctx, asked, request.transactional_id, EndTransactionReply) if refused is None else refused
    if isinstance(outcome, Refused):
        outcome = EndTransactionReply(outcome.error)
    is_told = outcome.error is ErrorCode.none
    return reply(
        ctx,
        error_code=fenced_in_words_of(ctx, outcome.error, _FENCED_FROM),
        producer_id=outcome.producer_id if is_told else -1,
        producer_epoch=outcome.producer_epoch if is_told else -1,
    )
