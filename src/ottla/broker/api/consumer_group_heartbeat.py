"""ConsumerGroupHeartbeat (key 68), v0-1.

Behaviour: implements the whole consumer protocol (KIP-848). A member joins with epoch 0, reports changes, receives its
assignment, and leaves with epoch -1 (-2: a static member that will return). A regular expression is resolved after the
reply; the matching topics are assigned with one of the next heartbeats.
Versions: v1 subscriptions by regular expression; the member generates its own id.
Not implemented: nothing.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.coordinator_calls import ask, by_topic, client_host, milliseconds
from ottla.broker.groups.topic_patterns import compile_pattern
from ottla.machines.groups.records import Assignment
from ottla.machines.groups.replies import ConsumerHeartbeatReply
from ottla.machines.groups.requests import ConsumerHeartbeat
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import NO_TOPIC_ID, TopicId

API = Api(68, "ConsumerGroupHeartbeat", (0, 1))


async def handle(ctx: Context, request: Any) -> object:
    """Keeps a member of a consumer group alive and returns its assignment if that has changed."""
    outcome = _refused(ctx, request) or await _beat(ctx, request)
    if isinstance(outcome, Refused):
        outcome = ConsumerHeartbeatReply(error=outcome.error, message=outcome.message)
    return reply(
        ctx,
        error_code=outcome.error,
        error_message=outcome.message,
        member_id=outcome.member_id,
        member_epoch=outcome.member_epoch,
        heartbeat_interval=timedelta(milliseconds=outcome.heartbeat_interval_ms),
        assignment=None if outcome.assignment is None else _assigned(ctx, outcome.assignment),
    )


def _refused(ctx: Context, request: Any) -> Refused | None:
    refused = refusal(ctx, rules.CONSUMER_HEARTBEAT, request.group_id)
    for name in request.subscribed_topic_names or ():
        refused = refused or refusal(ctx, rules.CONSUMER_HEARTBEAT_TOPIC, name)
    return refused


async def _beat(ctx: Context, request: Any) -> ConsumerHeartbeatReply | Refused:
    regex = request.subscribed_topic_regex if ctx.version >= 1 else None
    if ctx.version >= 1 and request.group_id and not request.member_id:
        return Refused(ErrorCode.invalid_request, "MemberId can't be empty.")
    if regex and isinstance(pattern := compile_pattern(regex), Refused):
        return pattern
    names = request.subscribed_topic_names
    heartbeat = ConsumerHeartbeat(
        group=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        subscribed_names=None if names is None else tuple(names),
        subscribed_regex=regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
        fresh_id="" if request.member_id else ctx.broker.groups.fresh_id(),
        client_id=ctx.client_id or "",
        client_host=client_host(ctx),
    )
    return await ask(ctx, heartbeat, request.group_id, ConsumerHeartbeatReply)


def _owned(topics: tuple[Any, ...]) -> Assignment:
    return frozenset((TopicId(topic.topic_id or NO_TOPIC_ID), index) for topic in topics for index in topic.partitions)


def _assigned(ctx: Context, assignment: Assignment) -> Any:
    topics = tuple(
        part(ctx, "TopicPartitions", topic_id=topic_id, partitions=indexes)
        for topic_id, indexes in by_topic(assignment)
    )
    return part(ctx, "Assignment", topic_partitions=topics)
