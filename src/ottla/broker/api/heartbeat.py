"""Heartbeat (key 12), v0-4.

Behaviour: a member of the classic protocol shows that it is alive, and learns whether it has to rejoin. While the
coordinator is loading the log, every member counts as alive.
Versions: v3 static members; v4 flexible.
Not implemented: nothing.

The request is decoded by hand, and without a task if the reply is available at once: most requests of group members are
heartbeats.
"""

from __future__ import annotations

import asyncio

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Buffers, Context, Reply
from ottla.broker.api.authorization import refusal
from ottla.machines.groups.replies import HeartbeatReply
from ottla.machines.groups.replies import Reply as GroupReply
from ottla.machines.groups.requests import Heartbeat
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.wire.primitives import I16, Reader, decoding

API = Api(12, "Heartbeat", (0, 4))

_THROTTLE_FROM, _STATIC_FROM, _FLEXIBLE_FROM = 1, 3, 4
_NO_THROTTLE = bytes(4)


def handle_raw(ctx: Context, body: memoryview) -> Reply:
    """Keeps a member of a classic group alive; replies at once if the coordinator can."""
    heartbeat = parse_heartbeat(body, ctx.version)
    refused = refusal(ctx, rules.HEARTBEAT, heartbeat.group)
    asked = refused or ctx.broker.groups.ask_soon(heartbeat, heartbeat.group)
    if isinstance(asked, Refused):
        return _reply(ctx, asked)
    return _reply(ctx, asked.result()) if asked.done() else _later(ctx, asked)


async def _later(ctx: Context, asked: asyncio.Future[GroupReply]) -> Buffers:
    return _reply(ctx, await asked)


def parse_heartbeat(body: memoryview, version: int) -> Heartbeat:
    """Decodes a request. Raises MalformedRequest."""
    return decoding(_read, Reader(body), version)


def _read(reader: Reader, version: int) -> Heartbeat:
    if version < _FLEXIBLE_FROM:
        group, generation, member_id = reader.string(), reader.i32(), reader.string()
        instance_id = reader.nullable_string() if version >= _STATIC_FROM else None
    else:
        group, generation, member_id = reader.compact_string(), reader.i32(), reader.compact_string()
        instance_id = reader.nullable_compact_string()
        reader.skip_tagged_fields()
    return Heartbeat(group=group, generation=generation, member_id=member_id, instance_id=instance_id)


def _reply(ctx: Context, outcome: GroupReply) -> Buffers:
    assert isinstance(outcome, (HeartbeatReply, Refused)), f"unexpected outcome of a heartbeat: {outcome}"
    error = outcome.error
    if error is ErrorCode.coordinator_load_in_progress:
        error = ErrorCode.none
    ctx.broker.meters.note_error(API.key, error)
    body = I16.pack(error)
    if ctx.version >= _THROTTLE_FROM:
        body = _NO_THROTTLE + body
    return [ctx.response_header, body + b"\0" if ctx.version >= _FLEXIBLE_FROM else body]
