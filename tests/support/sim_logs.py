"""Logs of one broker on a simulated disk, for tests of one behaviour each.

`LogBench` opens a store of logs, appends batches, advances time, cuts the power and restarts. Time passes only when a
test says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.flusher import Flusher
from ottla.broker.storage.journal import Journal, JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.ports import Completion, DataFile, DiskQueue, ReadOnlyBuffer
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.model.topic_config import TopicConfig, parse_topic_config
from ottla.protocol.records.batch import read_header, stamp
from ottla.protocol.records.record import Record, encode_batch
from ottla.sim.clock import SimClock
from ottla.sim.disk import Keep, SimDisk

JOURNAL_ID = bytes(range(16))
LIMITS = JournalLimits(ring_bytes_max=256 * 1024, file_bytes_max=32 * 1024, group_bytes_max=16 * 1024)
SMALL_SEGMENTS = {"segment.bytes": "4096", "index.interval.bytes": "256"}


def config_of(**settings: str) -> TopicConfig:
    """Builds a topic configuration; `_` stands for `.` and `durability` for `ottla.durability`."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    if "durability" in given:
        given["ottla.durability"] = given.pop("durability")
    config = parse_topic_config({**SMALL_SEGMENTS, **given})
    assert not isinstance(config, Refused), config
    return config


def key_of(number: int) -> LogKey:
    return LogKey(TopicId(UUID(int=number + 100)), PartitionIndex(0))


def batch_of(
    values: Iterable[bytes] = (b"value",),
    *,
    timestamps_ms: Iterable[int] = (1_700_000_000_000,),
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = 1,
) -> bytes:
    """Encodes a batch. The last timestamp applies to all remaining records."""
    times = list(timestamps_ms)
    records = [
        Record(base_offset + i, times[min(i, len(times) - 1)], b"key", value, ()) for i, value in enumerate(values)
    ]
    batch = encode_batch(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    stamp(batch, base_offset, leader_epoch)
    return bytes(batch)


class InlineQueue:
    """A queue that writes synchronously when it is empty, as the real one does with small writes: `done` is called
    before `write` returns."""

    def __init__(self, queue: DiskQueue) -> None:
        self._queue = queue
        self.call = queue.call
        self.sync = queue.sync
        self.pending = queue.pending
        self.close = queue.close

    def write(self, file: DataFile, offset: int, data: Sequence[ReadOnlyBuffer], done: Completion) -> None:
        if self._queue.pending():
            self._queue.write(file, offset, data, done)
            return
        failure: OSError | None = None
        try:
            file.write_at(offset, data)
        except OSError as error:
            failure = error
        done(failure)


class LogBench:
    """Log `n` has the durability class `durability[n]`."""

    def __init__(
        self,
        *durability: str,
        tail_bytes: int = 1 << 20,
        unwritten_bytes: int = 1 << 30,
        limits: JournalLimits = LIMITS,
        settings: Mapping[str, str] | None = None,
        seed: int = 1,
        inline: bool = False,
    ) -> None:
        self._inline = inline
        self.configs = {
            key_of(number): config_of(durability=name, **(settings or {})) for number, name in enumerate(durability)
        }
        self._tail_bytes = tail_bytes
        self._unwritten_bytes = unwritten_bytes
        self._limits = limits
        self.clock = SimClock()
        self.disk = SimDisk(self.clock, seed=seed)
        self.reports: list[str] = []
        self.deleted: set[TopicId] = set()
        """Topics that are deleted in the catalog."""
        self.epoch = 0
        self.store: LogStore
        self.start()

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.epoch += 1
        if self._inline:
            self.disk.segment_queue = InlineQueue(self.disk.segment_queue)
        shared = LogResources(
            disk=self.disk,
            clock=self.clock,
            tail=TailCache(self._tail_bytes, self._unwritten_bytes),
            memory=MemoryBudget(1 << 20),
            report=self.reports.append,
        )
        self.store = LogStore(shared, "/data", JOURNAL_ID, self._limits)
        self.store.recover(self.configs.items(), self.deleted)

    def crash(self, keep: Keep = "none", *, seed: int = 0) -> None:
        """Cuts the power (or, with `all`, kills the process); `start` continues from what the disk kept."""
        survivor = self.disk.crash(seed, keep=keep)
        self.clock = SimClock(self.clock.now_ms())
        self.disk = SimDisk(self.clock, seed=survivor.seed, capacity_bytes=survivor.capacity_bytes)
        self.disk.state.tree = survivor.state.tree

    def restart(self, keep: Keep = "none") -> None:
        self.crash(keep)
        self.start()

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def shared(self) -> LogResources:
        return self.store.shared

    @property
    def journal(self) -> Journal:
        assert self.store.shared.journal is not None
        return self.store.shared.journal

    @property
    def flusher(self) -> Flusher:
        assert self.store.flusher is not None
        return self.store.flusher

    def log(self, number: int = 0) -> FileLog:
        return self.store.logs[key_of(number)]

    def path(self, name: str, number: int = 0) -> str:
        return f"{self.store.directory_of(key_of(number))}/{name}"

    def names(self, number: int = 0) -> list[str]:
        directory = self.store.directory_of(key_of(number))
        return self.disk.files.list_dir(directory) if self.disk.files.exists(directory) else []

    # -- operations ------------------------------------------------------------------------------------------

    def append(
        self,
        number: int = 0,
        *,
        records: int = 1,
        value_bytes: int = 100,
        timestamp_ms: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> bytes | Refused:
        """Appends a batch and returns it as stored. `producer` is (id, epoch, sequence)."""
        log = self.log(number)
        first = log.end_offset
        values = [(b"%012d." % (first + i)) * (value_bytes // 13 + 1) for i in range(records)]
        producer_id, producer_epoch, base_sequence = producer
        batch = bytearray(
            batch_of(
                values,
                timestamps_ms=[self.clock.now_ms() if timestamp_ms is None else timestamp_ms],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )
        refused = log.refusal(len(batch))
        if refused is not None:
            return refused
        stamp(batch, log.end_offset, self.epoch)
        log.append(read_header(batch), memoryview(batch))
        return bytes(batch)

    def fill(self, number: int = 0, *, batches: int = 40, **options: int) -> list[bytes]:
        """Appends batches and settles; none may be rejected."""
        appended: list[bytes] = []
        for _ in range(batches):
            batch = self.append(number, **options)  # type: ignore[arg-type]  # the options of append that are numbers
            assert isinstance(batch, bytes), batch
            appended.append(batch)
        self.settle()
        return appended

    def settle(self, ms: float = 50.0) -> None:
        self.clock.advance(ms)

    def flush(self) -> None:
        """Syncs and checkpoints everything before it returns."""
        done: list[bool] = []
        self.flusher.run(lambda: done.append(True), list(self.store.logs.values()), everything=True)
        self.settle()
        assert done, "the flush does not end"

    def retain(self, number: int = 0) -> None:
        """Applies retention twice: the first run moves the start and checkpoints it, the second deletes the files."""
        for _ in range(2):
            apply_retention(self.log(number), self.flusher, self.clock.now_ms())
            self.settle()

    # -- observations ----------------------------------------------------------------------------------------

    def read(self, offset: int, number: int = 0, *, max_bytes: int = 1) -> list[bytes] | ErrorCode:
        """Returns the batches of one read, or the error code."""
        log = self.log(number)
        part = log.read(offset, max_bytes, log.acknowledged_end)
        if isinstance(part, ColdRead):
            part = part.run()
        return part.error if isinstance(part, Refused) else split(part)

    def read_all(self, number: int = 0) -> list[bytes]:
        """Reads everything from the log's start on."""
        log = self.log(number)
        found: list[bytes] = []
        offset = log.start_offset
        while offset < log.acknowledged_end:
            batches = self.read(offset, number, max_bytes=1000)
            assert isinstance(batches, list), f"{batches!r} at {offset}"
            assert batches, f"no progress at {offset}"
            found += batches
            offset = read_header(batches[-1]).next_offset
        return found


def split(part: Slice) -> list[bytes]:
    data = b"".join(part.buffers)
    found: list[bytes] = []
    while data:
        size = read_header(data).size_bytes
        found.append(data[:size])
        data = data[size:]
    return found


def offsets(batches: Iterable[bytes]) -> list[int]:
    return [read_header(batch).base_offset for batch in batches]
