"""The ACLs of a cluster: stored in the coordination store, and followed by the authorizer of every broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ottla.broker.cluster.admin_commits import commit_all
from ottla.broker.cluster.membership import Membership
from ottla.machines.authorization import AclAuthorizer
from ottla.machines.controller.acl_requests import create_acls, delete_acls, matching_acls
from ottla.machines.controller.writes import Limits
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.errors import Refused


class ClusterAclAdmin:
    """Implements `metadata.AclAdmin` with a compare-and-set in the coordination store. Any broker can carry out a
    request; it replies when its own authorizer decides accordingly."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._limits = Limits(operations_max=membership.store.operations_max)

    async def create_acls(self, bindings: Sequence[AclBinding]) -> Refused | None:
        return await commit_all(self._membership, lambda: create_acls(self._membership.image, bindings, self._limits))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[tuple[AclBinding, ...]] | Refused:
        found = matching_acls(list(self._membership.image.acls()), filters)
        gone = [binding for bindings in found for binding in bindings]
        refused = await commit_all(self._membership, lambda: delete_acls(self._membership.image, gone, self._limits))
        return refused or found


class AclFollower:
    """Keeps the authorizer of this broker at the ACLs of the image."""

    def __init__(self, authorizer: AclAuthorizer, membership: Membership) -> None:
        self._authorizer = authorizer
        self._membership = membership
        self._known: dict[str, AclBinding] = {}
        """The ACLs that the authorizer has, by id."""

    def load(self) -> None:
        """Takes over the whole image."""
        image = self._membership.image
        self._known = {acl_id: found.value for acl_id, found in image.acls_table().items()}
        self._authorizer.replace(self._known.values(), is_complete=image.knows_all_acls())

    def follow(self, touched: Collection[str]) -> None:
        """Takes over the ACLs with these ids, which have changed."""
        image = self._membership.image
        removed = [self._known.pop(acl_id) for acl_id in touched if acl_id in self._known]
        added = {acl_id: binding for acl_id in touched if (binding := image.acl(acl_id)) is not None}
        self._known |= added
        self._authorizer.is_complete = image.knows_all_acls()
        self._authorizer.change(added.values(), removed)
