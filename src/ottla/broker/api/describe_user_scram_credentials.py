"""DescribeUserScramCredentials (key 50), v0.

Behaviour: lists the users with their SCRAM mechanisms and iterations, never a salt or a key. No users means all.
RESOURCE_NOT_FOUND for a user without credentials, DUPLICATE_RESOURCE for a user that is named twice.
Versions: v0 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.alter_user_scram_credentials import MECHANISMS
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0 import DescribeUserScramCredentialsRequest

API = Api(50, "DescribeUserScramCredentials", (0, 0))

_NUMBERS = {name: number for number, name in MECHANISMS.items()}


async def handle(ctx: Context, request: DescribeUserScramCredentialsRequest) -> object:
    """Returns the mechanisms of each user."""
    refused = refusal(ctx, rules.DESCRIBE_USERS)
    if refused is not None:
        return reply(ctx, error_code=refused.error, error_message=refused.message, results=())
    known = await ctx.broker.credentials.all()
    counts = Counter(each.name for each in request.users or ())
    results = tuple(_result(ctx, name, known.get(name), counts[name]) for name in counts or sorted(known))
    return reply(ctx, error_code=ErrorCode.none, error_message=None, results=results)


def _result(ctx: Context, name: str, found: dict[str, int] | None, count: int) -> Any:
    error = ErrorCode.none
    message: str | None = None
    if count > 1:
        error = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif found is None:
        error = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    shown = (found or {}) if error is ErrorCode.none else {}
    infos = tuple(
        part(ctx, "CredentialInfo", mechanism=_NUMBERS[mechanism], iterations=iterations)
        for mechanism, iterations in sorted(shown.items())
    )
    return part(
        ctx,
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=error,
        error_message=message,
        credential_infos=infos,
    )
