"""DescribeAcls (key 29), v1-3.

Behaviour: returns the ACLs that a filter selects, grouped by resource. SECURITY_DISABLED without an authorizer.
Versions: v1 pattern types; v2 flexible; v3 the resource type USER.
Not implemented: nothing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.acl_messages import entry_fields, resource_fields, to_filter
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import NOT_CONFIGURED, refusal
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3 import DescribeAclsRequest

API = Api(29, "DescribeAcls", (1, 3))


async def handle(ctx: Context, request: DescribeAclsRequest) -> object:
    """Returns the selected ACLs."""
    found = refusal(ctx, rules.DESCRIBE_ACLS) or _selected(ctx, request)
    if isinstance(found, Refused):
        return reply(ctx, error_code=found.error, error_message=found.message, resources=())
    by_resource = groupby(found, lambda binding: (binding.resource_type, binding.name, binding.pattern))
    resources = tuple(_resource(ctx, list(bindings)) for _, bindings in by_resource)
    return reply(ctx, error_code=ErrorCode.none, error_message=None, resources=resources)


def _selected(ctx: Context, request: DescribeAclsRequest) -> list[AclBinding] | Refused:
    if ctx.broker.authorizer is None:
        return NOT_CONFIGURED
    wanted = to_filter(request)
    if isinstance(wanted, Refused):
        return wanted
    return sorted(filter(wanted.matches, ctx.broker.authorizer.acls()))


def _resource(ctx: Context, bindings: list[AclBinding]) -> Any:
    acls = tuple(part(ctx, "AclDescription", **entry_fields(binding)) for binding in bindings)
    return part(ctx, "DescribeAclsResource", **resource_fields(bindings[0]), acls=acls)
