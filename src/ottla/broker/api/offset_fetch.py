"""OffsetFetch (key 9), v1-10.

Behaviour: returns the committed offsets of groups, for the named partitions or (null) for all that a group has. -1
means that nothing is committed. A client that requires stable offsets gets UNSTABLE_OFFSET_COMMIT where a transaction
is open.
Versions: v2 null topics and a top-level error (before, it is in each partition); v5 leader epochs; v6 flexible; v7
stable offsets; v8 several groups; v9 member id and epoch; v10 topics by id, omitting those that have none.
Not implemented: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits
from ottla.broker.api.coordinator_calls import ask_permitted
from ottla.machines.groups.replies import FetchedOffset, FetchOffsetsReply
from ottla.machines.groups.requests import FetchOffsets
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId

API = Api(9, "OffsetFetch", (1, 10))

_SEVERAL_FROM, _BY_ID_FROM = 8, 10
_NOTHING = -1


class _Topic(NamedTuple):
    """A requested topic."""

    name: str | None
    """None if the id is unknown."""
    id: UUID | None
    partitions: tuple[int, ...]
    is_permitted: bool


class _Asked(NamedTuple):
    """A requested group."""

    request: FetchOffsets
    topics: tuple[_Topic, ...] | None
    """None means all topics that the group has offsets for."""


async def handle(ctx: Context, request: Any) -> object:
    """Returns the committed offsets of one group (up to v7) or several (from v8 on)."""
    groups = request.groups if ctx.version >= _SEVERAL_FROM else (request,)
    require_stable = ctx.version >= 7 and request.require_stable
    asked = [_asked(ctx, group, require_stable) for group in groups]
    requests = [(each.request, each.request.group) for each in asked]
    outcomes = await ask_permitted(ctx, rules.OFFSET_FETCH, requests, FetchOffsetsReply)
    found = [_found(ctx, *each) for each in zip(asked, outcomes, strict=True)]
    if ctx.version < _SEVERAL_FROM:
        return reply(ctx, **found[0])
    return reply(ctx, groups=tuple(part(ctx, "OffsetFetchResponseGroup", **each) for each in found))


def _asked(ctx: Context, group: Any, require_stable: bool) -> _Asked:
    topics = None if group.topics is None else tuple(_topic(ctx, topic) for topic in group.topics)
    request = FetchOffsets(
        group=group.group_id,
        topics=None
        if topics is None
        else tuple((each.name, each.partitions) for each in topics if each.name is not None and each.is_permitted),
        member_id=group.member_id if ctx.version >= 9 else None,
        member_epoch=group.member_epoch if ctx.version >= 9 else -1,
        require_stable=require_stable,
    )
    return _Asked(request, topics)


def _topic(ctx: Context, asked: Any) -> _Topic:
    if ctx.version < _BY_ID_FROM:
        return _Topic(asked.name, None, asked.partition_indexes, permits(ctx, rules.OFFSET_FETCH_TOPIC, asked.name))
    topic = None if asked.topic_id is None else ctx.broker.topics.by_id(TopicId(asked.topic_id))
    is_permitted = topic is None or permits(ctx, rules.OFFSET_FETCH_TOPIC, topic.name)
    return _Topic(None if topic is None else topic.name, asked.topic_id, asked.partition_indexes, is_permitted)


def _found(ctx: Context, asked: _Asked, outcome: FetchOffsetsReply | Refused) -> dict[str, Any]:
    """Returns the fields of a group, or of the whole reply in versions with one group."""
    error, group = outcome.error, asked.request.group
    if not isinstance(outcome, FetchOffsetsReply) or error is not ErrorCode.none:
        has_place = ctx.version >= 2
        topics = () if has_place else tuple(_failed_topic(ctx, each, error) for each in asked.topics or ())
        return {"group_id": group, "error_code": error, "topics": topics}
    if asked.topics is None:
        topics = tuple(_all_topics(ctx, outcome.offsets))
    else:
        topics = tuple(_asked_topics(ctx, asked.topics, outcome.offsets))
    return {"group_id": group, "error_code": error, "topics": topics}


def _asked_topics(ctx: Context, topics: tuple[_Topic, ...], offsets: tuple[FetchedOffset, ...]) -> Iterable[Any]:
    """Encodes the requested topics. The coordinator's reply has the order of the request, without topics it was not
    asked for."""
    remaining = iter(offsets)
    for topic in topics:
        if topic.name is None:
            yield _failed_topic(ctx, topic, ErrorCode.unknown_topic_id)
        elif not topic.is_permitted:
            yield _failed_topic(ctx, topic, ErrorCode.topic_authorization_failed)
        else:
            found = [next(remaining) for _ in topic.partitions]
            yield _topic_part(ctx, topic.name, topic.id, [_offset(ctx, each) for each in found])


def _all_topics(ctx: Context, offsets: tuple[FetchedOffset, ...]) -> Iterable[Any]:
    by_topic: dict[str, list[Any]] = {}
    for each in offsets:
        if not permits(ctx, rules.OFFSET_FETCH_OF_ALL, each.topic):
            continue
        by_topic.setdefault(each.topic, []).append(_offset(ctx, each))
    for name, partitions in by_topic.items():
        topic = ctx.broker.topics.get(name)
        if topic is not None or ctx.version < _BY_ID_FROM:
            yield _topic_part(ctx, name, None if topic is None else topic.id, partitions)


def _failed_topic(ctx: Context, topic: _Topic, error: ErrorCode) -> Any:
    partitions = [_offset(ctx, FetchedOffset(topic.name or "", index, None, error)) for index in topic.partitions]
    return _topic_part(ctx, topic.name or "", topic.id, partitions)


def _topic_part(ctx: Context, name: str, topic_id: UUID | None, partitions: list[Any]) -> Any:
    kind = "OffsetFetchResponseTopics" if ctx.version >= _SEVERAL_FROM else "OffsetFetchResponseTopic"
    return part(ctx, kind, name=name, topic_id=topic_id, partitions=tuple(partitions))


def _offset(ctx: Context, found: FetchedOffset) -> Any:
    kind = "OffsetFetchResponsePartitions" if ctx.version >= _SEVERAL_FROM else "OffsetFetchResponsePartition"
    value = found.value
    return part(
        ctx,
        kind,
        partition_index=found.partition,
        committed_offset=_NOTHING if value is None else value.offset,
        committed_leader_epoch=_NOTHING if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=found.error,
    )
