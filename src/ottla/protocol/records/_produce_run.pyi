from collections.abc import Sequence

from ottla.protocol.wire.produce import TopicKey

class ProduceRun:
    version: int
    acks: int
    timeout_ms: int
    topic: TopicKey
    partition: int
    record_count: int
    size_bytes: int
    frame_bytes: int
    has_producers: bool
    batches: list[memoryview]
    max_timestamps: list[int]
    bases: list[int]
    ends: list[int]
    leader_epoch: int
    def __len__(self) -> int: ...
    def cut(self, count: int) -> None: ...
    def admit(self, size_bytes_max: int, after_max_ms: int, before_max_ms: int, now_ms: int) -> int: ...
    def stamp(self, base_offset: int, leader_epoch: int) -> None: ...
    def replies(self, acknowledged_end: int, error: int, log_start_offset: int) -> bytes: ...

def find_run(frames: Sequence[memoryview], at: int, count_max: int) -> ProduceRun | None: ...
