"""ACLs for tests, and the requests that create, describe and delete them."""

from __future__ import annotations

from typing import Any

from ottla.protocol.model.access_keys import STANDARD_AUTHORIZER
from ottla.protocol.model.acl import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.principals import Principal

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root;User:ANONYMOUS"}
"""Settings of a broker that decides by ACLs. Brokers and test clients are anonymous, and so are super users."""
ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")


def acl(
    operation: Operation,
    resource_type: ResourceType = ResourceType.TOPIC,
    name: str = CLUSTER_NAME,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    principal: str = "User:alice",
    host: str = "*",
) -> AclBinding:
    return AclBinding(resource_type, name, pattern, principal, host, operation, permission)


def creation(binding: AclBinding) -> dict[str, Any]:
    """Returns an ACL as CreateAcls requests it."""
    return {
        "resource_type": int(binding.resource_type),
        "resource_name": binding.name,
        "resource_pattern_type": int(binding.pattern),
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }


def filter_values(wanted: AclFilter) -> dict[str, Any]:
    """Returns a filter as DescribeAcls and DeleteAcls request it."""
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": int(wanted.pattern),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }
