"""The ACLs of a single broker, which are in its catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.context import BrokerContext
from ottla.broker.standalone.catalog import CatalogAccess
from ottla.protocol.model.acl_bindings import AclBinding, AclFilter
from ottla.protocol.model.acl_entries import PREFIX, acl_key, decode_acl, encode_acl
from ottla.protocol.model.errors import ErrorCode, Refused


class StandaloneAclAdmin:
    """Implements `metadata.AclAdmin`. A change is durable in the catalog before the authorizer follows it."""

    def __init__(self, context: BrokerContext, catalog: CatalogAccess) -> None:
        self._context = context
        self._catalog = catalog
        self._changing = asyncio.Lock()

    def load(self, entries: Mapping[str, bytes]) -> None:
        """Takes over the ACLs of the catalog. One that cannot be read leaves all but super users without access."""
        if self._context.authorizer is None:
            return
        bindings: list[AclBinding] = []
        is_complete = True
        for key, value in entries.items():
            if not key.startswith(PREFIX):
                continue
            try:
                bindings.append(decode_acl(value))
            except ValueError as error:
                is_complete = False
                self._context.shared.report(f"the ACL {key} cannot be read, so only super users have access: {error}")
        self._context.authorizer.replace(bindings, is_complete=is_complete)

    async def create_acls(self, bindings: Sequence[AclBinding]) -> Refused | None:
        return await self._change(added=bindings)

    async def delete_acls(self, filters: Sequence[AclFilter]) -> Sequence[tuple[AclBinding, ...]] | Refused:
        authorizer = self._context.authorizer
        assert authorizer is not None, "the handler checks it"
        known = sorted(authorizer.acls())
        found = [tuple(binding for binding in known if each.matches(binding)) for each in filters]
        refused = await self._change(removed={binding: None for bindings in found for binding in bindings})
        return refused or found

    async def _change(self, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()) -> Refused | None:
        authorizer, store = self._context.authorizer, self._context.store
        assert authorizer is not None, "the handler checks it"
        puts = {acl_key(binding): encode_acl(binding) for binding in added}
        deletes = [acl_key(binding) for binding in removed]
        async with self._changing:
            try:
                # Use the reserve: an administrator must be able to revoke access on a full disk.
                await self._catalog.run(
                    lambda catalog: store.with_reserve(lambda: catalog.change_entries(puts, deletes))
                )
            except OSError as error:
                return Refused(ErrorCode.kafka_storage_error, str(error))
            authorizer.change(added, removed)
        return None
