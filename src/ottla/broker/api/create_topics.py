"""CreateTopics (key 19), v2-7.

Behaviour: creates each topic or returns an error for it; one invalid topic does not affect the others. -1 partitions or
replicas mean the broker's default. A manual assignment places each partition on the brokers that it names, in that
order: the first is the preferred leader. The reply has the topic's resulting configuration.
Versions: v4 allows -1; v5 flexible, partition count, replication factor and configs in the reply; v7 topic ids.
Not implemented: the timeout; the reply waits until the topic is durable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.assignments import replicas_by_index
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.config_entries import topic_config_entries
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.create_topics.v7 import CreateTopicsRequest
    from kio.schema.create_topics.v7.request import CreatableTopic

    from ottla.broker.topics.topics import Topic

API = Api(19, "CreateTopics", (2, 7))

_DEFAULT = -1


async def handle(ctx: Context, request: CreateTopicsRequest) -> object:
    """Creates topics concurrently, each with its own result. A topic that is named twice is refused."""
    times_named = Counter(topic.name for topic in request.topics)
    named = {topic.name: topic for topic in request.topics}.values()
    # Run concurrently: topics that are created at the same time share one catalog transaction.
    results = await asyncio.gather(
        *(_outcome(ctx, asked, is_double=times_named[asked.name] > 1, request=request) for asked in named)
    )
    return reply(ctx, topics=tuple(results))


async def _outcome(ctx: Context, asked: CreatableTopic, *, is_double: bool, request: CreateTopicsRequest) -> Any:
    if is_double:
        return _refusal(ctx, asked.name, Refused(ErrorCode.invalid_request, "Duplicate topic name."))
    outcome = _refused(ctx, asked.name) or await _create(ctx, asked, request.validate_only)
    if isinstance(outcome, Refused):
        return _refusal(ctx, asked.name, outcome)
    return _created(ctx, outcome, request.validate_only)


def _refused(ctx: Context, name: str) -> Refused | None:
    return None if permits(ctx, rules.CREATE_ANY_TOPIC) else refusal(ctx, rules.CREATE_TOPIC, name)


async def _create(ctx: Context, asked: CreatableTopic, validate_only: bool) -> Topic | Refused:
    assignment = _assignment(asked)
    if isinstance(assignment, Refused):
        return assignment
    counts = _counts(ctx, asked) if assignment is None else (len(assignment), _DEFAULT)
    if isinstance(counts, Refused):
        return counts
    partition_count, replication_factor = counts
    configs: dict[str, str] = {}
    for config in asked.configs:
        if config.value is None:
            return Refused(ErrorCode.invalid_config, f"Null value not supported for topic configs: {config.name}")
        configs[config.name] = config.value
    return await ctx.broker.metadata.admin.create_topic(
        asked.name,
        partition_count,
        configs,
        replication_factor=replication_factor,
        assignment=assignment,
        validate_only=validate_only,
    )


def _counts(ctx: Context, asked: CreatableTopic) -> tuple[int, int] | Refused:
    config = ctx.broker.config
    partitions, replicas = asked.num_partitions, asked.replication_factor
    if partitions < 1 and partitions != _DEFAULT:
        return Refused(ErrorCode.invalid_partitions, f"Number of partitions must be larger than 0, not {partitions}.")
    if replicas < 1 and replicas != _DEFAULT:
        return Refused(
            ErrorCode.invalid_replication_factor, f"Replication factor must be larger than 0, not {replicas}."
        )
    return (
        config.num_partitions if partitions == _DEFAULT else partitions,
        config.default_replication_factor if replicas == _DEFAULT else replicas,
    )


def _assignment(asked: CreatableTopic) -> list[tuple[int, ...]] | Refused | None:
    """Returns the manual assignment, or None if the controller is to choose the brokers."""
    if not asked.assignments:
        return None
    if asked.num_partitions != _DEFAULT or asked.replication_factor != _DEFAULT:
        return Refused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, so partition count and replication factor must be -1.",
        )
    return replicas_by_index(asked.assignments)


def _refusal(ctx: Context, name: str, refused: Refused) -> Any:
    return part(
        ctx,
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=refused.error,
        error_message=refused.message,
        configs=(),
    )


def _created(ctx: Context, topic: Topic, validate_only: bool) -> Any:
    configs: tuple[Any, ...] | None = ()
    shows_details = permits(ctx, rules.CREATE_TOPIC_CONFIGS, topic.name)
    if not shows_details:
        configs = None
    elif ctx.version >= 5:
        entries = topic_config_entries(ctx.broker, topic)
        configs = tuple(
            part(
                ctx,
                "CreatableTopicConfigs",
                name=entry.key.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in entries
        )
    return part(
        ctx,
        "CreatableTopicResult",
        name=topic.name,
        topic_id=None if validate_only else topic.id,
        error_code=ErrorCode.none,
        error_message=None,
        topic_config_error_code=ErrorCode.none if shows_details else ErrorCode.topic_authorization_failed,
        num_partitions=topic.partition_count if shows_details else _DEFAULT,
        replication_factor=topic.replication_factor if shows_details else _DEFAULT,
        configs=configs,
    )
