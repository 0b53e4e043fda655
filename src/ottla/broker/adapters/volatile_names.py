"""The names on a volatile disk: a change to a directory takes effect on the real disk when that directory is synced.

A file or directory without a real name lives under a number in `.volatile`, which is emptied at the next start. A name
that was never synced is therefore gone after a kill, together with its contents.

Pending changes to a directory take effect in order, together with earlier changes to other directories that they also
touch. A new directory needs a sync of its parent, like any other entry.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import threading
from collections.abc import Callable

from ottla.broker.adapters.volatile_pages import VolatileContent, os_error
from ottla.file_sync import sync_directory

BACKING = ".volatile"


class Node:
    """A file or directory, under its real name or in `.volatile`."""

    def __init__(self, backing: str) -> None:
        self._backing = backing
        self.real_parent: DirectoryNode | None = None
        self.real_name = ""

    def real_path(self) -> str:
        """Returns where it is on the real disk now."""
        if self.real_parent is None:
            return self._backing
        return posixpath.join(self.real_parent.real_path(), self.real_name)


class FileNode(Node):
    """A file. `content` is None until it is first opened."""

    content: VolatileContent | None = None


class DirectoryNode(Node):
    """A directory. `entries` has its current names, synced or not."""

    def __init__(self, backing: str) -> None:
        super().__init__(backing)
        self.entries: dict[str, Node] = {}


Change = tuple[tuple[DirectoryNode, ...], Callable[[], None]]
"""The directories that a pending change depends on, and a function that applies it."""


class VolatileNames:
    """The directory tree of a volatile disk. All paths are below `root`, which is real. Thread-safe."""

    def __init__(self, root: str) -> None:
        self.root_path = posixpath.normpath(root)
        self.lock = threading.RLock()
        self._backing = posixpath.join(self.root_path, BACKING)
        self._backing_count = 0
        self._pending: list[Change] = []
        os.makedirs(self.root_path, exist_ok=True)
        shutil.rmtree(self._backing, ignore_errors=True)
        os.mkdir(self._backing)
        self._root = DirectoryNode(self.root_path)
        self._load(self._root)

    def find(self, path: str) -> Node | None:
        """Returns the file or directory with this path, or None."""
        node: Node | None = self._root
        for name in self._names(path):
            if not isinstance(node, DirectoryNode):
                return None
            node = node.entries.get(name)
        return node

    def file(self, path: str) -> FileNode:
        """Returns the file with this path. Raises OSError (ENOENT, EISDIR) if there is none."""
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, FileNode):
            raise os_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> DirectoryNode:
        """Returns the directory with this path. Raises OSError (ENOENT, ENOTDIR) if there is none."""
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, DirectoryNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def contains(self, path: str) -> bool:
        """Returns whether a path is on this disk, that is, at or below its root."""
        path = posixpath.normpath(path)
        return path == self.root_path or path.startswith(self.root_path + "/")

    def create_file(self, path: str) -> FileNode:
        """Adds an empty file, which is lost at a kill until its directory is synced."""
        node = FileNode(self._new_backing())
        self._add(path, node)
        return node

    def make_dirs(self, path: str) -> None:
        """Creates a directory and its missing parents. Raises OSError (EEXIST) if one of them is a file."""
        names = self._names(path)
        for depth in range(1, len(names) + 1):
            partial = posixpath.join(self.root_path, *names[:depth])
            node = self.find(partial)
            if node is None:
                directory = DirectoryNode(self._new_backing())
                os.mkdir(directory.real_path())
                self._add(partial, directory)
            elif not isinstance(node, DirectoryNode):
                raise os_error(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        """Renames at once in memory; on the real disk with the next sync of one of the directories touched."""
        node = self.find(source)
        if node is None:
            raise os_error(errno.ENOENT, source)
        replaced = self.find(target)
        if replaced is node:
            return
        if isinstance(replaced, DirectoryNode) and (isinstance(node, FileNode) or replaced.entries):
            raise os_error(errno.ENOTEMPTY, target)
        source_directory, source_name = self._parent(source)
        target_directory, target_name = self._parent(target)
        del source_directory.entries[source_name]
        target_directory.entries[target_name] = node
        touched = [source_directory, target_directory]
        if isinstance(replaced, DirectoryNode):
            touched.append(replaced)
        self._pending.append((tuple(touched), lambda: _place(node, target_directory, target_name)))

    def remove(self, path: str) -> None:
        """Removes a file; its old name comes back at a kill until its directory is synced."""
        node = self.file(path)
        directory, name = self._parent(path)
        del directory.entries[name]
        self._pending.append(((directory,), lambda: os.unlink(node.real_path())))

    def remove_tree(self, path: str) -> None:
        """Removes a directory with its contents; they come back at a kill until the parent is synced."""
        node = self.directory(path)
        directory, name = self._parent(path)
        del directory.entries[name]
        self._pending.append(((directory, *_subtree(node)), lambda: shutil.rmtree(node.real_path())))

    def sync_dir(self, path: str) -> None:
        """Applies the pending changes to a directory and syncs it."""
        with self.lock:
            directory = self.directory(path)
            for make_real in self._take_pending(directory):
                make_real()
            real_path = directory.real_path()
        sync_directory(real_path)

    def _take_pending(self, directory: DirectoryNode) -> list[Callable[[], None]]:
        """Removes and returns the pending changes to this directory and those they depend on, in order; the others stay
        pending."""
        wanted = {directory}
        covered: list[Callable[[], None]] = []
        left: list[Change] = []
        for touched, make_real in reversed(self._pending):
            if wanted.isdisjoint(touched):
                left.append((touched, make_real))
            else:
                wanted.update(touched)
                covered.append(make_real)
        self._pending = left[::-1]
        return covered[::-1]

    def _add(self, path: str, node: Node) -> None:
        directory, name = self._parent(path)
        directory.entries[name] = node
        self._pending.append(((directory,), lambda: _place(node, directory, name)))

    def _parent(self, path: str) -> tuple[DirectoryNode, str]:
        parent, name = posixpath.split(posixpath.normpath(path))
        return self.directory(parent), name

    def _names(self, path: str) -> list[str]:
        if not self.contains(path):
            raise ValueError(f"{path} is outside of {self.root_path}, the root of this volatile disk")
        relative = posixpath.relpath(posixpath.normpath(path), self.root_path)
        return [] if relative == "." else relative.split("/")

    def _new_backing(self) -> str:
        self._backing_count += 1
        return posixpath.join(self._backing, str(self._backing_count))

    def _load(self, directory: DirectoryNode) -> None:
        with os.scandir(directory.real_path()) as found:
            for entry in found:
                if entry.name == BACKING:
                    continue
                node = DirectoryNode("") if entry.is_dir() else FileNode("")
                node.real_parent, node.real_name = directory, entry.name
                directory.entries[entry.name] = node
                if isinstance(node, DirectoryNode):
                    self._load(node)


def _subtree(directory: DirectoryNode) -> list[DirectoryNode]:
    found = [directory]
    for node in directory.entries.values():
        if isinstance(node, DirectoryNode):
            found.extend(_subtree(node))
    return found


def _place(node: Node, directory: DirectoryNode, name: str) -> None:
    """Gives a file or directory its real name, and replaces whatever had that name."""
    if isinstance(node, FileNode) and node.content is None and node.real_parent is None:
        os.close(os.open(node.real_path(), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640))
    os.rename(node.real_path(), posixpath.join(directory.real_path(), name))
    node.real_parent, node.real_name = directory, name
