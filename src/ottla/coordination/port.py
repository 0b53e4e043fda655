"""The coordination port: entries that change by compare-and-set, leases that expire with their owner, and watches.

Brokers depend only on this module. `sqlite/`, `etcd/`, `zookeeper/` and `sim.coordination` implement it, and one
conformance suite runs against all of them.

Every implementation guarantees:

- Each transaction that changes something has its own revision, and revisions increase. An entry's version is the
  revision of the transaction that wrote it. It is never reused, not even for a key that was deleted in between.
- `get`, `snapshot` and a `Conflict` show the latest state, including everything committed before the call.
- A watch delivers every transaction after its revision exactly once, complete and in order, or returns `Resync`.
- Only the owner's `renew` extends a lease. An event loop that hangs stops renewing, and its lease expires.

After `OutcomeUnknownError` a read alone settles nothing: the request may still be in flight and be applied after the
read. Commit again under the same conditions. If that succeeds, the first request can no longer be applied; if it
conflicts, the `Conflict` shows what was written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

OPERATIONS_MAX = 128
"""Maximum number of conditions, and of operations, in a commit: etcd's default limit."""
COMMIT_BYTES_MAX = 1_000_000
"""Maximum size of all values in a commit: ZooKeeper accepts requests below 1 MiB."""
KEY_BYTES_MAX = 256


class UnavailableError(Exception):
    """The store could not be reached. The request was not executed and will not be."""


class OutcomeUnknownError(Exception):
    """No reply was received: the commit was applied, was not applied, or may still be."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value, version and lease."""

    key: str
    value: bytes
    version: Revision
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries with a prefix as of one revision, sorted by key."""

    entries: tuple[Entry, ...]
    revision: Revision


@dataclass(frozen=True, slots=True)
class IsAbsent:
    """The condition that a key has no entry."""

    key: str


@dataclass(frozen=True, slots=True)
class HasVersion:
    """The condition that a key's entry has this version."""

    key: str
    version: Revision


Condition = IsAbsent | HasVersion


@dataclass(frozen=True, slots=True)
class Put:
    """Writes the entry. Without a lease it stays until it is deleted, whatever lease it had before."""

    key: str
    value: bytes
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes the entry; does nothing if there is none."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit was applied. The revision is that of the transaction, or the latest one if it changed nothing."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Conflict:
    """A condition did not hold, and nothing was changed. Contains the current entry of each key with a condition."""

    entries: Mapping[str, Entry | None]


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """An operation named a lease that has expired, and nothing was changed."""

    lease: LeaseId


Outcome = Committed | Conflict | LeaseEnded


@dataclass(frozen=True, slots=True)
class Change:
    """The entry as the transaction left it; None if it was deleted, by a commit or by the end of its lease."""

    key: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one transaction under the watched prefix. Its reader is complete up to this revision."""

    changes: tuple[Change, ...]
    revision: Revision

    def under(self, prefix: str) -> Batch | None:
        """Returns the part that a watch of this prefix sees, or None."""
        changes = tuple(change for change in self.changes if change.key.startswith(prefix))
        return Batch(changes, self.revision) if changes else None


@dataclass(frozen=True, slots=True)
class Resync:
    """The history between the reader and now is gone: take a snapshot and watch from there. The watch ends."""


Watch = AsyncGenerator[Batch | Resync, None]


class Lease(Protocol):
    """The owner's side of a lease. Times are those of the clock's `monotonic_ms`."""

    @property
    def id(self) -> LeaseId:
        """Identifies the lease in `Put.lease` and `Entry.lease`."""
        ...

    @property
    def ttl_ms(self) -> int:
        """The time to live that the store granted, at least the requested one. Others may wait this long after the last
        renewal."""
        ...

    @property
    def deadline_ms(self) -> float:
        """The lease is certainly held until then. Counts from before the last successful renewal was sent."""
        ...

    @property
    def lost(self) -> bool:
        """True once the store reported the lease as expired or the owner revoked it. Never becomes false again."""
        ...

    def is_alive(self, now_ms: float) -> bool:
        """Returns whether the lease is not lost and its deadline has not passed. A late renewal may still succeed after
        that."""
        ...

    async def renew(self) -> bool:
        """Renews the lease. Returns False if it is lost. Raises UnavailableError and leaves the deadline unchanged."""
        ...

    async def revoke(self) -> None:
        """Ends the lease and removes its entries. If it raises UnavailableError, the lease expires by its
        time to live."""
        ...


class Coordination(Protocol):
    """A client of the store, used from one event loop."""

    @property
    def operations_max(self) -> int:
        """Maximum number of conditions, and of operations, in one commit."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Returns an entry, or None if there is none. Raises UnavailableError."""
        ...

    async def snapshot(self, prefix: str = "") -> Snapshot:
        """Returns the entries whose keys start with the prefix. Raises UnavailableError."""
        ...

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """Executes one transaction: if all conditions hold, all operations are applied, else none.

        A key occurs at most once among the conditions and at most once among the operations, and all operations with a
        lease name the same one. Raises UnavailableError (nothing happened), OutcomeUnknownError, and ValueError for a
        commit that no store accepts.
        """
        ...

    async def open_lease(self, ttl_ms: int) -> Lease:
        """Opens a lease. Raises UnavailableError; a lease that was granted but not reported expires by itself."""
        ...

    def watch(self, prefix: str, after: Revision) -> Watch:
        """Yields the transactions after the revision that changed something under the prefix.

        The watch survives lost connections. It ends after a `Resync`, and when the client is closed. Close it
        (`contextlib.aclosing`) if you leave it before its end.
        """
        ...

    async def close(self) -> None:
        """Ends watches and connections. Leases that were not revoked expire by their time to live at the latest."""
        ...


def check_commit(conditions: Sequence[Condition], operations: Sequence[Operation]) -> None:
    """Raises ValueError for a commit that no store accepts."""
    for things in (conditions, operations):
        if len(things) > OPERATIONS_MAX:
            raise ValueError(f"a commit has {len(things)} conditions or operations, the limit is {OPERATIONS_MAX}")
        _check_keys([thing.key for thing in things])
    value_bytes = sum(len(operation.value) for operation in operations if isinstance(operation, Put))
    leases = {operation.lease for operation in operations if isinstance(operation, Put)} - {None}
    if len(leases) > 1:
        raise ValueError(f"a commit names more than one lease: {leases}")
    if value_bytes > COMMIT_BYTES_MAX:
        raise ValueError(f"a commit has {value_bytes} bytes of values, the limit is {COMMIT_BYTES_MAX}")


def _check_keys(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"the key {key!r} occurs twice in a commit")
        if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise ValueError(f"the key {key!r} has {len(key.encode())} bytes, not 1 to {KEY_BYTES_MAX}")
        seen.add(key)


def lease_of(operations: Iterable[Operation]) -> LeaseId | None:
    """Returns the lease that the operations name, or None. They name at most one."""
    for operation in operations:
        if isinstance(operation, Put) and operation.lease is not None:
            return operation.lease
    return None


def conditions_hold(conditions: Iterable[Condition], entries: Mapping[str, Entry | None]) -> bool:
    """Returns whether all conditions hold for the given entries."""
    for condition in conditions:
        entry = entries[condition.key]
        match condition:
            case IsAbsent():
                holds = entry is None
            case HasVersion(version=version):
                holds = entry is not None and entry.version == version
        if not holds:
            return False
    return True
