"""The operations that a client may perform on a resource, as replies that describe resources report them.

Brokers have no authorizer, so every operation that applies to a resource is authorized. An authorizer filters them in
`authorized_operations`, the only place that handlers ask.
"""

from __future__ import annotations

from ottla.broker.api.api import Context
from ottla.protocol.model.acl import SUPPORTED_OPERATIONS, ResourceType, bit_set

NOT_REQUESTED = -(2**31)
"""Kafka's value in replies to clients that did not ask for authorized operations."""
CLUSTER_NAME = "kafka-cluster"
"""Kafka's name of the only resource of type CLUSTER."""

_SUPPORTED = {type_: bit_set(operations) for type_, operations in SUPPORTED_OPERATIONS.items()}


def authorized_operations(ctx: Context, resource_type: ResourceType, name: str) -> int:
    """Returns the set of operations on the named resource that the client of this request may perform."""
    return _SUPPORTED[resource_type]


def cluster_operations(ctx: Context) -> int:
    """Returns the operations on the cluster that the client of this request may perform."""
    return authorized_operations(ctx, ResourceType.CLUSTER, CLUSTER_NAME)
