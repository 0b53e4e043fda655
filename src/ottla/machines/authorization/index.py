"""The ACLs, indexed by the resources that they apply to.

The ACLs that apply to a resource are those with its name, those with the name `*`, and those with a prefix of its name.
There are few different lengths of prefixes, so one dictionary look-up for each length finds the last kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.machines.authorization.hosts import HostPattern, parse_host_pattern
from ottla.protocol.model.acl import WILDCARD, Operation, PatternType, Permission, ResourceType, bit_set
from ottla.protocol.model.acl_bindings import AclBinding

EVERY_OPERATION = bit_set(Operation)
_IMPLIED = {
    **dict.fromkeys((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER), Operation.DESCRIBE),
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
"""The operation that an ACL allows along with its own. An ACL that denies denies only its own."""


class Rule(NamedTuple):
    """An ACL in the form in which it is evaluated."""

    principal: str
    host: HostPattern
    operations: int
    """The operations that it allows or denies, as a set of bits."""
    denies: bool


def rule_of(binding: AclBinding) -> Rule:
    """Compiles an ACL."""
    operation, denies = binding.operation, binding.permission is Permission.DENY
    operations = bit_set({operation}) if denies else bit_set({operation, _IMPLIED.get(operation, operation)})
    if operation is Operation.ALL:
        operations = EVERY_OPERATION
    return Rule(binding.principal, parse_host_pattern(binding.host), operations, denies)


class _Resources:
    """The rules for the resources of one type."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[AclBinding, Rule]] = {}
        self.prefixed: dict[str, dict[AclBinding, Rule]] = {}
        self.lengths: Counter[int] = Counter()
        """The number of prefixes of each length."""

    def names(self, pattern: PatternType) -> dict[str, dict[AclBinding, Rule]]:
        return self.prefixed if pattern is PatternType.PREFIXED else self.literal


class AclIndex:
    """A set of ACLs with fast access to those that apply to a resource."""

    __slots__ = ("_bindings", "_by_type")

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._bindings: set[AclBinding] = set()
        self._by_type: dict[ResourceType, _Resources] = {type_: _Resources() for type_ in ResourceType}
        for binding in bindings:
            self.add(binding)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)

    def add(self, binding: AclBinding) -> None:
        """Adds an ACL, if it is not there yet."""
        if binding in self._bindings:
            return
        self._bindings.add(binding)
        resources = self._by_type[binding.resource_type]
        names = resources.names(binding.pattern)
        if binding.pattern is PatternType.PREFIXED and binding.name not in names:
            resources.lengths[len(binding.name)] += 1
        names.setdefault(binding.name, {})[binding] = rule_of(binding)

    def remove(self, binding: AclBinding) -> None:
        """Removes an ACL, if it is there."""
        if binding not in self._bindings:
            return
        self._bindings.remove(binding)
        resources = self._by_type[binding.resource_type]
        names = resources.names(binding.pattern)
        del names[binding.name][binding]
        if names[binding.name]:
            return
        del names[binding.name]
        if binding.pattern is PatternType.PREFIXED:
            resources.lengths[len(binding.name)] -= 1
            if not resources.lengths[len(binding.name)]:
                del resources.lengths[len(binding.name)]

    def matching(self, resource_type: ResourceType, name: str) -> Iterator[Rule]:
        """Returns the rules that apply to a resource, whatever their principals and hosts."""
        resources = self._by_type[resource_type]
        yield from resources.literal.get(name, {}).values()
        if name != WILDCARD:
            yield from resources.literal.get(WILDCARD, {}).values()
        for length in resources.lengths:
            if length <= len(name):
                yield from resources.prefixed.get(name[:length], {}).values()

    def of_type(self, resource_type: ResourceType) -> Iterator[tuple[AclBinding, Rule]]:
        """Returns all ACLs for resources of a type."""
        resources = self._by_type[resource_type]
        for names in (resources.literal, resources.prefixed):
            for rules in names.values():
                yield from rules.items()
