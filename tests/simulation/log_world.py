"""Logs on a simulated disk beside a model: a list of batches for each log.

The model knows what was appended, in order, and up to where it was acknowledged. After a crash a log must hold a prefix
of the appended batches that is at least as long as the acknowledged part: nothing acknowledged is missing, nothing is
duplicated, reordered or invented.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.contract import ColdRead
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.journal import JournalLimits
from ottla.broker.storage.log_resources import LogResources, MemoryBudget
from ottla.broker.storage.retention import apply_retention
from ottla.broker.storage.tail_cache import TailCache
from ottla.broker.topics.log_store import LogStore
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId
from ottla.protocol.model.topic_config import TopicConfig, parse_topic_config
from ottla.protocol.records.batch import read_header, stamp
from ottla.protocol.records.record import Record, encode_batch
from ottla.sim.clock import SimClock
from ottla.sim.disk import Keep, SimDisk
from tests.support.sim_logs import InlineQueue

JOURNAL_ID = bytes(range(16))
LIMITS = JournalLimits(ring_bytes_max=256 * 1024, file_bytes_max=32 * 1024, group_bytes_max=16 * 1024, early_bytes=1000)


def config_of(durability: str, **overrides: str) -> TopicConfig:
    settings = {"ottla.durability": durability, **{key.replace("_", "."): value for key, value in overrides.items()}}
    config = parse_topic_config(settings)
    assert not isinstance(config, Refused), config
    return config


@dataclass(slots=True)
class LogModel:
    key: LogKey
    config: TopicConfig
    batches: list[bytes] = field(default_factory=list)
    """Every batch that was appended and may be in the log, in order, as stamped."""
    acknowledged_end: int = 0
    durable_start: int = 0
    next_sequence: int = 0

    @property
    def end_offset(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    @property
    def is_disk(self) -> bool:
        return self.config.durability == "disk"


class LogWorld:
    """With `inline`, small segment writes complete before their call returns, as on the real disk. `retention_ms` lets
    log segments expire during the run."""

    def __init__(
        self,
        seed: int,
        log_count: int = 3,
        *,
        tail_bytes: int = 16 * 1024,
        inline: bool = False,
        retention_ms: int = -1,
    ) -> None:
        self.random = Random(seed)
        self._inline = inline
        self._retention_ms = retention_ms
        self._kept: Keep = "all"
        self.clock = SimClock()
        self.disk = SimDisk(self.clock, seed=seed)
        self.reports: list[str] = []
        self._tail_bytes = tail_bytes
        self.models = [self._model(number) for number in range(log_count)]
        self.epoch = 0
        self.store: LogStore
        self.start()

    def _model(self, number: int) -> LogModel:
        durability = "cache" if number % 3 == 2 else "disk"
        key = LogKey(TopicId(UUID(int=number + 100)), PartitionIndex(0))
        config = config_of(
            durability,
            segment_bytes="4096",
            index_interval_bytes="256",
            retention_ms=str(self._retention_ms),
        )
        return LogModel(key, config)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_ms() / 1000

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.epoch += 1
        if self._inline:
            self.disk.segment_queue = InlineQueue(self.disk.segment_queue)
        shared = LogResources(
            disk=self.disk,
            clock=self.clock,
            tail=TailCache(self._tail_bytes),
            memory=MemoryBudget(1 << 20),
            report=self.reports.append,
        )
        self.store = LogStore(shared, "/data", JOURNAL_ID, LIMITS)
        self.store.recover((model.key, model.config) for model in self.models)

    def crash(self, keep: Keep) -> None:
        self.observe()
        self._kept = keep
        seed = self.random.randrange(1 << 30)
        crash_clock_leftovers = self.clock
        self.disk = self.disk.crash(seed, keep=keep)
        self.clock = SimClock(crash_clock_leftovers.now_ms())
        self.disk = _on_clock(self.disk, self.clock)

    def observe(self) -> None:
        """Records what the logs have acknowledged so far."""
        for model in self.models:
            model.acknowledged_end = max(model.acknowledged_end, self.log(model).acknowledged_end)

    def log(self, model: LogModel) -> FileLog:
        return self.store.logs[model.key]

    # -- operations -----------------------------------------------------------------------------------------

    def append(self, model: LogModel, size: int) -> bool:
        log = self.log(model)
        count = self.random.randint(1, 4)
        values = [self.random.randbytes(max(size // count, 1)) for _ in range(count)]
        records = [Record(i, self.clock.now_ms(), None, value, ()) for i, value in enumerate(values)]
        batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=model.next_sequence & 0x7FFFFFFF)
        if log.refusal(len(batch)) is not None:
            return False
        stamp(batch, log.end_offset, self.epoch)
        header = read_header(batch)
        log.append(header, memoryview(batch))
        model.batches.append(bytes(batch))
        model.next_sequence += count
        return True

    def steps(self, count: int) -> None:
        for _ in range(count):
            if not self.clock.run_one():
                break
        self.observe()

    def settle(self, ms: float = 50.0) -> None:
        self.clock.advance(ms)
        self.observe()

    def flush(self, *, everything: bool) -> None:
        assert self.store.flusher is not None
        self.store.flusher.run(logs=[self.log(model) for model in self.models], everything=everything)

    def advance_start(self, model: LogModel) -> None:
        log = self.log(model)
        target = self.random.randint(log.start_offset, log.acknowledged_end)

        def done(error: OSError | None) -> None:
            if error is None and model.is_disk:
                model.durable_start = max(model.durable_start, target)

        log.advance_start(target, done)

    def retain(self, model: LogModel) -> None:
        assert self.store.flusher is not None
        apply_retention(self.log(model), self.store.flusher, self.clock.now_ms())

    def have_space(self) -> None:
        """Does what the broker's housekeeping does after a full disk."""
        reserve = self.store.shared.reserve
        if reserve is not None:
            reserve.hold()

    # -- invariants ------------------------------------------------------------------------------------------

    def check_after_restart(self) -> None:
        for model in self.models:
            self._check_log(model)

    def _check_log(self, model: LogModel) -> None:
        log = self.log(model)
        # A cache log keeps written batches when its process dies, and promises nothing for a power cut.
        acknowledged = model.acknowledged_end if model.is_disk or self._kept == "all" else 0
        assert log.end_offset >= acknowledged, f"acknowledged up to {acknowledged}, the log ends at {log.end_offset}"
        kept = [batch for batch in model.batches if read_header(batch).next_offset <= log.end_offset]
        ends = read_header(kept[-1]).next_offset if kept else 0
        assert log.end_offset == ends, f"the log ends at {log.end_offset}, inside a batch or beyond all of them"
        assert log.start_offset >= model.durable_start
        expected = [batch for batch in kept if read_header(batch).next_offset > log.start_offset]
        assert read_all(log) == expected
        entry = log.producers.get(7)
        last = read_header(kept[-1]).last_sequence if kept else None
        assert (entry.batches[-1].last_sequence if entry and entry.batches else None) == last
        model.batches = kept
        model.next_sequence = 0 if last is None else last + 1
        model.acknowledged_end = log.acknowledged_end


def read_all(log: FileLog) -> list[bytes]:
    """Returns everything that a reader can get, batch by batch."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.acknowledged_end:
        part = log.read(offset, 1024, log.acknowledged_end)
        if isinstance(part, ColdRead):
            cold = part
            part = cold.run()
            cold.ended()
        assert isinstance(part, Slice), part
        assert part.next_offset > offset, f"no progress at {offset}"
        data = b"".join(part.buffers)
        while data:
            size = read_header(data).size_bytes
            found.append(data[:size])
            data = data[size:]
        offset = part.next_offset
    return found


def _on_clock(disk: SimDisk, clock: SimClock) -> SimDisk:
    """Attaches the surviving disk to a new clock; the callbacks of the old one died with the process."""
    fresh = SimDisk(clock, seed=disk.seed, capacity_bytes=disk.capacity_bytes)
    fresh.state.tree = disk.state.tree
    return fresh
