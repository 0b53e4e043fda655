"""ListTransactions (key 66), v0-2.

Behaviour: lists the transactional ids that this broker coordinates, filtered by state, producer id, duration or name; a
client asks all brokers. A filter by duration selects only ongoing transactions.
Versions: v0 flexible; v1 by duration; v2 by a regular expression.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits
from ottla.broker.groups.topic_patterns import compile_pattern
from ottla.machines.transactions.replies import ListTransactionsReply
from ottla.machines.transactions.requests import ListTransactions
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(66, "ListTransactions", (0, 2))

_DURATION_FROM, _PATTERN_FROM = 1, 2


async def handle(ctx: Context, request: Any) -> object:
    """Lists the transactions coordinated here, filtered by state, producer, duration and a pattern of ids."""
    regex = request.transactional_id_pattern if ctx.version >= _PATTERN_FROM else None
    pattern = compile_pattern(regex) if regex else None
    if isinstance(pattern, Refused):
        return _refused(ctx, ErrorCode.invalid_regular_expression)
    wanted = ListTransactions(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        running_longer_than_ms=request.duration_filter if ctx.version >= _DURATION_FROM else -1,
        id_matches=None if pattern is None else lambda name: pattern.fullmatch(name) is not None,
    )
    outcome = await ctx.broker.transactions.ask_all(wanted)
    if isinstance(outcome, Refused):
        # A partition has just moved to another broker. Clients retry after COORDINATOR_NOT_AVAILABLE, but not after
        # NOT_COORDINATOR.
        has_moved = outcome.error is ErrorCode.not_coordinator
        return _refused(ctx, ErrorCode.coordinator_not_available if has_moved else outcome.error)
    listed = [each for each in outcome if isinstance(each, ListTransactionsReply)]
    states = tuple(
        part(
            ctx,
            "TransactionState",
            transactional_id=found.transactional_id,
            producer_id=found.producer_id,
            transaction_state=found.state,
        )
        for each in listed
        for found in each.transactions
        if permits(ctx, rules.LIST_TRANSACTIONS, found.transactional_id)
    )
    unknown = tuple(sorted({state for each in listed for state in each.unknown_states}))
    return reply(ctx, error_code=ErrorCode.none, unknown_state_filters=unknown, transaction_states=states)


def _refused(ctx: Context, error: ErrorCode) -> object:
    return reply(ctx, error_code=error, unknown_state_filters=(), transaction_states=())
