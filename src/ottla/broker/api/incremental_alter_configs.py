"""IncrementalAlterConfigs (key 44), v0-1.

Behaviour: sets, deletes, appends to and subtracts from single settings; settings that are not named stay. Only lists
allow appending and subtracting.
Versions: v1 flexible.
Not implemented: broker loggers, client metrics, groups. Most broker settings are read at start-up only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.config_changes import Overrides, alter_all
from ottla.protocol.model.config_keys import ConfigKey, ConfigType
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1 import IncrementalAlterConfigsRequest

API = Api(44, "IncrementalAlterConfigs", (0, 1))


class Operation(IntEnum):
    """The operations, with the protocol's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(ctx: Context, request: IncrementalAlterConfigsRequest) -> object:
    """Sets, deletes, appends to and subtracts from single settings of each resource."""
    permissions = rules.ALTER_TOPIC_CONFIGS_BY_KEY, rules.ALTER_BROKER_CONFIGS_BY_KEY
    responses = await alter_all(ctx, request.resources, _changed, permissions, validate_only=request.validate_only)
    return reply(ctx, responses=responses)


def _changed(resource: Any, keys: Mapping[str, ConfigKey], current: Mapping[str, str]) -> Overrides | Refused:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        return Refused(ErrorCode.invalid_request, "Each configuration must appear at most once in a resource.")
    wanted: Overrides = dict(current)
    for config in resource.configs:
        refused = _apply(wanted, keys.get(config.name), config)
        if refused is not None:
            return refused
    return wanted


def _apply(wanted: Overrides, key: ConfigKey | None, config: Any) -> Refused | None:
    """Applies one change. An unknown name passes: the validation of the whole set can suggest the right one."""
    if config.config_operation == Operation.DELETE:
        wanted.pop(config.name, None)
        return None
    if config.value is None:
        return Refused(ErrorCode.invalid_request, f"Null value not supported for: {config.name}")
    if config.config_operation == Operation.SET or key is None:
        wanted[config.name] = config.value
        return None
    if config.config_operation not in (Operation.APPEND, Operation.SUBTRACT):
        return Refused(ErrorCode.invalid_request, f"Unknown operation: {config.config_operation}")
    if key.type is not ConfigType.LIST:
        return Refused(ErrorCode.invalid_config, f"{config.name} is not a list, so it can only be set or deleted.")
    words = _words(wanted.get(config.name, key.default or ""))
    changed = _words(config.value)
    if config.config_operation == Operation.APPEND:
        words += [word for word in changed if word not in words]
    else:
        words = [word for word in words if word not in changed]
    wanted[config.name] = ",".join(words)
    return None


def _words(text: str) -> list[str]:
    return [word for word in (part.strip() for part in text.split(",")) if word]
