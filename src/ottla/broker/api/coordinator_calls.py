"""Calls to the group coordinator, and other code that the group handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from ottla.broker.api.api import Context
from ottla.broker.api.authorization import refusal
from ottla.broker.api.authorization_table import AuthorizationRule
from ottla.machines.groups.records import Assignment
from ottla.machines.groups.requests import Request
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import TopicId

R = TypeVar("R")

AT_ONCE_MAX = 100
"""Maximum number of groups of one request that are asked concurrently. A request may name a million."""

_MILLISECOND = timedelta(milliseconds=1)


async def ask(ctx: Context, request: Request, group: str, expected: type[R]) -> R | Refused:
    """Asks the coordinator of a group."""
    outcome = await ctx.broker.groups.ask(request, group)
    assert isinstance(outcome, (expected, Refused)), f"unexpected outcome of {type(request).__name__}: {outcome}"
    return outcome


async def ask_permitted(
    ctx: Context, rule: AuthorizationRule, requests: Sequence[tuple[Request, str]], expected: type[R]
) -> list[R | Refused]:
    """Asks as `ask_each` does, for groups for which the client has a permission; the others are refused."""
    refused = [refusal(ctx, rule, group) for _, group in requests]
    permitted = [request for request, why in zip(requests, refused, strict=True) if why is None]
    answers = iter(await ask_each(ctx, permitted, expected))
    return [next(answers) if why is None else why for why in refused]


async def ask_each(ctx: Context, requests: Sequence[tuple[Request, str]], expected: type[R]) -> list[R | Refused]:
    """Asks several coordinators, given requests with their groups. The replies are in the same order."""
    if len(requests) == 1:
        return [await ask(ctx, *requests[0], expected)]
    answers: list[R | Refused] = []
    for at in range(0, len(requests), AT_ONCE_MAX):
        some = requests[at : at + AT_ONCE_MAX]
        answers += await asyncio.gather(*(ask(ctx, request, group, expected) for request, group in some))
    return answers


def client_host(ctx: Context) -> str:
    """Returns the client's host as Kafka prints it: an unknown host name, a slash, the address."""
    return f"/{ctx.connection.peer.rpartition(':')[0]}"


def milliseconds(duration: timedelta) -> int:
    """Returns the duration in whole milliseconds, rounded down."""
    return duration // _MILLISECOND


def by_topic(assignment: Assignment) -> list[tuple[TopicId, tuple[int, ...]]]:
    """Groups an assignment by topic."""
    partitions: dict[TopicId, list[int]] = {}
    for topic_id, index in sorted(assignment):
        partitions.setdefault(topic_id, []).append(index)
    return [(topic_id, tuple(indexes)) for topic_id, indexes in partitions.items()]
