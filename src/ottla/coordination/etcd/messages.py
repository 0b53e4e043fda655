"""The messages of etcd's API (version 3) that coordination needs, reduced to the fields that it needs."""

# ruff: noqa: RUF009  (the calls make the fields, as dataclasses.field does)
from __future__ import annotations

from dataclasses import dataclass

from ottla.protocol.wire.protobuf_messages import Message, data, integer, message, repeated

RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

EQUAL = 0
MOD_REVISION = 2
DELETED = 1


@dataclass
class ResponseHeader(Message):
    """The cluster that replied, and the revision of its store at that moment."""

    cluster_id: int = integer(1)
    revision: int = integer(3)


@dataclass
class KeyValue(Message):
    """A key with its value, its lease (0 for none) and the revision of its last change."""

    key: bytes = data(1)
    mod_revision: int = integer(3)
    value: bytes = data(5)
    lease: int = integer(6)


@dataclass
class RangeRequest(Message):
    """Reads the keys from `key` to `range_end` (exclusive), or `key` alone without it; revision 0 is the latest."""

    key: bytes = data(1)
    range_end: bytes = data(2)
    limit: int = integer(3)
    revision: int = integer(4)


@dataclass
class RangeResponse(Message):
    """The key-value pairs of a range; `more` is true if the limit cut them off."""

    header: ResponseHeader = message(1, ResponseHeader)
    kvs: list[KeyValue] = repeated(2, KeyValue)
    more: bool = integer(3)


@dataclass
class PutRequest(Message):
    """Writes one key; lease 0 means none."""

    key: bytes = data(1)
    value: bytes = data(2)
    lease: int = integer(3)


@dataclass
class DeleteRangeRequest(Message):
    """Deletes one key."""

    key: bytes = data(1)


@dataclass
class RequestOp(Message):
    """Exactly one of the fields is set."""

    range: RangeRequest | None = message(1, RangeRequest)
    put: PutRequest | None = message(2, PutRequest)
    delete: DeleteRangeRequest | None = message(3, DeleteRangeRequest)


@dataclass
class ResponseOp(Message):
    """The result of one operation of a transaction; only reads have a field here."""

    range: RangeResponse | None = message(1, RangeResponse)


@dataclass
class Compare(Message):
    """A comparison with a revision. An absent key has revision 0."""

    result: int = integer(1)
    target: int = integer(2)
    key: bytes = data(3)
    mod_revision: int = integer(6)


@dataclass
class TxnRequest(Message):
    """Runs `success` if all comparisons hold, otherwise `failure`, in one transaction."""

    compare: list[Compare] = repeated(1, Compare)
    success: list[RequestOp] = repeated(2, RequestOp)
    failure: list[RequestOp] = repeated(3, RequestOp)


@dataclass
class TxnResponse(Message):
    """Which branch of the transaction ran, and the results of its operations in order."""

    header: ResponseHeader = message(1, ResponseHeader)
    succeeded: bool = integer(2)
    responses: list[ResponseOp] = repeated(3, ResponseOp)


@dataclass
class LeaseGrantRequest(Message):
    """Asks for a new lease with this time to live."""

    ttl_s: int = integer(1)


@dataclass
class LeaseGrantResponse(Message):
    """A granted lease; its time to live may differ from the requested one."""

    id: int = integer(2)
    ttl_s: int = integer(3)


@dataclass
class LeaseRequest(Message):
    """LeaseRevokeRequest and LeaseKeepAliveRequest."""

    id: int = integer(1)


@dataclass
class LeaseRevokeResponse(Message):
    """Confirms that a lease has ended; the header has the revision at that moment."""

    header: ResponseHeader = message(1, ResponseHeader)


@dataclass
class LeaseKeepAliveResponse(Message):
    """The remaining time to live after a renewal."""

    ttl_s: int = integer(3)
    """0 if the lease no longer exists."""


@dataclass
class WatchCreateRequest(Message):
    """Watches the keys from `key` to `range_end` (exclusive), beginning with `start_revision`."""

    key: bytes = data(1)
    range_end: bytes = data(2)
    start_revision: int = integer(3)


@dataclass
class WatchRequest(Message):
    """A message from the watcher; only the creation of a watch is used."""

    create: WatchCreateRequest | None = message(1, WatchCreateRequest)


@dataclass
class Event(Message):
    """One change of a key, a put or a delete."""

    type: int = integer(1)
    kv: KeyValue = message(2, KeyValue)


@dataclass
class WatchResponse(Message):
    """The events of one or more revisions, or the end of the watch (`canceled`)."""

    header: ResponseHeader = message(1, ResponseHeader)
    created: bool = integer(3)
    canceled: bool = integer(4)
    compact_revision: int = integer(5)
    cancel_reason: bytes = data(6)
    events: list[Event] = repeated(11, Event)
