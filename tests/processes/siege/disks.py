"""A disk for each broker: a small ext4 file system in a file, so that it can be full independently of the others.

The file behind it has what ext4 has written, and nothing that is in the page cache only. So a copy of the file is what
a machine has after a power cut. A preloaded library can make its syncs slow while the broker runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.processes.siege.network import CannotError, command

SIZE_BYTES = 3 << 30
CHUNK_BYTES = 256 << 20
BALLAST = "ballast"
OPTIONS = "loop,commit=600,noauto_da_alloc"
"""The journal of ext4 is committed by syncs alone, and a rename over a file does not imply one."""


class SmallDisk:
    """Mounted at `path`. The file behind it is sparse: only written blocks take space."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._image = path.with_name(path.name + ".image")
        path.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        command("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(self._image))
        self._mount()
        (path / "lost+found").rmdir()

    def _mount(self) -> None:
        command("mount", "-t", "ext4", "-o", OPTIONS, str(self._image), str(self.path))

    def cut_power(self) -> None:
        """Loses everything that is not on the device. No process may have a file open here."""
        kept = self._image.with_suffix(".kept")
        command("cp", "--sparse=always", str(self._image), str(kept))
        command("umount", str(self.path))  # this syncs the old file, which nobody reads any more
        kept.rename(self._image)
        self._mount()

    def fill(self) -> None:
        """Fills every free block."""
        with (self.path / BALLAST).open("ab") as file:
            chunk = CHUNK_BYTES
            while chunk >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, chunk)
                except OSError:
                    chunk //= 2

    def free(self) -> None:
        (self.path / BALLAST).unlink(missing_ok=True)

    def wipe(self) -> None:
        """Empties the file system, as a new disk would be."""
        for entry in self.path.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True, check=False)
        self._image.unlink(missing_ok=True)


class Directory:
    """A substitute for a disk without root: it is never full."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def fill(self) -> None:
        raise CannotError("a disk cannot be filled without a file system of its own")

    def free(self) -> None:
        pass

    def cut_power(self) -> None:
        raise CannotError("a directory cannot lose what is in the page cache")

    def wipe(self) -> None:
        shutil.rmtree(self.path)
        self.path.mkdir()

    def close(self) -> None:
        pass


Disk = SmallDisk | Directory


class SlowSyncs:
    """The library that makes syncs slow, built once per siege. `why_not` says why there is none."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "slow_disk.so"
        self.why_not = ""
        compiler = shutil.which("cc")
        if compiler is None:
            self.why_not = "there is no C compiler to build slow syncs with"
            return
        source = Path(__file__).with_name("slow_disk.c")
        command(compiler, "-O2", "-shared", "-fPIC", "-o", str(self.library), str(source), "-ldl")

    def environment(self, control: Path) -> dict[str, str]:
        if self.why_not:
            return {}
        return {"LD_PRELOAD": str(self.library), "SLOW_DISK_FILE": str(control)}
