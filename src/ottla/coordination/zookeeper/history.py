"""Reads from ZooKeeper: snapshots of one revision, and the changes between two revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from kazoo.exceptions import NoNodeError

from ottla.coordination.port import Batch, Change, Entry, Revision, Snapshot, UnavailableError
from ottla.coordination.zookeeper.layout import Head, Paths, Reference, decode_changes, decode_entry, key_of
from ottla.coordination.zookeeper.store import Transactions

REQUESTS_AT_ONCE = 500
CHANGES_A_READ = 200
SNAPSHOT_TRIES = 20


class Reader:
    """Reads entries and changes."""

    def __init__(self, client: Any, paths: Paths, transactions: Transactions) -> None:
        self._client = client
        self._paths = paths
        self._read = transactions.read
        self._sync = transactions.sync

    async def get(self, key: str) -> Entry | None:
        """Returns the latest entry of a key, or None. Syncs with the leader of the ensemble first."""
        await self._sync()
        return await self._entry(key)

    async def head(self, watch: Any = None) -> Head:
        """Returns the latest revision that the connected server knows."""
        data, _ = await self._read(self._client.get_async, self._paths.revision, watch=watch)
        return Head.decode(data)

    async def synced_head(self) -> Head:
        """Returns the latest revision that all servers have agreed on."""
        await self._sync()
        return await self.head()

    async def snapshot(self, prefix: str) -> Snapshot:
        """Reads a snapshot. The nodes are read one by one, and changes in the meantime are applied from the history."""
        await self._sync()
        for _ in range(SNAPSHOT_TRIES):
            before = await self.head()
            names = await self._read(self._client.get_children_async, self._paths.entries)
            keys = [key for key in map(key_of, names) if key.startswith(prefix)]
            entries = {entry.key: entry for entry in await self._entries(keys) if entry is not None}
            after = await self.head()
            batches = await self._all_changes(before.revision, after.revision)
            if batches is None:
                continue
            state = newest(entries, [part for batch in batches if (part := batch.under(prefix)) is not None])
            return Snapshot(tuple(entry for _, entry in sorted(state.items())), after.revision)
        raise UnavailableError("the entries change faster than they can be read")

    async def _all_changes(self, after: Revision, until: Revision) -> list[Batch] | None:
        found: list[Batch] = []
        while after < until:
            batches = await self.changes(after, until)
            if batches is None:
                return None
            found += batches
            after = batches[-1].revision
        return found

    async def changes(self, after: Revision, until: Revision) -> list[Batch] | None:
        """Returns the next transactions, or the first of them if there are many. None if their history is gone."""
        revisions = range(after + 1, min(until, after + CHANGES_A_READ) + 1)
        try:
            nodes = await asyncio.gather(
                *(self._read(self._client.get_async, self._paths.change(revision)) for revision in revisions)
            )
        except NoNodeError:
            return None
        batches: list[Batch] = []
        for revision, (data, _) in zip(revisions, nodes, strict=True):
            changes = await self._resolved(decode_changes(data, Revision(revision)), Revision(revision))
            if changes is None:
                return batches or None
            batches.append(Batch(tuple(changes), Revision(revision)))
        return batches

    async def _resolved(self, found: Iterable[Change | Reference], revision: Revision) -> list[Change] | None:
        """Resolves references to large values. Returns None if such a value has been overwritten since."""
        changes: list[Change] = []
        for one in found:
            if isinstance(one, Reference):
                entry = await self._entry(one.key)
                if entry is None or entry.version != revision:
                    return None
                one = Change(one.key, entry)
            changes.append(one)
        return changes

    async def _entries(self, keys: list[str]) -> list[Entry | None]:
        found: list[Entry | None] = []
        for start in range(0, len(keys), REQUESTS_AT_ONCE):
            part = keys[start : start + REQUESTS_AT_ONCE]
            found += await asyncio.gather(*(self._entry(key) for key in part))
        return found

    async def _entry(self, key: str) -> Entry | None:
        try:
            data, _ = await self._read(self._client.get_async, self._paths.entry(key))
        except NoNodeError:
            return None
        return decode_entry(key, data)


def newest(entries: Mapping[str, Entry], batches: Iterable[Batch]) -> dict[str, Entry]:
    """Brings entries that were read one by one to a single revision, by applying all changes since the first read."""
    state = dict(entries)
    for batch in batches:
        for change in batch.changes:
            seen = state.get(change.key)
            if seen is not None and seen.version > batch.revision:
                continue
            if change.entry is None:
                state.pop(change.key, None)
            else:
                state[change.key] = change.entry
    return state
