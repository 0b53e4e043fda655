"""What the broker sees of a log, whatever its durability class.

A log has one writer, the event loop's thread. `append` does not wait: the batch has its offset at once, and
`acknowledged_end` moves past it when the class's promise holds (memory: appended, cache: written, disk: synced).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.log.batches import Slice
from ottla.log.epochs import LeaderEpochs
from ottla.machines.producers import ProducerStates
from ottla.machines.transactions.partition_table import PartitionTransactions
from ottla.model.errors import Refused
from ottla.model.ids import LogKey
from ottla.model.topic_config import TopicConfig
from ottla.records.batch import BatchHeader
from ottla.records.produce_run import BatchRun


class Damage(NamedTuple):
    """A part of a segment that does not read back as it was written."""

    path: str
    position: int
    first_offset: int
    next_offset: int
    """Where intact records go on."""
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at position {self.position}: {self.reason}. Offsets {self.first_offset} to "
            f"{self.next_offset - 1} cannot be read; everything else can. Look with: ottla log verify {self.path}"
        )


class ColdRead(NamedTuple):
    """A read that has to wait for the disk: `run` blocks, so it goes to a disk thread. `ended` follows it, on the
    event loop's thread; a read that is never run keeps its file from being recycled, nothing worse."""

    run: Callable[[], Slice | Refused]
    ended: Callable[[], None]


class LogEvents(Protocol):
    """How a log tells its owner. Called on the event loop's thread."""

    def on_acknowledged(self) -> None: ...

    def on_log_failed(self, error: OSError) -> None: ...


class Log(Protocol):
    key: LogKey
    config: TopicConfig
    producers: ProducerStates
    transactions: PartitionTransactions
    epochs: LeaderEpochs
    start_offset: int
    end_offset: int
    failed: OSError | None

    @property
    def acknowledged_end(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def newest_ms(self) -> int:
        """No record near the end of the log has a later time; -1 if there is none."""
        ...

    def refusal(self, size_bytes: int, record_count: int = 1) -> Refused | None:
        """Why a batch of this size cannot be taken now, or None. Reserves what the append will need."""
        ...

    def append(self, header: BatchHeader, batch: memoryview) -> None:
        """Header and batch carry the offset and epoch already; the offset is `end_offset`."""
        ...

    def takes_run(self, run: BatchRun) -> bool:
        """Whether all these batches can be taken now, as they are."""
        ...

    def append_run(self, run: BatchRun) -> None:
        """Many batches, stamped, their producers noted: the same as appending one after another."""
        ...

    def read(self, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True) -> Slice | ColdRead | Refused:
        """Whole batches below `upto`, from the one that holds `offset`. Consumers do not get those that compaction has
        emptied, unless there is nothing else: many a client stumbles over them."""
        ...

    def advance_start(self, offset: int, done: Callable[[OSError | None], None]) -> None:
        """Records below the offset are gone, for good once `done` is called."""
        ...

    def apply_retention(self, now_ms: int) -> None: ...
