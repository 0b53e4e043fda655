"""Coordination: entries that change by compare-and-set, leases that end with their owner, watches.

Brokers know this module alone; `sqlite/`, `etcd/`, `zookeeper/` and `sim.coordination` implement it, and one
conformance suite runs against all of them.

What every implementation promises:

* Each transaction that changes something has a revision of its own, and revisions grow. An entry's version is the
  revision of the transaction that wrote it: it is never used twice, not even for a key that was deleted in between.
* `get`, `snapshot` and a `Conflict` show the latest state: what was committed before the call is in it.
* A watch delivers every transaction after its revision once, whole and in order, or says `Resync`.
* Only the owner's `renew` prolongs a lease. An event loop that hangs stops renewing, and its lease ends.

After `OutcomeUnknownError` a read alone settles nothing: the request may still be on its way and be applied after the
read. Commit again under the same conditions. If that succeeds, the first one can no longer be applied; if it
conflicts, the `Conflict` shows who wrote what.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

OPERATIONS_MAX = 128
"""Of the conditions of a commit and of its operations, each: what etcd takes by default."""
COMMIT_BYTES_MAX = 1_000_000
"""Of all values of a commit: ZooKeeper takes requests below 1 MiB."""
KEY_BYTES_MAX = 256


class UnavailableError(Exception):
    """The store could not be reached, and whatever was asked did not happen and will not."""


class OutcomeUnknownError(Exception):
    """No answer: the commit was applied, or was not, or may still be."""


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    version: Revision
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries of a prefix as of one revision, sorted by key."""

    entries: tuple[Entry, ...]
    revision: Revision


@dataclass(frozen=True, slots=True)
class IsAbsent:
    key: str


@dataclass(frozen=True, slots=True)
class HasVersion:
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
    """Removes the entry; without one it changes nothing."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """Applied. The revision is that of the transaction, or the latest one if it changed nothing."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Conflict:
    """A condition did not hold, and nothing was changed. Shows what stands under each key with a condition."""

    entries: Mapping[str, Entry | None]


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """An operation named a lease that has ended, and nothing was changed."""

    lease: LeaseId


Outcome = Committed | Conflict | LeaseEnded


@dataclass(frozen=True, slots=True)
class Change:
    """The entry as the transaction left it; None if it was deleted, by a commit or with its lease."""

    key: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction changed under the watched prefix. Its reader is complete up to this revision."""

    changes: tuple[Change, ...]
    revision: Revision

    def under(self, prefix: str) -> Batch | None:
        """The part that a watch of this prefix sees."""
        changes = tuple(change for change in self.changes if change.key.startswith(prefix))
        return Batch(changes, self.revision) if changes else None


@dataclass(frozen=True, slots=True)
class Resync:
    """The history between the reader and now is gone: take a snapshot and watch from there. The watch ends."""


Watch = AsyncGenerator[Batch | Resync, None]


class Lease(Protocol):
    """The owner's side of a lease. Times are those of the clock's `monotonic_ms`."""

    @property
    def id(self) -> LeaseId: ...

    @property
    def ttl_ms(self) -> int:
        """What the store granted, at least what was asked for: so long after the last renewal others may wait."""
        ...

    @property
    def deadline_ms(self) -> float:
        """Until then the lease is held for sure. Counts from before the last successful renewal was sent."""
        ...

    @property
    def lost(self) -> bool:
        """The store said that it has ended, or the owner revoked it. Never false again."""
        ...

    def is_alive(self, now_ms: float) -> bool:
        """Not lost, and the deadline has not passed. Past the deadline, a late renewal may still succeed."""
        ...

    async def renew(self) -> bool:
        """False if the lease is lost. Raises UnavailableError, and leaves the deadline where it is."""
        ...

    async def revoke(self) -> None:
        """Ends the lease and removes its entries. Raises UnavailableError: then it ends by its time to live."""
        ...


class Coordination(Protocol):
    """One client of the store. Its calls come from one event loop."""

    @property
    def operations_max(self) -> int:
        """How many conditions, and how many operations, one commit takes."""
        ...

    async def get(self, key: str) -> Entry | None:
        """Raises UnavailableError."""
        ...

    async def snapshot(self, prefix: str = "") -> Snapshot:
        """The entries whose keys start with the prefix. Raises UnavailableError."""
        ...

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """One transaction: if all conditions hold, all operations, else none.

        A key stands at most once among the conditions and at most once among the operations, and all operations with
        a lease name the same one. Raises UnavailableError (nothing happened), OutcomeUnknownError, and ValueError for
        what no store takes.
        """
        ...

    async def open_lease(self, ttl_ms: int) -> Lease:
        """Raises UnavailableError; a lease that was granted but not reported ends by itself."""
        ...

    def watch(self, prefix: str, after: Revision) -> Watch:
        """The transactions after the revision that changed something under the prefix.

        Goes on over lost connections by itself. Ends after a `Resync`, and when the client is closed. Close it
        (`contextlib.aclosing`) when it is left before its end.
        """
        ...

    async def close(self) -> None:
        """Ends watches and connections. Leases that were not revoked end by their time to live at the latest."""
        ...


def check_commit(conditions: Sequence[Condition], operations: Sequence[Operation]) -> None:
    """Raises ValueError for what no store takes."""
    for things in (conditions, operations):
        if len(things) > OPERATIONS_MAX:
            raise ValueError(f"{len(things)} conditions or operations in a commit, the limit is {OPERATIONS_MAX}")
        _check_keys([thing.key for thing in things])
    value_bytes = sum(len(operation.value) for operation in operations if isinstance(operation, Put))
    leases = {operation.lease for operation in operations if isinstance(operation, Put)} - {None}
    if len(leases) > 1:
        raise ValueError(f"a commit names more than one lease: {leases}")
    if value_bytes > COMMIT_BYTES_MAX:
        raise ValueError(f"{value_bytes} bytes of values in a commit, the limit is {COMMIT_BYTES_MAX}")


def _check_keys(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"the key {key!r} stands twice in a commit")
        if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise ValueError(f"the key {key!r} has {len(key.encode())} bytes, not 1 to {KEY_BYTES_MAX}")
        seen.add(key)


def lease_of(operations: Iterable[Operation]) -> LeaseId | None:
    """The lease that operations name; they name one at most."""
    for operation in operations:
        if isinstance(operation, Put) and operation.lease is not None:
            return operation.lease
    return None


def conditions_hold(conditions: Iterable[Condition], entries: Mapping[str, Entry | None]) -> bool:
    """Whether all conditions hold over the entries that stand under their keys."""
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
