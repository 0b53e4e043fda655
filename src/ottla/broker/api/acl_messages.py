"""Translates ACLs and filters between requests and the broker, for the three APIs of ACLs."""

from __future__ import annotations

from typing import Any

from ottla.protocol.model.acl import Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter, check_binding
from ottla.protocol.model.errors import ErrorCode, Refused

_UNKNOWN = Refused(ErrorCode.invalid_request, "Unknown resource type, pattern type, operation or permission type.")


def to_binding(asked: Any) -> AclBinding | Refused:
    """Translates an ACL to create, or returns the reason for refusing it."""
    try:
        binding = AclBinding(
            ResourceType(asked.resource_type),
            asked.resource_name,
            PatternType(asked.resource_pattern_type),
            asked.principal,
            asked.host,
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError:
        return _UNKNOWN
    return check_binding(binding) or binding


def to_filter(asked: Any) -> AclFilter | Refused:
    """Translates a filter, or returns the reason for refusing it."""
    try:
        return AclFilter(
            ResourceType(asked.resource_type_filter),
            asked.resource_name_filter,
            PatternType(asked.pattern_type_filter),
            asked.principal_filter,
            asked.host_filter,
            Operation(asked.operation),
            Permission(asked.permission_type),
        )
    except ValueError:
        return _UNKNOWN


def resource_fields(binding: AclBinding) -> dict[str, Any]:
    """Returns the fields of a reply that name the resources of an ACL."""
    return {
        "resource_type": int(binding.resource_type),
        "resource_name": binding.name,
        "pattern_type": int(binding.pattern),
    }


def entry_fields(binding: AclBinding) -> dict[str, Any]:
    """Returns the fields of a reply that say what an ACL allows or denies, and to whom."""
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": int(binding.operation),
        "permission_type": int(binding.permission),
    }
