"""ACLs: who may, or may not, do what to which resources; and filters that select ACLs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from ottla.protocol.model.acl import CLUSTER_NAME, WILDCARD, Operation, PatternType, Permission, ResourceType
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.principals import Principal


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One ACL, with the resources that it applies to."""

    resource_type: ResourceType
    name: str
    """The name of a resource or a prefix of names, as `pattern` says; `*` with LITERAL means all resources."""
    pattern: PatternType
    principal: str
    """A principal such as `User:alice`, or `User:*` for all principals."""
    host: str
    """An IP address, a range in CIDR notation (10.0.0.0/8), or `*` for all hosts. Ranges are an extension of Ottla."""
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        verb = "allows" if self.permission is Permission.ALLOW else "denies"
        to_whom = f"{self.principal} from {'any host' if self.host == WILDCARD else self.host}"
        which = f"{self.resource_type.name} {self.pattern.name} '{self.name}'"
        return f"{which}: {verb} {self.operation.name} to {to_whom}"

    def to_fields(self) -> dict[str, str]:
        """Returns the ACL as text fields, for storage."""
        return {
            "resource_type": self.resource_type.name,
            "name": self.name,
            "pattern": self.pattern.name,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.name,
            "permission": self.permission.name,
        }

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> AclBinding:
        """Parses the result of `to_fields`. Raises KeyError or ValueError if this version cannot read the fields."""
        binding = cls(
            ResourceType[fields["resource_type"]],
            str(fields["name"]),
            PatternType[fields["pattern"]],
            str(fields["principal"]),
            str(fields["host"]),
            Operation[fields["operation"]],
            Permission[fields["permission"]],
        )
        refused = check_binding(binding)
        if refused is not None:
            raise ValueError(refused.message)
        return binding


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACLs. A field that is None or ANY matches everything."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Returns whether the filter selects the ACL."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, binding.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == binding.name
        if binding.pattern is PatternType.PREFIXED:
            return self.name.startswith(binding.name)
        return binding.name in (self.name, WILDCARD)


def check_binding(binding: AclBinding) -> Refused | None:
    """Refuses an ACL that could never apply, or whose meaning would be unclear."""
    for field in (binding.resource_type, binding.operation, binding.permission):
        if field.name == "ANY":
            return _invalid(f"{type(field).__name__} ANY is for filters; an ACL needs a definite one.")
    if binding.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        return _invalid(f"The pattern type {binding.pattern.name} is for filters; use LITERAL or PREFIXED.")
    if not binding.name:
        return _invalid("The resource name must not be empty.")
    if binding.resource_type is ResourceType.CLUSTER and binding.name != CLUSTER_NAME:
        return _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}.")
    return _check_principal(binding.principal) or _check_host(binding.host)


def _check_principal(principal: str) -> Refused | None:
    try:
        Principal.parse(principal)
    except ValueError as error:
        return _invalid(f"Invalid principal: {error}.")
    return None


def _check_host(host: str) -> Refused | None:
    if not host:
        return _invalid("The host must not be empty; * means all hosts.")
    if "/" in host:
        try:
            ip_network(host)
        except ValueError as error:
            return _invalid(f"Invalid range of hosts: {error}.")
    return None


def _invalid(message: str) -> Refused:
    return Refused(ErrorCode.invalid_request, message)
