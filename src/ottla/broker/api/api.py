"""The interface of a handler module.

A handler module has `API` and one of two functions:

* typed: `async def handle(ctx, request) -> response`. Request and response are dataclasses of the request's own
  version. The connection's next request waits for it.
* raw: `def handle_raw(ctx, body) -> Reply`, for the hot path. It takes the body's bytes and returns buffers. Its first
  stage runs at once. A future lets the connection continue with its next request, a coroutine makes it wait, and None
  means no reply at all. The broker's backlog as a reply means that nothing was done: the connection waits for the
  backlog to drain, then submits the same request again. The buffers begin with `ctx.response_header`; adding it in the
  handler saves a second future per reply.

API versions stop here: nothing below `handlers/` knows them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.partition.backlog import Backlog
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.partition.session_watches import ParkedFetch
from ottla.protocol.model.principals import ANONYMOUS, Principal
from ottla.protocol.wire.schema import response_type

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.partition.waits import Expirable
    from ottla.broker.security.sasl_session import SaslSession
    from ottla.machines.authorization import AclSession

Buffers = list[bytes | bytearray | memoryview]
"""A reply as buffers to be sent one after another: response header and body, without the size."""
Reply = Buffers | PendingReply[Buffers] | asyncio.Future[Buffers] | Coroutine[Any, Any, Buffers | None] | Backlog | None

RunReplies = bytes | Buffers | PendingReply[bytes] | PendingReply[Buffers]
"""The replies to a run of requests: as bytes, each with its size in front, or as the buffers of a single reply."""

NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class Api:
    """The key, name and versions of a Kafka API."""

    key: int
    name: str
    versions: tuple[int, int]
    """The first and the last version, inclusive."""


class ReplicaLink(ParkedFetch, Protocol):
    """The fast path for the fetches of a follower; see `replica_fetch_fast_path`."""

    def take(self, frame: memoryview) -> Buffers | PendingReply[Buffers] | None:
        """Replies to a request, now or later, or returns None without any effect if it needs the general path."""
        ...


@dataclass(slots=True)
class ConnectionState:
    """The state that the broker keeps for a connection between requests."""

    peer: str
    host: str = ""
    """The client's IP address."""
    listener: str = "PLAINTEXT"
    """The name of the listener that accepted the connection."""
    principal: Principal = ANONYMOUS
    sasl: SaslSession | None = None
    """The authentication of a connection of a listener with SASL."""
    acl_session: AclSession | None = None
    """The decisions of the authorizer for this connection, once it was asked."""
    client_software_name: str = "unknown"
    client_software_version: str = "unknown"
    replica_link: ReplicaLink | None = None
    """Serves the plain fetches of a follower."""
    waiting_fetch: Expirable | None = None
    """The parked fetch of a follower."""
    unacknowledged: int = 0
    """Number of produce requests, or runs of them, that wait for their acknowledgement."""
    is_of_broker: bool = False
    """Another broker of the cluster replicates through this connection, so its requests never wait for memory."""


@dataclass(slots=True)
class Context:
    """The context of one request."""

    broker: Broker
    connection: ConnectionState
    api: Api
    version: int
    client_id: str | None
    correlation_id: int
    response_header: bytes


def reply(ctx: Context, **values: Any) -> object:
    """Builds the response in the request's version, dropping fields that this version does not have."""
    return _make(ctx.api.key, ctx.version, None, values)


def part(ctx: Context, name: str, /, **values: Any) -> Any:
    """Builds a part of the response, by kio's name for it, in the request's version."""
    return _make(ctx.api.key, ctx.version, name, values)


def _make(api_key: int, version: int, name: str | None, values: dict[str, Any]) -> Any:
    type_, names = _shape(api_key, version, name)
    if "throttle_time" in names:
        values.setdefault("throttle_time", NO_TIME)
    return type_(**{key: value for key, value in values.items() if key in names})


@cache
def _shape(api_key: int, version: int, name: str | None) -> tuple[Any, frozenset[str]]:
    type_: Any = response_type(api_key, version)
    if name is not None:
        type_ = getattr(sys.modules[type_.__module__], name)
    return type_, frozenset(field.name for field in fields(type_))
