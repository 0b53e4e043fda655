"""Checks which kernel settings differ from those of `ottla tune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ottla.cli.doctor.checks import Check, ok, warn
from ottla.cli.doctor.disk_checks import nearest_existing, queue_directory
from ottla.cli.tune.plan import plan

_ROOT = Path("/")


def tuning_checks(data: Path, root: Path = _ROOT) -> Iterator[Check]:
    """Yields one check for all settings together; `ottla tune` shows them one by one."""
    settings = plan(root, queue_directory(os.stat(nearest_existing(data)).st_dev, root))
    groups = dict.fromkeys(each.group for each in settings if not each.is_tuned)
    count = sum(not each.is_tuned for each in settings)
    if count:
        shown = f"{count} of {len(settings)} settings are not tuned: {', '.join(groups)}"
        yield warn("tuning", shown, "`ottla tune` shows them with the reasons; `ottla tune --apply` changes them")
    elif settings:
        yield ok("tuning", f"all {len(settings)} settings are tuned")
