"""DeleteTopics (key 20), v1-6.

Behaviour: deletes topics by name or by id. Deleting by id cannot affect a new topic of the same name.
Versions: v4 flexible; v5 error messages; v6 topic ids.
Not implemented: the timeout.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import denied, permits
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import TopicId

if TYPE_CHECKING:
    from kio.schema.delete_topics.v6 import DeleteTopicsRequest

    from ottla.broker.topics.topics import Topic

API = Api(20, "DeleteTopics", (1, 6))


class _Asked(NamedTuple):
    name: str | None
    topic_id: TopicId | None


async def handle(ctx: Context, request: DeleteTopicsRequest) -> object:
    """Deletes topics by name or id, each with its own result. A topic that is named twice is refused."""
    asked = _asked_topics(ctx, request)
    times_named = Counter(asked)
    results = []
    for each in dict.fromkeys(asked):
        topic = Refused(ErrorCode.invalid_request, "Duplicate topic.") if times_named[each] > 1 else _find(ctx, each)
        if isinstance(topic, Refused):
            results.append(_result(ctx, each, topic))
            continue
        found = _Asked(topic.name, topic.id)
        results.append(_result(ctx, found, await ctx.broker.metadata.admin.delete_topic(topic)))
    return reply(ctx, responses=tuple(results))


def _asked_topics(ctx: Context, request: DeleteTopicsRequest) -> list[_Asked]:
    if ctx.version >= 6:
        return [_Asked(topic.name, TopicId(topic.topic_id) if topic.topic_id else None) for topic in request.topics]
    names: tuple[str, ...] = getattr(request, "topic_names")  # noqa: B009 - the only field of the older versions
    return [_Asked(name, None) for name in names]


def _find(ctx: Context, asked: _Asked) -> Topic | Refused:
    if not ctx.broker.config.delete_topic_enable:
        error = ErrorCode.topic_deletion_disabled if ctx.version >= 3 else ErrorCode.invalid_request
        return Refused(error, "Topic deletion is disabled (delete.topic.enable).")
    name, topic_id = asked
    if topic_id is not None:
        if name is not None:
            return Refused(ErrorCode.invalid_request, "You may not specify both topic name and topic id.")
        topic = ctx.broker.topics.by_id(topic_id)
        if topic is not None and not _may_delete(ctx, topic.name):
            return denied(rules.DELETE_TOPIC)
        return topic or Refused(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    if name is None:
        return Refused(ErrorCode.invalid_request, "Neither topic name nor id were specified.")
    topic = ctx.broker.topics.get(name)
    is_revealed = permits(ctx, rules.DELETE_ANY_TOPIC) or permits(ctx, rules.DELETE_TOPIC_REVEALED, name)
    if not is_revealed or (topic is not None and not _may_delete(ctx, name)):
        return denied(rules.DELETE_TOPIC)
    return topic or Refused(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")


def _may_delete(ctx: Context, name: str) -> bool:
    return permits(ctx, rules.DELETE_ANY_TOPIC) or permits(ctx, rules.DELETE_TOPIC, name)


def _result(ctx: Context, asked: _Asked, refused: Refused | None) -> Any:
    return part(
        ctx,
        "DeletableTopicResult",
        name=asked.name,
        topic_id=asked.topic_id,
        error_code=refused.error if refused else ErrorCode.none,
        error_message=refused.message if refused else None,
    )
