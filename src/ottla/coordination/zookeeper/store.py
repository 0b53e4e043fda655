"""Transactions over ZooKeeper's nodes.

ZooKeeper's `multi` is atomic, but its conditions differ from ours: a node's version restarts at 0 when the node was
deleted and created again, and ephemeral nodes disappear outside any transaction. Every transaction here therefore also
advances one node, `revision`, and fails if another transaction did so since this one read its inputs. It then reads
again. All changes have one order, a version is never reused, and the end of a lease is a transaction like any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from ottla.coordination.port import (
    Change,
    Committed,
    Condition,
    Conflict,
    Delete,
    Entry,
    LeaseEnded,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Put,
    Revision,
    UnavailableError,
    conditions_hold,
    lease_of,
)
from ottla.coordination.zookeeper.layout import (
    Head,
    Paths,
    decode_entry,
    decode_keys,
    encode_changes,
    encode_entry,
    encode_keys,
)
from ottla.coordination.zookeeper.session import Session

REQUEST_BYTES_MAX = 1_040_000
"""Request size limit; ZooKeeper drops the connection at 1 MiB."""
PAUSE_MS_MAX = 5.0
PRUNED_AT_ONCE = 2


@dataclass(slots=True)
class View:
    """The inputs of a transaction as of one revision. `head_version` is ZooKeeper's version of the revision node."""

    head: Head
    head_version: int
    entries: dict[str, Entry | None]
    lease_keys: set[str] | None = None
    """Keys of the requested lease; None if there is no such lease."""
    lease_is_alive: bool = False


@dataclass(slots=True)
class Plan:
    """The operations of a `multi`, and their size in bytes."""

    operations: list[tuple[str, Any]] = field(default_factory=list)
    size: int = 0

    def add(self, kind: str, path: str, *args: Any) -> None:
        """Adds an operation and its approximate size. `kind` names the operation of kazoo's transactions."""
        self.operations.append((kind, (path, *args)))
        self.size += len(path) + 60 + sum(len(one) for one in args if isinstance(one, bytes))


class Transactions:
    """Executes transactions, ordered by the revision node."""

    def __init__(self, session: Session, paths: Paths, history_max: int, timeout_s: float) -> None:
        self._session = session
        self._client = session.client
        self._paths = paths
        self._history_max = history_max
        self._timeout_s = timeout_s
        self._turns = asyncio.Lock()

    async def prepare(self) -> None:
        """Creates the nodes that every cluster has."""
        for path in (self._paths.entries, self._paths.changes, self._paths.leases, self._paths.alive):
            await self._ask(self._client.ensure_path_async, path)
        try:
            await self._ask(self._client.create_async, self._paths.revision, Head(Revision(0), Revision(0)).encode())
        except NodeExistsError:
            return

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        """Commits a transaction. Commits of one client take turns: concurrent ones would only make each other retry."""
        async with self._turn():
            return await self._commit(conditions, operations)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turns.acquire()
        except TimeoutError as error:
            raise UnavailableError(f"earlier commits took more than {self._timeout_s} s") from error
        try:
            yield
        finally:
            self._turns.release()

    async def _commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        lease = lease_of(operations)
        keys = {one.key for one in (*conditions, *operations)}
        is_synced = False
        deadline = self._deadline()
        while True:
            view = await self._view(keys, lease, deadline)
            holds = conditions_hold(conditions, view.entries)
            lease_is_alive = lease is None or (view.lease_keys is not None and view.lease_is_alive)
            if not (holds and lease_is_alive) and not is_synced:
                await self.sync()  # this server may lag behind the others
                is_synced = True
                continue
            if not holds:
                return Conflict({condition.key: view.entries[condition.key] for condition in conditions})
            if lease is not None and not lease_is_alive:
                return LeaseEnded(lease)
            revision = await self._try(self._plan(view, operations, lease), view)
            if revision is not None:
                return Committed(revision)

    async def end_lease(self, lease: LeaseId) -> None:
        """Ends a lease and deletes its entries, unless another client already has."""
        await self.sync()
        keys: set[str] = set()
        deadline = self._deadline()
        while True:
            view = await self._view(keys, lease, deadline)
            if view.lease_keys is None:
                return
            if not view.lease_keys <= view.entries.keys():
                keys |= view.lease_keys  # read again, together with them
                continue
            deletions = [
                Delete(key)
                for key in sorted(view.lease_keys)
                if (entry := view.entries[key]) is not None and entry.lease == lease
            ]
            changes, plan = self._plan(view, deletions, None)
            plan.add("delete", self._paths.lease(lease))
            if await self._try((changes, plan), view) is not None:
                return

    async def sync(self) -> None:
        """Makes later reads return what all servers have agreed on. Raises UnavailableError."""
        await self.read(self._client.sync_async, self._paths.revision)

    async def read(self, request: Any, *args: Any, **options: Any) -> Any:
        """Executes a read request. Raises UnavailableError."""
        try:
            return await self._ask(request, *args, **options)
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error

    # -- steps of a transaction ----------------------------------------------------------------------------------

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    async def _view(self, keys: Iterable[str], lease: LeaseId | None, deadline: float) -> View:
        """Reads the inputs of a transaction as of one revision. Raises UnavailableError."""
        while asyncio.get_running_loop().time() < deadline:
            view = await self._look(keys, lease)
            if view is not None:
                return view
            await asyncio.sleep(random.uniform(0, PAUSE_MS_MAX) / 1000)
        raise UnavailableError(f"the commit conflicted with commits of other clients for {self._timeout_s} s")

    async def _look(self, keys: Iterable[str], lease: LeaseId | None) -> View | None:
        """Reads once. Returns None if something changed in the meantime. ZooKeeper replies to a session's requests in
        order."""
        names = list(keys)
        requests = [(self._client.get_async, self._paths.revision)]
        requests += [(self._client.get_async, self._paths.entry(key)) for key in names]
        if lease is not None:
            requests.append((self._client.get_async, self._paths.lease(lease)))
            requests.append((self._client.exists_async, self._paths.alive_of(lease)))
        requests.append((self._client.get_async, self._paths.revision))
        answers = await asyncio.gather(*(self._find(request, path) for request, path in requests))
        (data, stat), (_, last_stat) = answers[0], answers[-1]
        if stat.version != last_stat.version:
            return None
        entries = {
            key: None if found is None else decode_entry(key, found[0])
            for key, found in zip(names, answers[1:], strict=False)
        }
        view = View(Head.decode(data), stat.version, entries)
        if lease is not None:
            found, alive = answers[-3:-1]
            view.lease_keys = None if found is None else decode_keys(found[0])
            view.lease_is_alive = alive is not None
        return view

    async def _find(self, request: Any, path: str) -> Any:
        try:
            return await self.read(request, path)
        except NoNodeError:
            return None

    def _plan(self, view: View, operations: Iterable[Operation], lease: LeaseId | None) -> tuple[list[Change], Plan]:
        revision = Revision(view.head.revision + 1)
        changes: list[Change] = []
        plan = Plan()
        for operation in operations:
            path = self._paths.entry(operation.key)
            before = view.entries[operation.key]
            match operation:
                case Put(key=key, value=value):
                    entry = Entry(key, value, revision, operation.lease)
                    plan.add("create" if before is None else "set_data", path, encode_entry(entry))
                    changes.append(Change(key, entry))
                case Delete(key=key) if before is not None:
                    plan.add("delete", path)
                    changes.append(Change(key, None))
        if lease is not None and view.lease_keys is not None:
            plan.add("check", self._paths.alive_of(lease), -1)
            mine = {one.key for one in operations if isinstance(one, Put) and one.lease is not None}
            if not mine <= view.lease_keys:
                plan.add("set_data", self._paths.lease(lease), encode_keys(view.lease_keys | mine))
        return changes, plan

    def _add_head(self, plan: Plan, changes: Sequence[Change], view: View) -> Revision:
        """Adds the operations that order the transaction among all others."""
        if not changes:
            plan.add("check", self._paths.revision, view.head_version)
            return view.head.revision
        revision, start = Revision(view.head.revision + 1), view.head.history_start
        plan.add("create", self._paths.change(revision), encode_changes(changes))
        for _ in range(PRUNED_AT_ONCE):
            if revision - start > self._history_max:
                start = Revision(start + 1)
                plan.add("delete", self._paths.change(start))
        plan.add("set_data", self._paths.revision, Head(revision, start).encode(), view.head_version)
        return revision

    async def _try(self, planned: tuple[list[Change], Plan], view: View) -> Revision | None:
        """Executes a planned transaction. Returns None if another one came first. Raises OutcomeUnknownError."""
        changes, plan = planned
        revision = self._add_head(plan, changes, view)
        if plan.size > REQUEST_BYTES_MAX:
            raise ValueError(f"a commit of {plan.size} bytes exceeds ZooKeeper's limit of {REQUEST_BYTES_MAX}")
        transaction = self._client.transaction()
        for kind, args in plan.operations:
            getattr(transaction, kind)(*args)
        results = await self._ask(transaction.commit_async)
        failures = [result for result in results if isinstance(result, KazooException)]
        if not failures:
            return revision
        if not any(isinstance(one, BadVersionError | NoNodeError | NodeExistsError) for one in failures):
            raise UnavailableError(f"ZooKeeper rejected the commit: {failures}")
        await asyncio.sleep(random.uniform(0, PAUSE_MS_MAX) / 1000)
        return None

    async def _ask(self, request: Any, *args: Any, **options: Any) -> Any:
        return await self._session.call(request, *args, timeout_s=self._timeout_s, **options)
