"""DeleteAcls (key 31), v1-3.

Behaviour: deletes the ACLs that filters select, and returns them for each filter. An invalid filter does not affect the
others. The reply is sent when the change is stored and this broker decides accordingly; the other brokers follow.
SECURITY_DISABLED without an authorizer.
Versions: v1 pattern types; v2 flexible; v3 the resource type USER.
Not implemented: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.acl_messages import entry_fields, resource_fields, to_filter
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import NOT_CONFIGURED, refusal
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3 import DeleteAclsRequest

API = Api(31, "DeleteAcls", (1, 3))

Outcome = Sequence[AclBinding] | Refused


async def handle(ctx: Context, request: DeleteAclsRequest) -> object:
    """Deletes the ACLs that the valid filters of the request select."""
    refused = refusal(ctx, rules.DELETE_ACLS)
    if refused is None and ctx.broker.authorizer is None:
        refused = NOT_CONFIGURED
    asked = [refused or to_filter(each) for each in request.filters]
    filters = [each for each in asked if isinstance(each, AclFilter)]
    deleted = await ctx.broker.metadata.acl_admin.delete_acls(filters) if filters else ()
    each_deleted: Sequence[Outcome] = [deleted] * len(filters) if isinstance(deleted, Refused) else deleted
    outcomes = iter(each_deleted)
    results = [_result(ctx, each if isinstance(each, Refused) else next(outcomes)) for each in asked]
    return reply(ctx, filter_results=tuple(results))


def _result(ctx: Context, outcome: Outcome) -> Any:
    if isinstance(outcome, Refused):
        values: dict[str, Any] = {"error_code": outcome.error, "error_message": outcome.message, "matching_acls": ()}
    else:
        acls = tuple(_matching(ctx, binding) for binding in outcome)
        values = {"error_code": ErrorCode.none, "error_message": None, "matching_acls": acls}
    return part(ctx, "DeleteAclsFilterResult", **values)


def _matching(ctx: Context, binding: AclBinding) -> Any:
    return part(
        ctx,
        "DeleteAclsMatchingAcl",
        error_code=ErrorCode.none,
        error_message=None,
        **resource_fields(binding),
        **entry_fields(binding),
    )
