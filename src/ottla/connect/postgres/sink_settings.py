"""The settings of `postgres-sink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.connect.postgres.sink import PostgresSink, SinkSettings

REQUIRED = ("url", "prefix")
OPTIONAL = ("schema", "apply_schema_changes", "dead_letters", "until_end")


def build(name: str, settings: Mapping[str, Any], bootstrap: str) -> PostgresSink:
    """Creates a PostgreSQL sink from its settings."""
    return PostgresSink(
        SinkSettings(
            url=settings["url"],
            prefix=settings["prefix"],
            name=name,
            schema=settings.get("schema"),
            applies_schema_changes=bool(settings.get("apply_schema_changes", False)),
        ),
        bootstrap,
    )
