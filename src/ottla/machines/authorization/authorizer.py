"""The authorizer: Kafka's semantics of ACLs.

An operation is allowed if an ACL allows it and none denies it. READ, WRITE, DELETE and ALTER also allow DESCRIBE, and
ALTER_CONFIGS also allows DESCRIBE_CONFIGS. Super users may do everything. A resource to which no ACL applies is closed,
or open if `allow.everyone.if.no.acl.found` says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ottla.machines.authorization.hosts import matches_host, parse_address
from ottla.machines.authorization.index import EVERY_OPERATION, AclIndex, Rule
from ottla.protocol.model.acl import EVERYONE, WILDCARD, Operation, PatternType, ResourceType
from ottla.protocol.model.acl_bindings import AclBinding
from ottla.protocol.model.principals import Principal

DECISIONS_MAX = 2_000
"""Maximum number of resources whose decisions a session keeps. A client can ask for any number of names."""
_ANY_NAME = "hardcode"
"""The name by which Kafka asks first whether a principal may write to some topic."""


class AclAuthorizer:
    """Decides by a set of ACLs. `version` changes whenever the set does."""

    __slots__ = ("_index", "_is_open", "_super_users", "is_complete", "version")

    def __init__(
        self, super_users: Collection[Principal] = (), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._is_open = allow_everyone_if_no_acl_found
        self._index = AclIndex()
        self.is_complete = True
        """Whether all ACLs are known. Otherwise only super users are authorized, because an unknown ACL may deny."""
        self.version = 0

    def __len__(self) -> int:
        return len(self._index)

    def acls(self) -> Iterator[AclBinding]:
        """Returns all ACLs, in no particular order."""
        return iter(self._index)

    def replace(self, bindings: Iterable[AclBinding], *, is_complete: bool = True) -> None:
        """Replaces all ACLs."""
        self._index = AclIndex(bindings)
        self.is_complete = is_complete
        self.version += 1

    def change(self, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()) -> None:
        """Adds and removes ACLs."""
        for binding in removed:
            self._index.remove(binding)
        for binding in added:
            self._index.add(binding)
        self.version += 1

    def session(self, principal: Principal, host: str) -> AclSession:
        """Returns the decisions for one client, which are kept until the ACLs change."""
        return AclSession(self, principal, host)

    # -- decisions ------------------------------------------------------------------------------------------------

    def is_super_user(self, principal: Principal) -> bool:
        """Returns whether the principal may do everything."""
        return principal in self._super_users

    def permitted(self, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        """Returns the operations on a resource that a client may perform, as a set of bits."""
        if self.is_super_user(principal):
            return EVERY_OPERATION
        if not self.is_complete:
            return 0
        who, address = str(principal), parse_address(host)
        allowed = denied = 0
        has_acls = False
        for rule in self._index.matching(resource_type, name):
            has_acls = True
            if rule.principal in (who, EVERYONE) and matches_host(rule.host, address):
                if rule.denies:
                    denied |= rule.operations
                else:
                    allowed |= rule.operations
        if not has_acls:
            return EVERY_OPERATION if self._is_open else 0
        return allowed & ~denied

    def authorize(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Decides whether a client may perform an operation on a resource."""
        return bool(self.permitted(principal, host, resource_type, name) >> operation & 1)

    def authorize_some(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Decides whether a client may perform an operation on some resource of a type. Implied operations do not
        count, as in Kafka."""
        if self.authorize(principal, host, operation, resource_type, _ANY_NAME):
            return True
        if not self.is_complete:
            return False
        allowed: list[AclBinding] = []
        denied: set[tuple[PatternType, str]] = set()
        for binding, rule in self._rules_for(principal, host, operation, resource_type):
            if rule.denies:
                denied.add((binding.pattern, binding.name))
            else:
                allowed.append(binding)
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_dominated(binding, denied) for binding in allowed)

    def _rules_for(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> Iterator[tuple[AclBinding, Rule]]:
        who, address = str(principal), parse_address(host)
        for binding, rule in self._index.of_type(resource_type):
            is_about_it = binding.operation in (operation, Operation.ALL)
            if is_about_it and rule.principal in (who, EVERYONE) and matches_host(rule.host, address):
                yield binding, rule


def _is_dominated(allowed: AclBinding, denied: set[tuple[PatternType, str]]) -> bool:
    """Returns whether some ACL denies everything that this one allows."""
    if allowed.pattern is PatternType.LITERAL and allowed.name == WILDCARD:
        return False
    if allowed.pattern is PatternType.LITERAL and (PatternType.LITERAL, allowed.name) in denied:
        return True
    return any((PatternType.PREFIXED, allowed.name[:length]) in denied for length in range(1, len(allowed.name) + 1))


class AclSession:
    """The decisions for one client. They are computed once and kept until the ACLs change."""

    __slots__ = ("_authorizer", "_decisions", "_some", "_version", "host", "principal")

    def __init__(self, authorizer: AclAuthorizer, principal: Principal, host: str) -> None:
        self._authorizer = authorizer
        self._version = authorizer.version
        self._decisions: dict[tuple[ResourceType, str], int] = {}
        self._some: dict[tuple[ResourceType, Operation], bool] = {}
        self.principal = principal
        self.host = host

    def permitted(self, resource_type: ResourceType, name: str) -> int:
        """Returns the operations on a resource that the client may perform, as a set of bits."""
        self._forget_outdated()
        known = self._decisions.get((resource_type, name))
        if known is None:
            known = self._authorizer.permitted(self.principal, self.host, resource_type, name)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[resource_type, name] = known
        return known

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Decides whether the client may perform an operation on a resource."""
        return bool(self.permitted(resource_type, name) >> operation & 1)

    def allows_some(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Decides whether the client may perform an operation on some resource of a type."""
        self._forget_outdated()
        known = self._some.get((resource_type, operation))
        if known is None:
            known = self._authorizer.authorize_some(self.principal, self.host, operation, resource_type)
            self._some[resource_type, operation] = known
        return known

    def _forget_outdated(self) -> None:
        if self._version != self._authorizer.version:
            self._version = self._authorizer.version
            self._decisions.clear()
            self._some.clear()
