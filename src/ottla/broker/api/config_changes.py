"""Changes the configuration of a topic or of the broker, for AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.api.api import Context, part
from ottla.broker.api.authorization_table import AuthorizationRule
from ottla.broker.api.config_resources import (
    Resource,
    check_broker_name,
    config_refusal,
    find_topic,
    unsupported_type,
)
from ottla.protocol.model.broker_config import BROKER_CONFIGS
from ottla.protocol.model.config_keys import ConfigKey
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.foreign_settings import why_not_dynamic, without_effect
from ottla.protocol.model.topic_config import TOPIC_CONFIGS

if TYPE_CHECKING:
    from ottla.broker.topics.topics import Topic

log = logging.getLogger("ottla.handlers")

Overrides = dict[str, str]
Change = Callable[[Any, Mapping[str, ConfigKey], Mapping[str, str]], Overrides | Refused]
"""Takes a resource of the request, the table of its keys and the current overrides; returns the new overrides."""


Rules = tuple[AuthorizationRule, AuthorizationRule]
"""The permissions for topics and for brokers."""


async def alter_all(
    ctx: Context, resources: Sequence[Any], change: Change, permissions: Rules, *, validate_only: bool
) -> tuple[Any, ...]:
    """Alters each resource or returns the reason for refusing. A resource that is named twice is not changed."""
    times_named = Counter((each.resource_type, each.resource_name) for each in resources)
    results = []
    for each in resources:
        if times_named[each.resource_type, each.resource_name] > 1:
            refused: Refused | None = Refused(
                ErrorCode.invalid_request, "Each resource must appear at most once in a request."
            )
        else:
            refused = config_refusal(ctx, each.resource_type, each.resource_name, *permissions)
            if refused is None:
                refused = await _alter(ctx, each, change, validate_only)
        results.append(
            part(
                ctx,
                "AlterConfigsResourceResponse",
                error_code=refused.error if refused else ErrorCode.none,
                error_message=refused.message if refused else None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
        )
    return tuple(results)


async def _alter(ctx: Context, resource: Any, change: Change, validate_only: bool) -> Refused | None:
    broker = ctx.broker
    if resource.resource_type == Resource.TOPIC:
        topic = find_topic(broker, resource.resource_name)
        if isinstance(topic, Refused):
            return topic
        wanted = change(resource, TOPIC_CONFIGS, topic.overrides)
        if isinstance(wanted, Refused):
            return wanted
        return _keep_fixed(topic, wanted) or await broker.metadata.admin.alter_topic_configs(
            topic, wanted, validate_only=validate_only
        )
    if resource.resource_type == Resource.BROKER:
        refused = check_broker_name(broker, resource.resource_name)
        if refused is not None:
            return refused
        name = resource.resource_name
        wanted = change(resource, BROKER_CONFIGS, broker.metadata.admin.dynamic_configs(name))
        if isinstance(wanted, Refused):
            return wanted
        return _check_dynamic(wanted) or await broker.metadata.admin.alter_broker_configs(
            wanted, broker_name=name, validate_only=validate_only
        )
    return unsupported_type(resource.resource_type)


def _keep_fixed(topic: Topic, wanted: Overrides) -> Refused | None:
    """Keeps the settings that are fixed at a topic's creation, even if the request does not name them
    (safety: topic-identity)."""
    for key in TOPIC_CONFIGS.values():
        if key.dynamic:
            continue
        current = str(getattr(topic.config, key.attribute))
        if wanted.get(key.name, current).strip() != current:
            return Refused(
                ErrorCode.invalid_config, f"{key.name} is fixed when a topic is created; this one has {current}."
            )
        if key.name in topic.overrides:
            wanted[key.name] = topic.overrides[key.name]
    return None


def _check_dynamic(wanted: Overrides) -> Refused | None:
    for name in wanted:
        key = BROKER_CONFIGS.get(name)
        inert = without_effect(name) if key is None else None
        if inert is not None:
            log.warning("%s was set on a running broker and has no effect in Ottla: %s", name, inert.reason)
            continue
        if key is None:
            return why_not_dynamic(name, BROKER_CONFIGS)
        if not key.dynamic:
            return Refused(ErrorCode.invalid_request, f"Cannot update this config while the broker runs: {name}")
    return None
