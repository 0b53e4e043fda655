"""Asking the coordinator of a transaction, and what the handlers that do so have in common."""

from __future__ import annotations

from typing import TypeVar

from ottla.handlers.api import Context
from ottla.machines.transactions.requests import Request
from ottla.model.errors import ErrorCode, Refused

R = TypeVar("R")


async def ask(ctx: Context, request: Request, transactional_id: str, expected: type[R]) -> R | Refused:
    outcome = await ctx.broker.transactions.ask(request, transactional_id)
    assert isinstance(outcome, (expected, Refused)), f"{type(request).__name__} was answered with {outcome}"
    return outcome


def fenced_in_words_of(ctx: Context, error: ErrorCode, fenced_from: int) -> ErrorCode:
    """Clients before that version do not know PRODUCER_FENCED."""
    is_older = ctx.version < fenced_from
    return ErrorCode.invalid_producer_epoch if is_older and error is ErrorCode.producer_fenced else error
