"""Simulated directories. A power failure loses an entry that was created, renamed or removed, unless its directory was
synced.

Like every journaling file system, the model guarantees that a rename is atomic, and that a change of a name survives
only together with the earlier changes of that name.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ottla.sim.content import FileContent


class Directory:
    """A directory: its visible entries and its durable ones."""

    def __init__(self) -> None:
        self.current: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileContent | Directory


@dataclass(frozen=True, slots=True)
class EntryChange:
    """Names that were set (or, with None, removed) atomically."""

    entries: tuple[tuple[Directory, str, Node | None], ...]

    def keys(self) -> set[tuple[int, str]]:
        """Returns the changed names, each with the `id` of its directory."""
        return {(id(directory), name) for directory, name, _ in self.entries}

    def make_durable(self) -> None:
        """Applies the change to the durable entries."""
        for directory, name, node in self.entries:
            _set_entry(directory.durable, name, node)


class Tree:
    """The directory tree of one disk."""

    def __init__(self) -> None:
        self.root = Directory()
        self.unsynced: list[EntryChange] = []

    def find(self, path: str) -> Node | None:
        """Returns the file or directory at a path, or None."""
        node: Node | None = self.root
        for name in names_of(path):
            if not isinstance(node, Directory):
                return None
            node = node.current.get(name)
        return node

    def file(self, path: str) -> FileContent:
        """Returns the file at a path. Raises OSError if there is none or it is a directory."""
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        return node

    def directory(self, path: str) -> Directory:
        """Returns the directory at a path. Raises OSError if there is none or it is a file."""
        node = self.find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, FileContent):
            raise os_error(errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        """Returns the parent directory of a path, and the last name. Raises OSError for the root."""
        names = names_of(path)
        if not names:
            raise os_error(errno.EBUSY, path)
        return self.directory("/" + "/".join(names[:-1])), names[-1]

    def set_entries(self, *entries: tuple[Directory, str, Node | None]) -> list[FileContent]:
        """Changes names atomically; returns the files that lost their name."""
        before = [directory.current.get(name) for directory, name, _ in entries]
        for directory, name, node in entries:
            _set_entry(directory.current, name, node)
        self.unsynced.append(EntryChange(entries))
        placed = [node for _, _, node in entries]
        return [node for node in before if isinstance(node, FileContent) and not any(node is other for other in placed)]

    def make_dirs(self, path: str) -> None:
        """Creates a directory and its missing parents. Raises OSError if one of them is a file."""
        directory = self.root
        for name in names_of(path):
            node = directory.current.get(name)
            if node is None:
                node = Directory()
                self.set_entries((directory, name, node))
            if isinstance(node, FileContent):
                raise os_error(errno.EEXIST, path)
            directory = node

    def sync_dir(self, directory: Directory) -> None:
        """Makes the changes in this directory durable, together with the earlier changes they depend on."""
        wanted: set[tuple[int, str]] = set()
        covered: list[EntryChange] = []
        left: list[EntryChange] = []
        for change in reversed(self.unsynced):
            here = any(changed is directory for changed, _, _ in change.entries)
            if here or change.keys() & wanted:
                wanted |= change.keys()
                covered.append(change)
            else:
                left.append(change)
        for change in reversed(covered):
            change.make_durable()
        self.unsynced = left[::-1]

    def lose_power(self, rng: Random | None) -> None:
        """Leaves the names that survive a power failure: a subset of the unsynced changes, or none of them without
        `rng`."""
        lost: set[tuple[int, str]] = set()
        share = rng.random() if rng is not None else 0.0
        for change in self.unsynced:
            if rng is not None and rng.random() < share and not change.keys() & lost:
                change.make_durable()
            else:
                lost |= change.keys()
        self.unsynced.clear()
        for directory in walk_directories(self.root, durable=True):
            directory.current = dict(directory.durable)

    def copy(self) -> tuple[Tree, dict[int, FileContent]]:
        """Returns a copy of the tree, and a map from the `id` of each file to its copy."""
        copies: dict[int, Node] = {}

        def copied(node: Node) -> Node:
            twin = copies.get(id(node))
            if twin is not None:
                return twin
            if isinstance(node, FileContent):
                twin = copies[id(node)] = node.copy()
                return twin
            twin = copies[id(node)] = Directory()
            twin.current = {name: copied(child) for name, child in node.current.items()}
            twin.durable = {name: copied(child) for name, child in node.durable.items()}
            return twin

        tree = Tree()
        root = copied(self.root)
        assert isinstance(root, Directory)
        tree.root = root
        for change in self.unsynced:
            entries = []
            for directory, name, node in change.entries:
                directory_twin = copied(directory)
                assert isinstance(directory_twin, Directory)
                entries.append((directory_twin, name, None if node is None else copied(node)))
            tree.unsynced.append(EntryChange(tuple(entries)))
        files = {key: node for key, node in copies.items() if isinstance(node, FileContent)}
        return tree, files


def walk_directories(root: Directory, *, durable: bool = False) -> Iterator[Directory]:
    """Yields a directory and all directories below it."""
    yield root
    for node in (root.durable if durable else root.current).values():
        if isinstance(node, Directory):
            yield from walk_directories(node, durable=durable)


def walk_files(root: Directory) -> Iterator[FileContent]:
    """Yields all files below a directory."""
    for directory in walk_directories(root):
        for node in directory.current.values():
            if isinstance(node, FileContent):
                yield node


def names_of(path: str) -> list[str]:
    """Splits a path into names, after normalizing it."""
    return [name for name in posixpath.normpath("/" + path).split("/") if name]


def os_error(number: int, path: str) -> OSError:
    """Returns an OSError with the system's message for an error number."""
    return OSError(number, os.strerror(number), path)


def _set_entry(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node
