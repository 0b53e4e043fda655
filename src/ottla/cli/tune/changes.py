"""Applies settings and restores them."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ottla.cli.tune.record import load_record, save_record
from ottla.cli.tune.settings import Setting, read_value, write_value

RATIOS = {
    "/proc/sys/vm/dirty_background_bytes": "/proc/sys/vm/dirty_background_ratio",
    "/proc/sys/vm/dirty_bytes": "/proc/sys/vm/dirty_ratio",
}
"""Settings that the kernel resets when the other one is written. 0 bytes means that the ratio applies."""
INTERRUPTS = "/proc/irq/"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one change."""

    path: str
    value: str
    """The value after the change."""
    error: str = ""
    """Why the setting could not be changed; empty if it was."""
    note: str = ""
    """Why the setting keeps its value although nothing is wrong."""


def apply_settings(root: Path, settings: Iterable[Setting], record: Path) -> list[Outcome]:
    """Changes all settings that are not tuned. A setting that cannot be changed does not stop the others."""
    changes = [each for each in settings if not each.is_tuned]
    if not changes:
        return []
    originals = load_record(record)
    for each in changes:
        if each.path not in originals and RATIOS.get(each.path) not in originals:
            originals.update(_restorable(root, each))
    save_record(record, originals)
    return [_write(root, each.path, each.wanted) for each in changes]


def undo_settings(root: Path, record: Path) -> list[Outcome]:
    """Restores the recorded values, the last change first. Values that cannot be restored stay in the record."""
    originals = load_record(record)
    outcomes = [_write(root, path, value) for path, value in reversed(originals.items())]
    left = {each.path for each in outcomes if each.error}
    save_record(record, {path: value for path, value in originals.items() if path in left})
    return outcomes


def _restorable(root: Path, setting: Setting) -> dict[str, str]:
    """Returns what has to be written to restore a setting: for bytes that were 0, the ratio."""
    ratio = RATIOS.get(setting.path)
    if ratio is not None and setting.value == "0":
        value = read_value(root, ratio)
        if value is not None:
            return {ratio: value}
    return {setting.path: setting.value}


def _write(root: Path, path: str, value: str) -> Outcome:
    try:
        if read_value(root, path) != value:
            write_value(root, path, value)
    except OSError as error:
        kept = read_value(root, path) or ""
        if path.startswith(INTERRUPTS) and error.errno in (errno.EPERM, errno.EIO):
            return Outcome(path, kept, note="the driver assigns this interrupt itself")
        return Outcome(path, kept, error.strerror or str(error))
    now = read_value(root, path)
    if now != value:
        return Outcome(path, now or "", f"the kernel keeps {now}")
    return Outcome(path, value)
