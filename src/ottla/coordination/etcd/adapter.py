"""Coordination through etcd, whose revisions, transactions, leases and watches map directly to the port.

An entry's version is etcd's `mod_revision`. All reads are linearizable. The keys of a cluster have a prefix of their
own, so that several clusters can share one etcd.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import grpc

from ottla.coordination.etcd.endpoints import Endpoints, RefusedError, stream, unary, write
from ottla.coordination.etcd.keys import Namespace
from ottla.coordination.etcd.messages import (
    EQUAL,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    MOD_REVISION,
    RANGE,
    TXN,
    Compare,
    DeleteRangeRequest,
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveResponse,
    LeaseRequest,
    LeaseRevokeResponse,
    PutRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)
from ottla.coordination.etcd.watches import EtcdWatches
from ottla.coordination.held_lease import HeldLease
from ottla.coordination.port import (
    OPERATIONS_MAX,
    Committed,
    Condition,
    Conflict,
    Delete,
    Entry,
    HasVersion,
    IsAbsent,
    Lease,
    LeaseEnded,
    LeaseId,
    Operation,
    Outcome,
    OutcomeUnknownError,
    Put,
    Revision,
    Snapshot,
    UnavailableError,
    Watch,
    check_commit,
    lease_of,
)
from ottla.ports import Clock

ENTRIES_A_PAGE = 500


class EtcdCoordination:
    """Implements `port.Coordination`. Create it with `open`."""

    operations_max = OPERATIONS_MAX

    def __init__(self, endpoints: Endpoints, namespace: Namespace, clock: Clock) -> None:
        self._endpoints = endpoints
        self._namespace = namespace
        self._clock = clock
        self._watches = EtcdWatches(endpoints, namespace)
        self._closed = False

    @classmethod
    async def open(
        cls,
        addresses: Sequence[str],
        cluster: str,
        clock: Clock,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        request_timeout_ms: int = 5000,
    ) -> Self:
        """Connects to etcd. `addresses` are host:port of the members. Raises UnavailableError if none of
        them responds."""
        client = cls(Endpoints(addresses, credentials, request_timeout_ms / 1000), Namespace(cluster), clock)
        try:
            await client.get(" ")
        except BaseException:
            await client.close()
            raise
        return client

    # -- entries ---------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        found = await self._endpoints.send(unary(RANGE, self._range_of(key), RangeResponse))
        return self._namespace.entry(found.kvs[0]) if found.kvs else None

    async def snapshot(self, prefix: str = "") -> Snapshot:
        self._check_open()
        while True:
            try:
                return await self._snapshot(prefix)
            except RefusedError as error:
                if error.code is not grpc.StatusCode.OUT_OF_RANGE:
                    raise  # else compacted between two pages

    async def _snapshot(self, prefix: str) -> Snapshot:
        """Reads a snapshot in pages, all as of the revision of the first page."""
        start, end = self._namespace.range(prefix)
        entries: list[Entry] = []
        revision = 0
        while True:
            request = RangeRequest(start, end, ENTRIES_A_PAGE, revision)
            page = await self._endpoints.send(unary(RANGE, request, RangeResponse))
            entries += [self._namespace.entry(found) for found in page.kvs]
            revision = revision or page.header.revision
            if not page.more:
                return Snapshot(tuple(entries), Revision(revision))
            start = page.kvs[-1].key + b"\0"

    async def commit(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        self._check_open()
        check_commit(conditions, operations)
        request = TxnRequest(
            compare=[self._compare(condition) for condition in conditions],
            success=[self._operation(operation) for operation in operations],
            failure=[RequestOp(range=self._range_of(condition.key)) for condition in conditions],
        )
        try:
            response = await self._endpoints.send_once(unary(TXN, request, TxnResponse))
        except RefusedError as error:
            lease = lease_of(operations)
            if error.code is grpc.StatusCode.NOT_FOUND and lease is not None:
                return LeaseEnded(lease)
            raise
        if response.succeeded:
            return Committed(Revision(response.header.revision))
        found: dict[str, Entry | None] = {}
        for condition, answer in zip(conditions, response.responses, strict=True):
            kvs = answer.range.kvs if answer.range is not None else []
            found[condition.key] = self._namespace.entry(kvs[0]) if kvs else None
        return Conflict(found)

    def watch(self, prefix: str, after: Revision) -> Watch:
        return self._watches.watch(prefix, after)

    async def close(self) -> None:
        self._closed = True
        self._watches.close()
        await self._endpoints.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the coordination client is closed")

    def _range_of(self, key: str) -> RangeRequest:
        return RangeRequest(self._namespace.full(key))

    def _compare(self, condition: Condition) -> Compare:
        key = self._namespace.full(condition.key)
        match condition:
            case IsAbsent():
                return Compare(EQUAL, MOD_REVISION, key, 0)
            case HasVersion(version=version):
                return Compare(EQUAL, MOD_REVISION, key, version)

    def _operation(self, operation: Operation) -> RequestOp:
        key = self._namespace.full(operation.key)
        match operation:
            case Put(value=value, lease=lease):
                return RequestOp(put=PutRequest(key, value, lease or 0))
            case Delete():
                return RequestOp(delete=DeleteRangeRequest(key))

    # -- leases ----------------------------------------------------------------------------------------------

    async def open_lease(self, ttl_ms: int) -> Lease:
        self._check_open()
        sent_ms = self._clock.monotonic_ms()
        request = LeaseGrantRequest(ttl_s=math.ceil(ttl_ms / 1000))
        try:
            granted = await self._endpoints.send_once(unary(LEASE_GRANT, request, LeaseGrantResponse))
        except OutcomeUnknownError as error:
            raise UnavailableError(str(error)) from error
        return EtcdLease(self._endpoints, LeaseId(granted.id), granted.ttl_s * 1000, sent_ms, self._clock)


class EtcdLease(HeldLease):
    """A lease in etcd. etcd counts from the grant or renewal, or from a later moment after an election, never an
    earlier one."""

    def __init__(self, endpoints: Endpoints, lease_id: LeaseId, ttl_ms: int, sent_ms: float, clock: Clock) -> None:
        super().__init__(lease_id, ttl_ms, sent_ms, clock, ttl_ms)
        self._endpoints = endpoints

    async def _renew(self, sent_ms: float) -> bool:
        response = await self._endpoints.send(self._keep_alive)
        return response.ttl_s > 0

    async def _keep_alive(self, channel: grpc.aio.Channel, timeout_s: float) -> LeaseKeepAliveResponse:
        """Sends one renewal. etcd offers a stream for this; opening one for each renewal is simpler, and renewals are
        rare."""
        call = stream(channel, LEASE_KEEP_ALIVE, LeaseKeepAliveResponse, timeout_s)
        try:
            await write(call, LeaseRequest(self.id))
            response = await call.read()
            if response is grpc.aio.EOF:
                raise UnavailableError("etcd ended the lease renewal without a response")
            assert isinstance(response, LeaseKeepAliveResponse)
            return response
        finally:
            call.cancel()

    async def _revoke(self) -> None:
        try:
            await self._endpoints.send(unary(LEASE_REVOKE, LeaseRequest(self.id), LeaseRevokeResponse))
        except RefusedError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
