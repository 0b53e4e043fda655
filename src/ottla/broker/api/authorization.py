"""Asks the authorizer about a request. Without an authorizer, everything is permitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.api import ConnectionState, Context
from ottla.broker.api.authorization_table import AuthorizationRule
from ottla.machines.authorization import AclAuthorizer, AclSession
from ottla.protocol.model.acl import CLUSTER_NAME
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from ottla.broker.broker import Broker


def permits(ctx: Context, rule: AuthorizationRule, name: str = CLUSTER_NAME) -> bool:
    """Decides whether the client has a permission for the named resource; for rules about the cluster, without a
    name."""
    authorizer = ctx.broker.authorizer
    if authorizer is None:
        return True
    return acl_session(authorizer, ctx.connection).allows(rule.operation, rule.resource, name)


def permits_some(ctx: Context, rule: AuthorizationRule) -> bool:
    """Decides whether the client has a permission for some resource."""
    authorizer = ctx.broker.authorizer
    if authorizer is None:
        return True
    return acl_session(authorizer, ctx.connection).allows_some(rule.operation, rule.resource)


def refusal(ctx: Context, rule: AuthorizationRule, name: str = CLUSTER_NAME) -> Refused | None:
    """Returns the refusal of a client that does not have a permission; None if it has."""
    return None if permits(ctx, rule, name) else denied(rule)


def denied(rule: AuthorizationRule) -> Refused:
    """Returns the refusal of a client that does not have a permission."""
    assert rule.error is not None, "a request without this permission is not refused"
    return Refused(rule.error, f"The client has no permission to {rule.operation.name} ({rule.resource.name}).")


def is_permitted(broker: Broker, connection: ConnectionState, rule: AuthorizationRule, name: str) -> bool:
    """Decides as `permits` does, for requests that have no context."""
    authorizer = broker.authorizer
    return authorizer is None or acl_session(authorizer, connection).allows(rule.operation, rule.resource, name)


def acl_session(authorizer: AclAuthorizer, connection: ConnectionState) -> AclSession:
    """Returns the authorizer's decisions for the connection, under its present principal."""
    session = connection.acl_session
    if session is None or session.principal is not connection.principal:
        host = connection.host or connection.peer.rpartition(":")[0].strip("[]")
        session = connection.acl_session = authorizer.session(connection.principal, host)
    return session


NOT_CONFIGURED = Refused(
    ErrorCode.security_disabled, "No authorizer is configured on the broker (authorizer.class.name)."
)
