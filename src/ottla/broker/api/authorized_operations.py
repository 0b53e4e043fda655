"""The operations that a client may perform on a resource, as replies that describe resources report them."""

from __future__ import annotations

from ottla.broker.api.api import Context
from ottla.broker.api.authorization import acl_session, permits
from ottla.broker.api.authorization_table import AuthorizationRule
from ottla.protocol.model.acl import CLUSTER_NAME, SUPPORTED_OPERATIONS, ResourceType, bit_set

NOT_REQUESTED = -(2**31)
"""Kafka's value in replies to clients that did not ask for authorized operations."""

_SUPPORTED = {type_: bit_set(operations) for type_, operations in SUPPORTED_OPERATIONS.items()}


def authorized_operations(ctx: Context, resource_type: ResourceType, name: str) -> int:
    """Returns the set of operations on the named resource that the client of this request may perform."""
    authorizer = ctx.broker.authorizer
    if authorizer is None:
        return _SUPPORTED[resource_type]
    return acl_session(authorizer, ctx.connection).permitted(resource_type, name) & _SUPPORTED[resource_type]


def cluster_operations(ctx: Context, rule: AuthorizationRule) -> int:
    """Returns the operations on the cluster that the client may perform: none, if it may not describe the cluster."""
    return authorized_operations(ctx, ResourceType.CLUSTER, CLUSTER_NAME) if permits(ctx, rule) else 0
