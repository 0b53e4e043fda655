"""Kafka's resource types and operations, and the operations that apply to each resource type."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ResourceType(IntEnum):
    """The resource types, with their codes on the wire."""

    ANY = 1
    """In filters: every type."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    """The operations, with their codes on the wire. Each is also the number of its bit in a set of operations."""

    ANY = 1
    """In filters: every operation."""
    ALL = 2
    """In ACLs: every operation."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    """The ways in which an ACL names resources, with their codes on the wire."""

    ANY = 1
    """In filters: patterns of every type with this very name."""
    MATCH = 2
    """In filters: every pattern that applies to the resource of this name."""
    LITERAL = 3
    """The resource of this name; `*` means all resources."""
    PREFIXED = 4
    """All resources whose names begin with this."""


class Permission(IntEnum):
    """The effect of an ACL, with its code on the wire."""

    ANY = 1
    """In filters: both."""
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
"""Kafka's name of the only resource of type CLUSTER."""
WILDCARD = "*"
"""The name of all resources, and the host of all clients."""
EVERYONE = "User:*"
"""The principal that stands for all principals."""

_O = Operation
SUPPORTED_OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {_O.READ, _O.WRITE, _O.CREATE, _O.DESCRIBE, _O.DELETE, _O.ALTER, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}
    ),
    ResourceType.GROUP: frozenset({_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
    ResourceType.CLUSTER: frozenset(
        {
            _O.CREATE,
            _O.CLUSTER_ACTION,
            _O.DESCRIBE_CONFIGS,
            _O.ALTER_CONFIGS,
            _O.IDEMPOTENT_WRITE,
            _O.ALTER,
            _O.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({_O.DESCRIBE}),
    ResourceType.USER: frozenset({_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS}),
}


def bit_set(operations: Iterable[Operation]) -> int:
    """Encodes a set of operations as a bit field, as replies carry it."""
    bits = 0
    for operation in operations:
        bits |= 1 << operation
    return bits
