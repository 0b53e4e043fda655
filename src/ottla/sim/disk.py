"""A disk in memory that misbehaves as badly as real disks do, but deterministically.

    disk = SimDisk(clock, seed=7, capacity_bytes=1 << 20)
    ... run a broker on it ...
    disk.faults.fail_sync(path="journal")        # planned faults: see `faults.py`
    disk.stall("journal")                        # completions are held until release("journal")
    after = disk.crash(seed=1)                   # power failure: what a restarted broker finds
    after = disk.crash(seed=1, keep="all")       # kill -9: the page cache survives, still unsynced
    after = disk.crash(keep="none")              # exactly what was synced

A crash turns this disk off and leaves its state alone, so that one moment can be crashed in many ways.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from ottla.ports import Clock, DiskQueue, FileSystem
from ottla.sim.content import BLOCK_BYTES, FileContent, torn
from ottla.sim.disk_queue import SimDiskQueue
from ottla.sim.faults import Faults
from ottla.sim.files import DiskState, SimFile, SimFileSystem

Keep = Literal["some", "all", "none"]
QueueName = Literal["journal", "segment", "sync", "read", "compaction", "catalog"]
QUEUES: tuple[QueueName, ...] = ("journal", "segment", "sync", "read", "compaction", "catalog")


class SimDisk:
    """Implements `ports.Disk`. The directory `root` exists durably from the start, as if an operator had created it."""

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        capacity_bytes: int | None = None,
        alignment: int = BLOCK_BYTES,
        root: str = "/data",
    ) -> None:
        self.clock = clock
        self.seed = seed
        self.faults = Faults()
        self.state = DiskState(seed, capacity_bytes, alignment, self.faults)
        self._queues = {name: SimDiskQueue(clock, self.state, ends_with_failure=name == "journal") for name in QUEUES}
        self.files: FileSystem = SimFileSystem(self.state)
        self.journal_queue: DiskQueue = self._queues["journal"]
        self.segment_queue: DiskQueue = self._queues["segment"]
        self.sync_queue: DiskQueue = self._queues["sync"]
        self.read_queue: DiskQueue = self._queues["read"]
        self.compaction_queue: DiskQueue = self._queues["compaction"]
        self.catalog_queue: DiskQueue = self._queues["catalog"]
        self.state.tree.make_dirs(root)
        self.state.make_all_names_durable()

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity. It may be changed while the disk is in use, to fill the disk or to free space."""
        return self.state.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self.state.capacity_bytes = capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Space of all allocated blocks, including those of removed files that are still open."""
        return self.state.used_bytes()

    def crash(self, seed: int = 0, *, keep: Keep = "some") -> SimDisk:
        """Turns this disk off and returns what a restart finds, on a new disk without faults.

        Pending requests may have been performed, the next of them partially. `some` simulates a power failure: an
        arbitrary part of the unsynced data survives. `all` kills only the process: the page cache stays as it is.
        `none` is a power failure that loses all unsynced data and performs no pending request.
        """
        self.state.off = True
        rng = Random(f"{self.seed}/{seed}")
        survivor = SimDisk(self.clock, seed=seed, capacity_bytes=self.capacity_bytes, alignment=self.state.alignment)
        survivor.state.tree, copies = self.state.tree.copy()
        if keep != "none":
            for queue in self._queues.values():
                _perform_interrupted(queue, copies, survivor.state, rng)
        if keep != "all":
            survivor.state.lose_power(rng if keep == "some" else None)
        return survivor

    def stall(self, queue: QueueName) -> None:
        """Makes a queue accept requests without performing them."""
        self._queues[queue].stall()

    def release(self, queue: QueueName, count: int | None = None) -> None:
        """Resumes a stalled queue. With a count, performs that many writes and syncs and keeps the rest."""
        self._queues[queue].release(count)

    def slow_down(self, queue: QueueName, latency_ms: float, bytes_ms: float | None = None) -> None:
        """Sets how long each write and sync takes from now on; `bytes_ms` makes large writes slower."""
        self._queues[queue].latency_ms = latency_ms
        self._queues[queue].bytes_ms = bytes_ms

    @property
    def syncs_all(self) -> bool:
        """True if the system can sync a whole file system at once. May be changed."""
        return self.state.syncs_all

    @syncs_all.setter
    def syncs_all(self, syncs_all: bool) -> None:
        self.state.syncs_all = syncs_all

    def damage(self, path: str, offset: int, mask: int = 0x01, length: int = 1) -> None:
        """Flips the mask's bits in `length` bytes, in the page cache and on stable storage."""
        content = self.state.tree.file(path)
        for image in (content.current, content.durable):
            for at in range(offset, min(offset + length, len(image))):
                image[at] ^= mask

    def durable_bytes(self, path: str) -> bytes:
        """Returns what a power failure is certain to leave in this file, if its name survives."""
        return bytes(self.state.tree.file(path).durable)

    def wipe(self, path: str) -> None:
        """Empties a directory durably, as if somebody had replaced the disk."""
        self.files.remove_tree(path)
        self.files.make_dirs(path)
        self.state.make_all_names_durable()

    def drop_page_cache(self) -> None:
        """Makes `read_cached` find nothing until `warm_page_cache`."""
        self.state.cache_cold = True

    def warm_page_cache(self) -> None:
        """Ends `drop_page_cache`: all content is cached again."""
        self.state.cache_cold = False


def _perform_interrupted(queue: SimDiskQueue, copies: dict[int, FileContent], state: DiskState, rng: Random) -> None:
    """Performs what the pending requests of a queue had done when the process ended: some completely, the next one
    partially."""
    pending = queue.pending_requests()
    performed = rng.randint(0, len(pending))
    for number, request in enumerate(pending[: performed + 1]):
        if not isinstance(request.file, SimFile) or id(request.file.content) not in copies:
            continue
        content = copies[id(request.file.content)]
        if request.data is None:
            if number < performed:
                content.sync()
            continue
        parts = [(request.offset, request.data)]
        if number == performed:
            parts = torn(request.data, request.offset, rng)
        for offset, part in parts:
            if state.room_for(content, offset, len(part)) < len(part):
                return
            (content.write_through if request.file.durable else content.write)(offset, part)
