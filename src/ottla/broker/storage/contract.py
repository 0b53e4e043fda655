"""The interface of a log, independent of its durability class.

A log has one writer, the event loop's thread. `append` does not wait: the batch gets its offset at once, and
`acknowledged_end` moves past it when the promise of the class holds (memory: appended, cache: written, disk: synced).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ottla.broker.storage.batches import Slice
from ottla.broker.storage.epochs import LeaderEpochs
from ottla.machines.producers import ProducerStates
from ottla.machines.transactions.partition_table import PartitionTransactions
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import LogKey
from ottla.protocol.model.topic_config import TopicConfig
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.produce_run import BatchRun


class Damage(NamedTuple):
    """A damaged part of a segment: it does not read back as it was written."""

    path: str
    position: int
    first_offset: int
    next_offset: int
    """The offset at which intact records resume."""
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} is damaged at position {self.position}: {self.reason}. Offsets {self.first_offset} "
            f"to {self.next_offset - 1} cannot be read; all other offsets can. To check the file, run: ottla "
            f"log verify {self.path}"
        )


class ColdRead(NamedTuple):
    """A read that has to wait for the disk. `run` blocks, so it belongs on a disk thread. `ended` is called afterwards
    on the event loop's thread. A read that is never run only keeps its file from being recycled."""

    run: Callable[[], Slice | Refused]
    ended: Callable[[], None]


class LogEvents(Protocol):
    """Callbacks from a log to its owner, on the event loop's thread."""

    @property
    def high_watermark(self) -> int:
        """Retention removes nothing at or above this offset."""
        ...

    def on_acknowledged(self) -> None:
        """`acknowledged_end` has moved."""
        ...

    def on_log_failed(self, error: OSError) -> None:
        """The log has failed and accepts no more records."""
        ...


class Log(Protocol):
    """A log of any durability class."""

    key: LogKey
    config: TopicConfig
    producers: ProducerStates
    transactions: PartitionTransactions
    epochs: LeaderEpochs
    start_offset: int
    end_offset: int
    failed: OSError | None

    @property
    def acknowledged_end(self) -> int:
        """Everything below this offset is as durable as the class promises."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size of all batches in the log."""
        ...

    @property
    def newest_ms(self) -> int:
        """An upper bound on the timestamps of the records near the end of the log; -1 if there are none."""
        ...

    def refusal(self, size_bytes: int, record_count: int = 1) -> Refused | None:
        """Returns why a batch of this size cannot be accepted now, or None. Reserves the resources that the append will
        need."""
        ...

    def append(self, header: BatchHeader, batch: memoryview) -> None:
        """Appends a batch. Header and batch already carry the offset, which is `end_offset`, and the leader epoch."""
        ...

    def takes_run(self, run: BatchRun) -> bool:
        """Reports whether all these batches can be appended now without further preparation."""
        ...

    def append_run(self, run: BatchRun) -> None:
        """Appends many batches, with the same result as appending them one by one. They are stamped, and their producer
        state is already recorded."""
        ...

    def read(self, offset: int, max_bytes: int, upto: int, *, keeps_empty: bool = True) -> Slice | ColdRead | Refused:
        """Reads whole batches below `upto`, from the one that holds `offset`. Batches that compaction has emptied are
        left out for consumers, unless there is nothing else, because many clients cannot handle them."""
        ...

    def advance_start(self, offset: int, done: Callable[[OSError | None], None]) -> None:
        """Moves the log's start. The records below the offset are gone permanently once `done` is called."""
        ...

    def apply_retention(self, now_ms: int) -> None:
        """Removes records that the topic's retention settings have expired."""
        ...
