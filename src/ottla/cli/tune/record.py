"""The record of values before `ottla tune --apply` changed them, so that `--undo` can restore them.

The record is durable before the first setting changes. A second `--apply` keeps the oldest values.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ottla.cli.failures import CommandError

DEFAULT_RECORD = Path("/var/lib/ottla/tune.json")
_VERSION = 1


def load_record(path: Path) -> dict[str, str]:
    """Returns the original value of each changed setting, in the order of the changes; empty if there is no record."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        record = json.loads(text)
        values = record["values"]
        if record["version"] == _VERSION and all(isinstance(each, str) for pair in values.items() for each in pair):
            return dict(values)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CommandError(f"{path} is not a record of `ottla tune`; restore the settings by hand and remove the file")


def save_record(path: Path, values: dict[str, str]) -> None:
    """Replaces the record durably. Without values, it is removed."""
    if not values:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8") as file:
        json.dump({"version": _VERSION, "values": values}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
