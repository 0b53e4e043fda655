"""AlterConfigs (key 33), v0-2.

Behaviour: replaces all overrides of a topic, or all dynamic settings of the broker, by the given ones.
Versions: v2 flexible.
Not implemented: broker loggers, client metrics, groups. Most broker settings are read at start-up only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.config_changes import Overrides, alter_all
from ottla.protocol.model.config_keys import ConfigKey
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2 import AlterConfigsRequest

API = Api(33, "AlterConfigs", (0, 2))


async def handle(ctx: Context, request: AlterConfigsRequest) -> object:
    """Replaces all settings of each resource; settings that are not named return to their defaults."""
    permissions = rules.ALTER_TOPIC_CONFIGS, rules.ALTER_BROKER_CONFIGS
    responses = await alter_all(ctx, request.resources, _replaced, permissions, validate_only=request.validate_only)
    return reply(ctx, responses=responses)


def _replaced(resource: Any, keys: Mapping[str, ConfigKey], current: Mapping[str, str]) -> Overrides | Refused:
    wanted: Overrides = {}
    for config in resource.configs:
        if config.value is None:
            return Refused(ErrorCode.invalid_config, f"Null value not supported for: {config.name}")
        wanted[config.name] = config.value
    return wanted
