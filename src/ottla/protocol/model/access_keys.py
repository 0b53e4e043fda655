"""Settings for access control, with Kafka's names and defaults. A part of the broker's configuration."""

from __future__ import annotations

from ottla.protocol.model.config_keys import ConfigKey, ConfigType, OneOf, PrincipalList, split_principals
from ottla.protocol.model.principals import Principal

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

ACCESS_KEYS = [
    ConfigKey(
        "allow.everyone.if.no.acl.found",
        ConfigType.BOOLEAN,
        "false",
        "Whether everyone may use a resource to which no ACL applies. It has an effect only with an authorizer.",
        dynamic=False,
    ),
    ConfigKey(
        "authorizer.class.name",
        ConfigType.STRING,
        None,
        "The authorizer, as the name of a Kafka class: StandardAuthorizer decides by ACLs what clients may do. If this "
        "is not set or empty, every client that reaches the broker may do everything.",
        OneOf((STANDARD_AUTHORIZER, "")),
        dynamic=False,
    ),
    ConfigKey(
        "super.users",
        ConfigType.STRING,
        None,
        "Principals that may do everything, whatever the ACLs say, separated by semicolons: User:admin;User:broker. "
        "The principal that brokers use among themselves belongs here.",
        PrincipalList(),
        dynamic=False,
    ),
]


def parse_principals(text: str) -> list[Principal]:
    """Parses the value of `super.users`."""
    return [Principal.parse(word) for word in split_principals(text)]
