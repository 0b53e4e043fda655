"""A directory of an archive or a table, on a local disk or an object store.

All operations except one are pyarrow's. The exception is `create`, which creates a file atomically and never replaces
one; commits depend on it. On a local disk it syncs a temporary file and creates a hard link. An object appears
atomically when its stream is closed, but pyarrow has no "create only if absent". So on object stores the operator must
ensure that there is only one writer at a time.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.archive.failures import PipelineError
from ottla.file_sync import sync_path

if TYPE_CHECKING:
    from pyarrow import fs

LOCK_NAME = "_writer.lock"
_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store."""

    path: str
    """Relative to the store."""
    size_bytes: int


class Store:
    """A directory. Paths are relative to its root and separated by `/`."""

    def __init__(self, root: str) -> None:
        from pyarrow import fs

        self.root = root
        uri = root if "://" in root else os.path.abspath(root)
        self._files: fs.FileSystem
        self._files, self._base = fs.FileSystem.from_uri(uri)
        self.is_local = self._files.type_name == "local"

    @property
    def files(self) -> fs.FileSystem:
        """The pyarrow file system; it takes the paths that `full_path` returns."""
        return self._files

    def full_path(self, path: str) -> str:
        """Returns the path in the file system."""
        return posixpath.join(self._base, path) if path else self._base

    def spark_path(self, path: str) -> str:
        """Returns the path for Spark."""
        return f"file://{self.full_path(path)}" if self.is_local else posixpath.join(self.root, path)

    def exists(self, path: str) -> bool:
        """Returns whether a file or a directory has this path."""
        from pyarrow import fs

        return bool(self._files.get_file_info(self.full_path(path)).type != fs.FileType.NotFound)

    def list_files(self, path: str = "", *, recursive: bool = False) -> list[StoredFile]:
        """Lists files in order, without leftovers of an unfinished `create`. Empty if the directory does not exist."""
        from pyarrow import fs

        selector = fs.FileSelector(self.full_path(path), recursive=recursive, allow_not_found=True)
        found = [info for info in self._files.get_file_info(selector) if info.type == fs.FileType.File]
        listed = [StoredFile(posixpath.relpath(info.path, self._base), info.size) for info in found]
        return sorted((each for each in listed if _TEMPORARY not in each.path), key=lambda each: each.path)

    def read(self, path: str) -> bytes:
        """Returns the whole content of a file. Raises FileNotFoundError if it does not exist."""
        with self._files.open_input_stream(self.full_path(path)) as stream:
            content: bytes = stream.read()
        return content

    def create(self, path: str, content: bytes) -> bool:
        """Creates a file, which is durable when this returns. Returns False, and changes nothing, if it exists."""
        full = self.full_path(path)
        self.make_directory(posixpath.dirname(path))
        if self.is_local:
            created = _create_local(full, content)
            self._sync_parents(path)
            return created
        if self.exists(path):
            return False
        with self._files.open_output_stream(full) as stream:
            stream.write(content)
        return True

    def make_directory(self, path: str) -> None:
        """Creates a directory and its missing parents. An existing directory is not an error."""
        self._files.create_dir(self.full_path(path), recursive=True)

    def sync(self, path: str) -> None:
        """Syncs a file and its name to stable storage."""
        if self.is_local:
            sync_path(self.full_path(path))
            self._sync_parents(path)

    def _sync_parents(self, path: str) -> None:
        while path:
            path = posixpath.dirname(path)
            sync_path(self.full_path(path))

    def delete(self, path: str) -> None:
        """Deletes a file. Does nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self.full_path(path))

    def delete_directory(self, path: str) -> None:
        """Deletes a directory and its contents. A missing directory is not an error."""
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self.full_path(path))

    @contextlib.contextmanager
    def writer_lock(self) -> Iterator[None]:
        """Admits one writer at a time on one machine. The lock is released when its process ends, in whatever way."""
        if not self.is_local:
            yield
            return
        import fcntl

        self.make_directory("")
        lock = os.open(self.full_path(LOCK_NAME), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another job is writing into {self.root}; wait for it, or stop it") from None
            yield
        finally:
            os.close(lock)


def _create_local(full: str, content: bytes) -> bool:
    temporary = f"{full}{_TEMPORARY}{uuid.uuid4().hex}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(temporary, full)
        except FileExistsError:
            return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return True
