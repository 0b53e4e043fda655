"""Files, names and free space of a simulated disk: the part that `crash` copies."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

from ottla.ports import ReadOnlyBuffer
from ottla.sim.content import BLOCK_BYTES, FileContent, torn
from ottla.sim.faults import Effect, Fault, Faults
from ottla.sim.tree import Directory, Tree, os_error, walk_files


class DiskState:
    """State that the files, queues and faults of one disk share."""

    def __init__(self, seed: int, capacity_bytes: int | None, alignment: int, faults: Faults) -> None:
        self.tree = Tree()
        self.rng = Random(f"{seed}/faults")
        self.capacity_bytes = capacity_bytes
        self.alignment = alignment
        self.faults = faults
        self.off = False
        self.cache_cold = False
        self.syncs_all = True
        self._nameless: dict[int, FileContent] = {}

    def demand_power(self) -> None:
        """Raises OSError if the machine is off."""
        if self.off:
            raise OSError(errno.EIO, "the simulated machine is off")

    def strike(self, operation: str, path: str) -> Fault | None:
        """Returns the fault that affects this call, or None. Raises if the machine is off."""
        self.demand_power()
        return self.faults.strike(operation, path)

    def used_bytes(self) -> int:
        """Returns the space of all allocated blocks, including those of removed files that are still open."""
        blocks = sum(len(content.blocks) for content in walk_files(self.tree.root))
        return (blocks + sum(len(content.blocks) for content in self._nameless.values())) * BLOCK_BYTES

    def room_for(self, content: FileContent, offset: int, length: int) -> int:
        """Allocates space for a range of a file. Returns how many bytes, from the start of the range, now
        have space."""
        wanted = range(offset // BLOCK_BYTES, (offset + length + BLOCK_BYTES - 1) // BLOCK_BYTES)
        missing = [block for block in wanted if block not in content.blocks]
        if missing and self.capacity_bytes is not None:
            free_blocks = max(self.capacity_bytes - self.used_bytes(), 0) // BLOCK_BYTES
            if free_blocks < len(missing):
                content.blocks.update(missing[:free_blocks])
                return max(missing[free_blocks] * BLOCK_BYTES - offset, 0)
        content.blocks.update(missing)
        return length

    def names_lost(self, contents: list[FileContent]) -> None:
        """Notes files that have lost their name. They keep their space while they are open."""
        for content in contents:
            content.linked = False
            if content.handles:
                self._nameless[id(content)] = content

    def closed(self, content: FileContent) -> None:
        """Notes that a handle was closed. The last handle of a removed file frees its space."""
        content.handles -= 1
        if not content.handles:
            self._nameless.pop(id(content), None)

    def make_all_names_durable(self) -> None:
        """Makes all changes of directory entries durable."""
        for change in self.tree.unsynced:
            change.make_durable()
        self.tree.unsynced.clear()

    def sync_all(self) -> None:
        """Makes all directory entries and the content of all files durable."""
        self.make_all_names_durable()
        for content in walk_files(self.tree.root):
            content.sync()

    def lose_power(self, rng: Random | None) -> None:
        """Leaves what a machine finds after a power failure. Without `rng`, no unsynced change survives."""
        self.tree.lose_power(rng)
        for content in walk_files(self.tree.root):
            content.lose_power(rng)


class SimFile:
    """Implements `ports.DataFile`."""

    def __init__(self, state: DiskState, path: str, content: FileContent, *, durable: bool) -> None:
        self._state = state
        self._path = path
        self._durable = durable
        self._closed = False
        self.content = content
        content.handles += 1

    @property
    def path(self) -> str:
        return self._path

    @property
    def alignment(self) -> int:
        return self._state.alignment if self._durable else 1

    @property
    def durable(self) -> bool:
        """Whether writes go to stable storage at once (`open_durable`)."""
        return self._durable

    def size(self) -> int:
        self._demand_open()
        return len(self.content.current)

    def read_at(self, offset: int, length: int) -> bytes:
        self._demand_open()
        if fault := self._state.strike("read", self._path):
            raise os_error(fault.error, self._path)
        return bytes(self.content.current[offset : offset + length])

    def read_cached(self, offset: int, length: int) -> bytes | None:
        self._demand_open()
        if self._state.cache_cold:
            return None
        return bytes(self.content.current[offset : offset + length])

    def write_at(self, offset: int, data: Sequence[ReadOnlyBuffer]) -> None:
        self._demand_open()
        joined = b"".join(data)
        if offset % self.alignment or len(joined) % self.alignment:
            raise os_error(errno.EINVAL, self._path)
        fault = self._state.strike("write", self._path)
        if fault is not None and fault.effect is Effect.FAIL:
            for at, part in torn(joined, offset, self._state.rng):
                self._store(at, part)
            raise os_error(fault.error, self._path)
        if fault is not None and fault.effect is Effect.LOSE:
            if not self._durable:
                self.content.write_lost_later(offset, joined)
            return
        if fault is not None:
            offset = max(offset + fault.shift_bytes, 0)
        room = self._state.room_for(self.content, offset, len(joined))
        self._store(offset, joined[:room])
        if room < len(joined):
            raise os_error(errno.ENOSPC, self._path)

    def sync(self) -> None:
        self._demand_open()
        if fault := self._state.strike("sync", self._path):
            self.content.sync_and_fail(self._state.rng)
            raise os_error(fault.error, self._path)
        self.content.sync()

    def allocate(self, offset: int, length: int) -> None:
        self._demand_open()
        self._state.demand_power()
        if self._state.room_for(self.content, offset, length) < length:
            raise os_error(errno.ENOSPC, self._path)

    def clear(self, offset: int, length: int) -> None:
        self._demand_open()
        self._state.demand_power()
        self.content.write(offset, bytes(length))

    def truncate(self, size: int) -> None:
        self._demand_open()
        self._state.demand_power()
        self.content.truncate(size)
        block_count = (size + BLOCK_BYTES - 1) // BLOCK_BYTES
        self.content.blocks = {block for block in self.content.blocks if block < block_count}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._state.closed(self.content)

    def _store(self, offset: int, data: bytes) -> None:
        if self._durable:
            self.content.write_through(offset, data)
        else:
            self.content.write(offset, data)

    def _demand_open(self) -> None:
        if self._closed:
            raise os_error(errno.EBADF, self._path)


class SimSyncAll:
    """Implements `ports.SyncAll`. A sync fault whose path is a substring of `path` affects it."""

    def __init__(self, state: DiskState, path: str) -> None:
        self._state = state
        self._path = path

    def finish(self) -> None:
        if fault := self._state.strike("sync", self._path):
            for content in walk_files(self._state.tree.root):
                content.sync_and_fail(self._state.rng)
            raise os_error(fault.error, self._path)
        self._state.sync_all()

    def close(self) -> None:
        return


class SimFileSystem:
    """Implements `ports.FileSystem`."""

    def __init__(self, state: DiskState) -> None:
        self._state = state

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._strike_open(path)
        tree = self._state.tree
        if create and tree.find(path) is None:
            directory, name = tree.parent(path)
            tree.set_entries((directory, name, FileContent()))
        return SimFile(self._state, path, tree.file(path), durable=False)

    def open_durable(self, path: str) -> SimFile:
        self._strike_open(path)
        return SimFile(self._state, path, self._state.tree.file(path), durable=True)

    def exists(self, path: str) -> bool:
        self._state.demand_power()
        return self._state.tree.find(path) is not None

    def list_dir(self, path: str) -> list[str]:
        self._state.demand_power()
        return sorted(self._state.tree.directory(path).current)

    def make_dirs(self, path: str) -> None:
        self._state.demand_power()
        self._state.tree.make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        self._state.demand_power()
        tree = self._state.tree
        node = tree.find(source)
        if node is None:
            raise os_error(errno.ENOENT, source)
        target_node = tree.find(target)
        if target_node is node:
            return
        if isinstance(target_node, Directory):
            if isinstance(node, FileContent):
                raise os_error(errno.EISDIR, target)
            if target_node.current:
                raise os_error(errno.ENOTEMPTY, target)
        lost = tree.set_entries((*tree.parent(source), None), (*tree.parent(target), node))
        self._state.names_lost(lost)

    def remove(self, path: str) -> None:
        self._state.demand_power()
        tree = self._state.tree
        tree.file(path)
        self._state.names_lost(tree.set_entries((*tree.parent(path), None)))

    def remove_tree(self, path: str) -> None:
        self._state.demand_power()
        tree = self._state.tree
        directory = tree.directory(path)
        for name, node in list(directory.current.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        tree.set_entries((*tree.parent(path), None))

    def sync_dir(self, path: str) -> None:
        directory = self._state.tree.directory(path)
        if fault := self._state.strike("sync", path):
            raise os_error(fault.error, path)
        self._state.tree.sync_dir(directory)

    def read_file(self, path: str) -> bytes:
        content = self._state.tree.file(path)
        if fault := self._state.strike("read", path):
            raise os_error(fault.error, path)
        return bytes(content.current)

    def replace_file(self, path: str, data: bytes) -> None:
        tree = self._state.tree
        directory, name = tree.parent(path)
        if fault := self._state.strike("sync", path):
            raise os_error(fault.error, path)
        content = FileContent()
        if self._state.room_for(content, 0, len(data)) < len(data):
            raise os_error(errno.ENOSPC, path)
        content.write_through(0, data)
        self._state.names_lost(tree.set_entries((directory, name, content)))
        tree.sync_dir(directory)

    def begin_sync_all(self, path: str) -> SimSyncAll | None:
        self._state.demand_power()
        return SimSyncAll(self._state, path) if self._state.syncs_all else None

    def free_bytes(self, path: str) -> int:
        self._state.demand_power()
        capacity_bytes = self._state.capacity_bytes
        return 1 << 40 if capacity_bytes is None else max(capacity_bytes - self._state.used_bytes(), 0)

    def total_bytes(self, path: str) -> int:
        self._state.demand_power()
        capacity_bytes = self._state.capacity_bytes
        return 1 << 40 if capacity_bytes is None else capacity_bytes

    def _strike_open(self, path: str) -> None:
        if fault := self._state.strike("open", path):
            raise os_error(fault.error, path)
