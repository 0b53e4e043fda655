"""Writes that create and delete ACLs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.coordination.port import Delete, Put
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.writes import Limits, Packing, Write
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.acl_entries import acl_key, encode_acl


def create_acls(image: ClusterImage, bindings: Iterable[AclBinding], limits: Limits) -> list[Write]:
    """Returns the writes that store ACLs, without those that the image already has. The caller has validated them."""
    packing = Packing(limits, (), lambda count: f"{count} ACL(s) created")
    for binding in dict.fromkeys(bindings):
        key = acl_key(binding)
        if image.version_of(key) is None:
            packing.add([image.unchanged(key)], [Put(key, encode_acl(binding))])
    return packing.writes()


def matching_acls(bindings: Sequence[AclBinding], filters: Sequence[AclFilter]) -> list[tuple[AclBinding, ...]]:
    """Returns the ACLs that each filter selects, in a stable order."""
    return [tuple(sorted(binding for binding in bindings if each.matches(binding))) for each in filters]


def delete_acls(image: ClusterImage, bindings: Iterable[AclBinding], limits: Limits) -> list[Write]:
    """Returns the writes that delete ACLs of the image."""
    packing = Packing(limits, (), lambda count: f"{count} ACL(s) deleted")
    for binding in dict.fromkeys(bindings):
        key = acl_key(binding)
        if image.version_of(key) is not None:
            packing.add([image.unchanged(key)], [Delete(key)])
    return packing.writes()
