"""DescribeConfigs (key 32), v1-4.

Behaviour: returns the configuration of topics and of this broker, with the source of each value and, on request, its
synonyms (every source that has a value) and documentation. The broker resource with an empty name has the dynamic
settings of all brokers. Passwords and keys are never returned.
Versions: v3 types and documentation; v4 flexible.
Not implemented: broker loggers, client metrics, groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.config_entries import (
    ConfigEntry,
    broker_config_entries,
    dynamic_broker_entries,
    topic_config_entries,
)
from ottla.broker.api.config_resources import (
    EVERY_BROKER,
    Resource,
    check_broker_name,
    config_refusal,
    find_topic,
    unsupported_type,
)
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4 import DescribeConfigsRequest
    from kio.schema.describe_configs.v4.request import DescribeConfigsResource

API = Api(32, "DescribeConfigs", (1, 4))


async def handle(ctx: Context, request: DescribeConfigsRequest) -> object:
    """Returns the settings of topics and brokers, each resource with its own error."""
    results = []
    for resource in request.resources:
        entries = _entries(ctx, resource.resource_type, resource.resource_name)
        refused = entries if isinstance(entries, Refused) else None
        configs = () if isinstance(entries, Refused) else _configs(ctx, request, resource, entries)
        results.append(
            part(
                ctx,
                "DescribeConfigsResult",
                error_code=refused.error if refused else ErrorCode.none,
                error_message=refused.message if refused else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return reply(ctx, results=tuple(results))


def _entries(ctx: Context, resource_type: int, name: str) -> list[ConfigEntry] | Refused:
    broker = ctx.broker
    refused = config_refusal(ctx, resource_type, name, rules.DESCRIBE_TOPIC_CONFIGS, rules.DESCRIBE_BROKER_CONFIGS)
    if refused is not None:
        return refused
    if resource_type == Resource.TOPIC:
        topic = find_topic(broker, name)
        return topic if isinstance(topic, Refused) else topic_config_entries(broker, topic)
    if resource_type == Resource.BROKER:
        refused = check_broker_name(broker, name)
        if refused is not None:
            return refused
        return dynamic_broker_entries(broker) if name == EVERY_BROKER else broker_config_entries(broker)
    return unsupported_type(resource_type)


def _configs(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource, entries: list[ConfigEntry]
) -> tuple[Any, ...]:
    """Encodes the requested entries; a request that names no keys means all of them."""
    wanted = set(resource.configuration_keys or ())
    with_documentation = ctx.version >= 3 and request.include_documentation
    return tuple(
        part(
            ctx,
            "DescribeConfigsResourceResult",
            name=entry.key.name,
            value=None if entry.key.is_secret else entry.value,
            read_only=entry.is_read_only,
            config_source=int(entry.source),
            is_sensitive=entry.key.is_secret,
            synonyms=_synonyms(ctx, entry) if request.include_synonyms else (),
            config_type=int(entry.key.type),
            documentation=entry.key.doc if with_documentation else None,
        )
        for entry in entries
        if not wanted or entry.key.name in wanted
    )


def _synonyms(ctx: Context, entry: ConfigEntry) -> tuple[Any, ...]:
    return tuple(
        part(
            ctx,
            "DescribeConfigsSynonym",
            name=each.name,
            value=None if entry.key.is_secret else each.value,
            source=int(each.source),
        )
        for each in entry.synonyms
    )
