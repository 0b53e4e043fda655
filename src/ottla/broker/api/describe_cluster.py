"""DescribeCluster (key 60), v0-2.

Behaviour: returns the live brokers, with their addresses at the listener of the request, and the controller.
Versions: v1 endpoint type (only brokers); v2 fenced brokers (none).
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorized_operations import NOT_REQUESTED, cluster_operations
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2 import DescribeClusterRequest

API = Api(60, "DescribeCluster", (0, 2))

_BROKERS, _CONTROLLERS = 1, 2


async def handle(ctx: Context, request: DescribeClusterRequest) -> object:
    """Returns the brokers of the cluster, the controller and the cluster id."""
    broker = ctx.broker
    endpoint_type = request.endpoint_type if ctx.version >= 1 else _BROKERS
    error, message = ErrorCode.none, None
    if endpoint_type == _CONTROLLERS:
        error, message = ErrorCode.mismatched_endpoint_type, "This is the endpoint of a broker, not of a controller."
    elif endpoint_type != _BROKERS:
        error, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}."
    nodes = tuple(
        part(
            ctx,
            "DescribeClusterBroker",
            broker_id=node.id,
            host=node.host,
            port=node.port,
            rack=node.rack,
            is_fenced=False,
        )
        for node in broker.metadata.nodes(ctx.connection.listener)
    )
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(ctx, rules.DESCRIBE_CLUSTER_OPERATIONS)
    return reply(
        ctx,
        error_code=error,
        error_message=message,
        endpoint_type=endpoint_type,
        cluster_id=broker.metadata.cluster_id,
        controller_id=broker.metadata.controller_id,
        brokers=nodes if error is ErrorCode.none else (),
        cluster_authorized_operations=operations,
    )
