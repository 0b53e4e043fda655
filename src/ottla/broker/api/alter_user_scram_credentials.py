"""AlterUserScramCredentials (key 51), v0.

Behaviour: creates, replaces and deletes SCRAM credentials, all of them or none. The client sends salted passwords, so
the broker never sees a password. RESOURCE_NOT_FOUND for a deletion of a credential that does not exist,
DUPLICATE_RESOURCE if a user and mechanism occur twice, UNACCEPTABLE_CREDENTIAL for iterations outside 4096 to 16384.
Versions: v0 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.security.credentials import Upsertion
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, credential_of

if TYPE_CHECKING:
    from kio.schema.alter_user_scram_credentials.v0 import AlterUserScramCredentialsRequest

API = Api(51, "AlterUserScramCredentials", (0, 0))

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SALT_BYTES_MAX = 1024


async def handle(ctx: Context, request: AlterUserScramCredentialsRequest) -> object:
    """Checks all changes, then makes them in one transaction. Each user gets one result."""
    changes: list[Any] = [*request.deletions, *request.upsertions]
    denied = refusal(ctx, rules.ALTER_USERS)
    if denied is not None:
        names = dict.fromkeys(each.name for each in changes)
        return reply(ctx, results=tuple(_result(ctx, name, denied) for name in names))
    counts = Counter((each.name, each.mechanism) for each in changes)
    known = await ctx.broker.credentials.all()
    refusals: dict[str, Refused] = {}
    for change in changes:
        refused = _check(change, counts, known)
        if refused is not None:
            refusals.setdefault(change.name, refused)
    accepted = [each for each in request.upsertions if each.name not in refusals]
    deleted = [each for each in request.deletions if each.name not in refusals]
    failure = None
    if accepted or deleted:
        deletions = [(each.name, MECHANISMS[each.mechanism]) for each in deleted]
        failure = await ctx.broker.credentials.change([_upsertion(each) for each in accepted], deletions)
    results = tuple(
        _result(ctx, name, refusals.get(name, failure)) for name in dict.fromkeys(each.name for each in changes)
    )
    return reply(ctx, results=results)


def _check(change: Any, counts: Counter[tuple[str, int]], known: dict[str, dict[str, int]]) -> Refused | None:
    mechanism = MECHANISMS.get(change.mechanism)
    if not change.name:
        return Refused(ErrorCode.unacceptable_credential, "Username must not be empty")
    if mechanism is None:
        return Refused(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if counts[change.name, change.mechanism] > 1:
        return Refused(ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request")
    iterations = getattr(change, "iterations", None)
    if iterations is None:
        if mechanism not in known.get(change.name, {}):
            return Refused(ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist")
    elif iterations < ITERATIONS_MIN:
        return Refused(ErrorCode.unacceptable_credential, "Too few iterations")
    elif iterations > ITERATIONS_MAX:
        return Refused(ErrorCode.unacceptable_credential, "Too many iterations")
    elif not change.salt or len(change.salt) > SALT_BYTES_MAX or not change.salted_password:
        return Refused(ErrorCode.unacceptable_credential, "The salt or the salted password is empty or too long")
    return None


def _upsertion(change: Any) -> Upsertion:
    mechanism = MECHANISMS[change.mechanism]
    credential = credential_of(mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations)
    return Upsertion(change.name, mechanism, credential)


def _result(ctx: Context, name: str, refused: Refused | None) -> Any:
    return part(
        ctx,
        "AlterUserScramCredentialsResult",
        user=name,
        error_code=refused.error if refused else ErrorCode.none,
        error_message=refused.message if refused else None,
    )
