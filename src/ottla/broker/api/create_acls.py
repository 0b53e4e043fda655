"""CreateAcls (key 30), v1-3.

Behaviour: creates ACLs, each with its own result; an invalid one does not affect the others. An ACL that exists already
is no error. The reply is sent when the ACLs are stored and this broker decides by them; the other brokers follow. The
host may be a range in CIDR notation, which is an extension. SECURITY_DISABLED without an authorizer.
Versions: v1 pattern types; v2 flexible; v3 the resource type USER.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.acl_messages import to_binding
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import NOT_CONFIGURED, refusal
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.create_acls.v3 import CreateAclsRequest

API = Api(30, "CreateAcls", (1, 3))


async def handle(ctx: Context, request: CreateAclsRequest) -> object:
    """Creates the valid ACLs of the request."""
    refused = refusal(ctx, rules.CREATE_ACLS)
    if refused is None and ctx.broker.authorizer is None:
        refused = NOT_CONFIGURED
    asked = [refused or to_binding(each) for each in request.creations]
    bindings = [each for each in asked if isinstance(each, AclBinding)]
    failed = await ctx.broker.metadata.acl_admin.create_acls(bindings) if bindings else None
    outcomes = [each if isinstance(each, Refused) else failed for each in asked]
    results = tuple(
        part(
            ctx,
            "AclCreationResult",
            error_code=ErrorCode.none if outcome is None else outcome.error,
            error_message=None if outcome is None else outcome.message,
        )
        for outcome in outcomes
    )
    return reply(ctx, results=results)
