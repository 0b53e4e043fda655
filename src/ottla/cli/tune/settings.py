"""A kernel setting with its present value, the value for a broker, and the reason. Most are files in /proc or /sys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ottla.cli.doctor.checks import chosen_option, read_text
from ottla.cli.tune.coalescing import SCHEME, read_adaptive, write_adaptive


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that matters to a broker."""

    group: str
    """The name for `--only`, such as `swap`."""
    path: str
    """The file, without the root: `/proc/sys/vm/swappiness`. A setting of a network card begins with `ethtool:`."""
    value: str
    """The present value."""
    wanted: str
    reason: str

    @property
    def is_tuned(self) -> bool:
        """Whether the setting has the value for a broker."""
        return self.value == self.wanted


def read_value(root: Path, path: str) -> str | None:
    """Returns the value of a setting, or None if this system does not have it. Of a list of options, the value is the
    chosen one."""
    if path.startswith(SCHEME):
        return read_adaptive(path)
    text = read_text(at(root, path))
    return None if text is None else " ".join(chosen_option(text).split())


def write_value(root: Path, path: str, value: str) -> None:
    """Changes a setting. Raises OSError if the kernel or the permissions do not allow it."""
    if path.startswith(SCHEME):
        write_adaptive(path, value)
        return
    # Not Path.write_text, which would create a missing file below another root.
    file = os.open(at(root, path), os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


def at(root: Path, path: str) -> Path:
    """Returns the file of a setting below a root."""
    return root / path.lstrip("/")
