"""AddOffsetsToTxn (key 25), v0-4.

Behaviour: adds the offsets of a group to a transaction, by adding the group's partition of `__consumer_offsets`.
Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 as v3. Clients of transaction version 2 do not send it.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.transaction_calls import ask, fenced_in_words_of
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.transactions.records import TopicPartition
from ottla.machines.transactions.replies import AddPartitionsReply
from ottla.machines.transactions.requests import AddPartitions
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4 import AddOffsetsToTxnRequest

API = Api(25, "AddOffsetsToTxn", (0, 4))

_FENCED_FROM = 2


async def handle(ctx: Context, request: AddOffsetsToTxnRequest) -> object:
    """Adds the group's partition of `__consumer_offsets` to the transaction."""
    return reply(ctx, error_code=fenced_in_words_of(ctx, await _add(ctx, request), _FENCED_FROM))


async def _add(ctx: Context, request: AddOffsetsToTxnRequest) -> ErrorCode:
    refused = refusal(ctx, rules.ADD_OFFSETS, request.transactional_id) or refusal(
        ctx, rules.ADD_OFFSETS_GROUP, request.group_id
    )
    if refused is not None:
        return refused.error
    topic = await ctx.broker.groups.ensure_topic()
    index = None if isinstance(topic, Refused) else ctx.broker.groups.partition_of(request.group_id)
    if index is None:
        return ErrorCode.coordinator_not_available
    here = TopicPartition(OFFSETS_TOPIC, index)
    asked = AddPartitions(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partitions=frozenset({here}),
    )
    outcome = await ask(ctx, asked, request.transactional_id, AddPartitionsReply)
    return outcome.error if isinstance(outcome, Refused) else dict(outcome.errors)[here]
