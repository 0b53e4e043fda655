"""The resources that have a configuration, as the three configuration APIs name them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_names import check_name

if TYPE_CHECKING:
    from ottla.broker.api.api import Context
    from ottla.broker.api.authorization_table import AuthorizationRule
    from ottla.broker.broker import Broker
    from ottla.broker.topics.topics import Topic


class Resource(IntEnum):
    """The type of a resource, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4


EVERY_BROKER = ""
"""The resource name of the cluster-wide broker configuration."""


def config_refusal(
    ctx: Context, resource_type: int, name: str, of_topic: AuthorizationRule, of_broker: AuthorizationRule
) -> Refused | None:
    """Returns the refusal of a client without a permission for the configuration of a resource; None if it has it."""
    if resource_type == Resource.TOPIC:
        return refusal(ctx, of_topic, name)
    return refusal(ctx, of_broker)


def find_topic(broker: Broker, name: str) -> Topic | Refused:
    """Returns the topic, or the reason for refusing the name."""
    refused = check_name(name)
    if refused is not None:
        return refused
    topic = broker.topics.get(name)
    return topic or Refused(ErrorCode.unknown_topic_or_partition, f"Topic {name} does not exist.")


def check_broker_name(broker: Broker, name: str) -> Refused | None:
    """Refuses the name of another broker."""
    if name in (EVERY_BROKER, str(broker.node_id)):
        return None
    return Refused(
        ErrorCode.invalid_request,
        f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
    )


def unsupported_type(resource_type: int) -> Refused:
    """Returns the refusal of an unknown resource type."""
    return Refused(ErrorCode.invalid_request, f"Unsupported resource type: {resource_type}")
