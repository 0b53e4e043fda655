"""The settings of `postgres-cdc`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ottla.connect.postgres.cdc import CdcSettings, PostgresCdc

REQUIRED = ("url", "tables")
OPTIONAL = (
    "prefix",
    "slot",
    "publication",
    "snapshot",
    "tombstones",
    "batch_records",
    "batch_bytes",
    "linger_ms",
    "topic_configs",
)


def build(name: str, settings: Mapping[str, Any], bootstrap: str) -> PostgresCdc:
    """Creates a change data capture connector from its settings."""
    given = {key: settings[key] for key in OPTIONAL if settings.get(key) is not None}
    own = "ottla_" + re.sub(r"[^a-z0-9_]", "_", name.lower())[:57]
    return PostgresCdc(
        CdcSettings(
            url=settings["url"],
            tables=list(settings["tables"]),
            create_publication="publication" not in given,
            **{"prefix": name, "slot": own, "publication": own, **given},
        )
    )
