"""Calls to the transaction coordinator, and other code that the transaction handlers share."""

from __future__ import annotations

from typing import TypeVar

from ottla.broker.api.api import Context
from ottla.machines.transactions.requests import Request
from ottla.protocol.model.errors import ErrorCode, Refused

R = TypeVar("R")


async def ask(ctx: Context, request: Request, transactional_id: str, expected: type[R]) -> R | Refused:
    """Asks the coordinator of a transactional id."""
    outcome = await ctx.broker.transactions.ask(request, transactional_id)
    assert isinstance(outcome, (expected, Refused)), f"unexpected outcome of {type(request).__name__}: {outcome}"
    return outcome


def fenced_in_words_of(ctx: Context, error: ErrorCode, fenced_from: int) -> ErrorCode:
    """Replaces PRODUCER_FENCED by INVALID_PRODUCER_EPOCH for clients of versions that do not know it."""
    is_older = ctx.version < fenced_from
    return ErrorCode.invalid_producer_epoch if is_older and error is ErrorCode.producer_fenced else error
