"""Entries of the coordination store that are not part of the image, such as credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.coordination.port import (
    Committed,
    Coordination,
    Delete,
    IsAbsent,
    Operation,
    OutcomeUnknownError,
    Put,
    UnavailableError,
)
from ottla.protocol.model.errors import ErrorCode, Refused


class StoredEntries:
    """Implements `security.credentials.Entries` with a coordination store."""

    def __init__(self, store: Coordination) -> None:
        self._store = store

    async def get_entry(self, key: str) -> bytes | None:
        try:
            found = await self._store.get(key)
        except UnavailableError as error:
            raise OSError(f"the coordination store is not available: {error}") from error
        return None if found is None else found.value

    async def entries_under(self, prefix: str) -> Mapping[str, bytes]:
        try:
            snapshot = await self._store.snapshot(prefix)
        except UnavailableError as error:
            raise OSError(f"the coordination store is not available: {error}") from error
        return {entry.key: entry.value for entry in snapshot.entries}

    async def add_entry(self, key: str, value: bytes) -> bytes:
        try:
            outcome = await self._store.commit([IsAbsent(key)], [Put(key, value)])
        except (UnavailableError, OutcomeUnknownError) as error:
            raise OSError(f"the coordination store is not available: {error}") from error
        if isinstance(outcome, Committed):
            return value
        return await self.get_entry(key) or value

    async def change_entries(self, puts: Mapping[str, bytes], deletes: Sequence[str]) -> Refused | None:
        operations: list[Operation] = [*(Put(key, value) for key, value in puts.items()), *map(Delete, deletes)]
        if len(operations) > self._store.operations_max:
            return Refused(
                ErrorCode.invalid_request, f"At most {self._store.operations_max} changes fit into one request."
            )
        try:
            await self._store.commit([], operations)
        except UnavailableError as error:
            return Refused(ErrorCode.coordinator_not_available, f"the coordination store is not available: {error}")
        except OutcomeUnknownError:
            return Refused(ErrorCode.request_timed_out, "the outcome of the write to the coordination store is unknown")
        return None
