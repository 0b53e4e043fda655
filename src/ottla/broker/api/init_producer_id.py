"""InitProducerId (key 22), v0-6.

Behaviour: returns a new producer id with epoch 0 for an idempotent producer. A producer that sends its previous id and
epoch (its sequences ran out, or it met an error) gets a new id too: without a transactional id there is no state to
keep. With a transactional id, the coordinator returns the id that belongs to it and the next epoch: the previous owner
is fenced, and its open transaction is aborted first (CONCURRENT_TRANSACTIONS until that is done).
Versions: v2 flexible; v3 producer id and epoch in the request; v4 knows PRODUCER_FENCED; v6 two-phase commit.
Not implemented: external two-phase commit (KIP-939), refused as in Kafka where it is not allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.authorization import denied, permits, permits_some, refusal
from ottla.broker.api.coordinator_calls import milliseconds
from ottla.broker.api.transaction_calls import ask, fenced_in_words_of
from ottla.machines.transactions.replies import InitProducerReply
from ottla.machines.transactions.requests import InitProducer
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v6 import InitProducerIdRequest

API = Api(22, "InitProducerId", (0, 6))

_NONE = -1
_FENCED_FROM = 4


async def handle(ctx: Context, request: InitProducerIdRequest) -> object:
    """Returns a new producer id; with a transactional id, that id's producer and next epoch, fencing earlier ones."""
    refused = _check(ctx, request)
    if refused is not None:
        return _reply(ctx, InitProducerReply(refused.error))
    if request.transactional_id is not None:
        outcome = await ask(ctx, _asked(ctx, request), request.transactional_id, InitProducerReply)
        return _reply(ctx, InitProducerReply(outcome.error) if isinstance(outcome, Refused) else outcome)
    producer_id = await ctx.broker.producer_ids.allocate()
    if isinstance(producer_id, Refused):
        return _reply(ctx, InitProducerReply(producer_id.error))
    return _reply(ctx, InitProducerReply(ErrorCode.none, producer_id, 0))


def _check(ctx: Context, request: InitProducerIdRequest) -> Refused | None:
    is_half = ctx.version >= 3 and (request.producer_id == _NONE) != (request.producer_epoch == _NONE)
    if request.transactional_id is not None:
        refused = refusal(ctx, rules.INIT_TRANSACTION, request.transactional_id)
    elif permits(ctx, rules.INIT_IDEMPOTENT_ANY) or permits_some(ctx, rules.INIT_IDEMPOTENT):
        refused = None
    else:
        refused = denied(rules.INIT_IDEMPOTENT)
    if refused is None and (request.transactional_id == "" or is_half):
        refused = Refused(ErrorCode.invalid_request)
    return refused


def _asked(ctx: Context, request: Any) -> InitProducer:
    goes_on = ctx.version >= 3
    knows_two_phases = ctx.version >= 6
    return InitProducer(
        transactional_id=request.transactional_id,
        timeout_ms=milliseconds(request.transaction_timeout),
        producer_id=request.producer_id if goes_on else _NONE,
        producer_epoch=request.producer_epoch if goes_on else _NONE,
        two_phase_commit=knows_two_phases and request.enable2_pc,
        keep_prepared=knows_two_phases and request.keep_prepared_txn,
    )


def _reply(ctx: Context, outcome: InitProducerReply) -> object:
    return reply(
        ctx,
        error_code=fenced_in_words_of(ctx, outcome.error, _FENCED_FROM),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )
