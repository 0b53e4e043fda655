"""Routes a frame to its handler and encodes the reply: the entry point for the server."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.api import api_versions, produce, replica_fetch_fast_path
from ottla.broker.api.api import Buffers, ConnectionState, Context, Reply, RunReplies
from ottla.broker.api.authorization import is_permitted
from ottla.broker.api.authorization_table import FETCH_AS_FOLLOWER
from ottla.broker.api.error_replies import error_reply
from ottla.broker.api.registry import HANDLERS
from ottla.broker.api.reply_errors import count_errors
from ottla.protocol.model.acl import CLUSTER_NAME
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.headers import RequestHeader, parse_request_header, response_header
from ottla.protocol.wire.primitives import MalformedRequest
from ottla.protocol.wire.schema import decode, encode, request_type

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.handlers")

KEEP_TIME_THEMSELVES = (0, 1)
"""Produce and Fetch, which measure their durations themselves because they know what they waited for."""

Handle = Callable[[Context, Any], Awaitable[object]]


def dispatch(broker: Broker, connection: ConnectionState, frame: memoryview) -> Reply:
    """Handles a request and returns its reply, now or later; see `ottla.broker.api.api`. Raises MalformedRequest if the
    connection must be closed."""
    header = parse_request_header(frame)
    api_key, version, correlation_id, client_id, body_at = header
    handler = HANDLERS.get(api_key)
    if handler is None or not handler.api.versions[0] <= version <= handler.api.versions[1]:
        return _unsupported(header)
    reply_header = response_header(api_key, version, correlation_id)
    ctx = Context(broker, connection, handler.api, version, client_id, correlation_id, reply_header)
    broker.meters.requests[api_key, version] += 1
    if handler.handle_raw is not None:
        if api_key in KEEP_TIME_THEMSELVES:
            reply = handler.handle_raw(ctx, frame[body_at:])
            if reply is broker.backlog:
                broker.meters.requests[api_key, version] -= 1  # the request will be submitted again
            return reply
        return _timed(ctx, broker.clock.seconds(), handler.handle_raw(ctx, frame[body_at:]))
    assert handler.handle is not None
    request, _ = decode(request_type(api_key, version), frame, body_at)
    return _answer(ctx, handler.handle, request)


def dispatch_run(
    broker: Broker, connection: ConnectionState, frames: Sequence[memoryview], at: int, count_max: int
) -> tuple[RunReplies | None, int]:
    """Handles as many of the frames from `at` on as can be handled together, at most `count_max`. Returns their
    replies, now or later, and their number. If that is 0, call `dispatch` with the first. Every frame passes through
    here first."""
    broker.metadata.check_lease()
    if connection.replica_link is not None and is_permitted(broker, connection, FETCH_AS_FOLLOWER, CLUSTER_NAME):
        reply = replica_fetch_fast_path.take(connection, frames[at])
        if reply is not None:
            return reply, 1
    return produce.handle_run(broker, connection, frames, at, count_max)


def _timed(ctx: Context, began_s: float, reply: Reply) -> Reply:
    durations_s, clock = ctx.broker.meters.durations_s[ctx.api.key], ctx.broker.clock
    if isinstance(reply, list):
        durations_s.note(clock.seconds() - began_s)
        return reply

    async def later(coroutine: Coroutine[Any, Any, Buffers | None]) -> Buffers | None:
        buffers = await coroutine
        durations_s.note(clock.seconds() - began_s)
        return buffers

    return later(reply) if isinstance(reply, Coroutine) else reply


async def _answer(ctx: Context, handle: Handle, request: object) -> Buffers:
    """Answers a typed request. An unexpected failure gets an error reply too, so that the client need not interpret a
    closed connection."""
    meters, clock = ctx.broker.meters, ctx.broker.clock
    began_s = clock.seconds()
    try:
        response = await handle(ctx, request)
    except Exception as error:
        log.exception("%s v%d from %s failed", ctx.api.name, ctx.version, ctx.connection.peer)
        is_disk = isinstance(error, OSError)
        code = ErrorCode.kafka_storage_error if is_disk else ErrorCode.unknown_server_error
        failure = error_reply(ctx.api.key, ctx.version, code)
        if failure is None:
            raise
        response = failure
    encoded = encode(response)
    meters.durations_s[ctx.api.key].note(clock.seconds() - began_s)
    count_errors(response, ctx.api.key, meters)
    return [ctx.response_header, encoded]


def _unsupported(header: RequestHeader) -> Buffers:
    """Answers an API or version that this broker does not have. If the schema has no error reply for it either, the
    connection is closed."""
    if header.api_key == api_versions.API.key:
        return [response_header(header.api_key, 0, header.correlation_id), api_versions.unsupported_version_body()]
    response = error_reply(header.api_key, header.api_version, ErrorCode.unsupported_version)
    if response is None:
        raise MalformedRequest(f"API key {header.api_key}, version {header.api_version} is not supported")
    return [response_header(header.api_key, header.api_version, header.correlation_id), encode(response)]
