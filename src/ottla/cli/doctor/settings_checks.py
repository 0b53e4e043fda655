"""Checks the settings of a configuration file for `ottla doctor --config`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ottla.cli.doctor.checks import Check, bad, ok, warn
from ottla.cli.failures import CommandError
from ottla.cli.up.config_file import problems, read_config_file, read_settings


def settings_checks(path: Path) -> Iterator[Check]:
    """Yields the checks of a file: its rejected settings or, if there are none, those without effect."""
    settings = read_settings(path)
    refused = list(problems(settings))
    if refused:
        yield from (bad(f"{path.name}, line {line}", "refused", message) for line, message in refused)
        return
    try:
        found = read_config_file(path)
    except CommandError as failure:
        yield bad(path.name, "refused", str(failure))
        return
    yield ok(path.name, f"{len(settings)} settings, all valid")
    yield from (warn(path.name, "no effect", notice) for notice in found.notices)
