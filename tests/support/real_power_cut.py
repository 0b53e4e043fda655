"""Power cuts below a real file system: a small ext4 in a file, of which a copy is what a machine without power has.

The loop device passes on what ext4 writes, and nothing else. Data and names that were not synced are in the page cache
or in an open transaction of ext4's journal, so that a copy of the file does not have them. This needs no device mapper
(dm-flakey, dm-log-writes), which many kernels do not have.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SIZE_BYTES = 192 << 20
OPTIONS = "loop,commit=600,noauto_da_alloc"
"""The journal of ext4 is committed by syncs alone, and a rename over a file does not imply one."""


class CannotMountError(Exception):
    """There is no right to mount a file system here, or a tool is missing."""


class PowerlessDisk:
    """An ext4 file system, mounted at `path`."""

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self._directory = directory
        self._image = directory / "disk-0.image"
        self._mounted: list[Path] = []
        directory.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self.path = self._mount()

    def cut_power(self) -> Path:
        """Mounts what is on the disk now, elsewhere, and returns the path. `path` becomes the new one. The old file
        system stays mounted until `close`, because unmounting it would sync it."""
        image = self._image.with_name(f"disk-{len(self._mounted)}.image")
        _run("cp", "--sparse=always", str(self._image), str(image))
        self._image = image
        self.path = self._mount()
        return self.path

    def close(self) -> None:
        for path in reversed(self._mounted):
            subprocess.run(["umount", "--lazy", str(path)], capture_output=True, check=False)
        self._mounted.clear()
        for image in self._directory.glob("disk-*.image"):
            image.unlink()

    def _mount(self) -> Path:
        path = self._directory / f"disk-{len(self._mounted)}"
        path.mkdir()
        _run("mount", "-t", "ext4", "-o", OPTIONS, str(self._image), str(path))
        self._mounted.append(path)
        return path


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise CannotMountError(f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMountError(f"{' '.join(command)}: {done.stderr.strip()}")
