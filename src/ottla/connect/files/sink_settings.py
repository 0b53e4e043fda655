"""The settings of `file-sink`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.connect.files.sink import FileSink, FileSinkSettings

REQUIRED = ("topics", "into")
OPTIONAL = ("format", "records_per_file", "commit_every_s", "dead_letters", "until_end")


def build(name: str, settings: Mapping[str, Any], bootstrap: str) -> FileSink:
    """Creates a file sink from its settings."""
    given = {key: settings[key] for key in ("format", "records_per_file") if settings.get(key) is not None}
    return FileSink(FileSinkSettings(topics=list(settings["topics"]), into=settings["into"], **given), bootstrap)
