"""Entries of the catalog, such as credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.broker.standalone.catalog import CatalogAccess
from ottla.protocol.model.errors import ErrorCode, Refused


class CatalogEntries:
    """Implements `security.credentials.Entries` with the catalog, of which this holds a copy in memory."""

    def __init__(self, catalog: CatalogAccess) -> None:
        self._catalog = catalog
        self._entries: dict[str, bytes] = {}

    def load(self, entries: Mapping[str, bytes]) -> None:
        """Takes the entries that the catalog had at the start."""
        self._entries = dict(entries)

    async def get_entry(self, key: str) -> bytes | None:
        return self._entries.get(key)

    async def entries_under(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self._entries.items() if key.startswith(prefix)}

    async def add_entry(self, key: str, value: bytes) -> bytes:
        if key not in self._entries:
            await self._catalog.run(lambda catalog: catalog.change_entries({key: value}))
            self._entries.setdefault(key, value)
        return self._entries[key]

    async def change_entries(self, puts: Mapping[str, bytes], deletes: Sequence[str]) -> Refused | None:
        try:
            await self._catalog.run(lambda catalog: catalog.change_entries(puts, deletes))
        except OSError as error:
            return Refused(ErrorCode.kafka_storage_error, str(error))
        for key in deletes:
            self._entries.pop(key, None)
        self._entries.update(puts)
        return None
