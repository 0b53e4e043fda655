"""Runs of produce requests: compiled against plain code, and a run against the same requests one by one."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import produce
from ottla.broker.api.api import ConnectionState
from ottla.broker.api.dispatch import dispatch, dispatch_run
from ottla.broker.partition.offset_lookups import offset_for_time
from ottla.broker.partition.pending_reply import PendingReply
from ottla.broker.storage import index as log_index
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.index import SparseIndex
from ottla.broker.storage.journal import entries
from ottla.broker.storage.journal.format import BLOCK_HEADER_BYTES, ENTRY_BYTES
from ottla.protocol.records.batch import read_header, sign, write_header
from ottla.protocol.records.produce_run import FindRun, ProduceRun, find_run, find_run_plainly
from ottla.protocol.wire.headers import request_header
from ottla.protocol.wire.produce import TopicKey, encode_produce_request
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of

SEEDS = range(40)
NOW_MS = 1_700_000_000_000
LIMITS = (100_000, 3_600_000, 10 * 3_600_000)
BOTH: list[FindRun] = [find_run_plainly, find_run]


def frame_of(
    topic: TopicKey, batch: bytes | None, *, version: int = 9, number: int = 1, acks: int = -1, partition: int = 0
) -> memoryview:
    body = encode_produce_request(version, None, acks, 5000, [(topic, [(partition, batch)])])
    return memoryview(bytearray(request_header(0, version, number, "client") + b"".join(body)))


def random_batch(rng: random.Random, now_ms: int = NOW_MS) -> bytes:
    """Mostly valid."""
    batch = bytearray(
        batch_of(
            [rng.randbytes(rng.choice([0, 3, 200]))] * rng.randint(1, 4),
            timestamps_ms=[now_ms + rng.choice([0, 0, 5, -7, 4_000_000, -40_000_000])],
            leader_epoch=-1,
        )
    )
    if rng.random() < 0.2:
        header = read_header(batch)
        odd = {
            "batch_length": rng.choice([-1, 0, header.batch_length + 1]),
            "magic": rng.choice([0, 1, 3]),
            "attributes": rng.choice([1, 4, 7, 8, 16, 32, 64, -1]),
            "last_offset_delta": rng.choice([-1, 9, 2**31 - 1]),
            "record_count": rng.choice([-1, 0, 9]),
            "base_timestamp": rng.choice([-1, 0, 2**63 - 1]),
            "max_timestamp": rng.choice([-1, 2**63 - 1, -(2**63)]),
            "producer_id": 7,
        }
        name = rng.choice(sorted(odd))
        write_header(batch, header._replace(**{name: odd[name]}))
        sign(batch)
    if rng.random() < 0.05:
        batch[rng.randrange(len(batch))] ^= 0x40
    return bytes(batch)


def random_frame(rng: random.Random, topic: TopicKey, version: int, number: int) -> memoryview:
    batch = None if rng.random() < 0.02 else random_batch(rng)
    acks = rng.choice([2, 0, 1]) if rng.random() < 0.03 else -1
    frame = frame_of(topic, batch, version=version, number=number, acks=acks, partition=rng.random() < 0.03)
    if rng.random() < 0.1:
        frame[rng.randrange(min(len(frame), 60))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    if rng.random() < 0.05:
        frame = frame[: rng.randrange(8, len(frame))]
    if rng.random() < 0.03:
        frame = memoryview(bytearray(bytes(frame) + b"\0"))
    return frame


def told_by(run: ProduceRun | None, frames: list[memoryview]) -> list[Any]:
    """Returns all replies and effects of a run."""
    if run is None:
        return []
    way = [run.version, run.acks, run.timeout_ms, run.topic, run.partition]
    found = [len(run), run.record_count, run.size_bytes, run.frame_bytes, [bytes(batch) for batch in run.batches]]
    count = run.admit(*LIMITS, NOW_MS)
    assert count == len(run) == len(run.batches)
    run.cut(count - count // 3)
    run.stamp(2**40, 5)
    after = [count, run.has_producers, run.record_count, run.size_bytes, run.frame_bytes]
    ends = run.ends or [0]
    replies = [run.replies(end, 56, 3) for end in (2**62, 0, ends[len(ends) // 2])]
    stamped = [run.max_timestamps, run.bases, run.ends, run.leader_epoch, list(map(bytes, frames))]
    return [way, found, after, replies, stamped]


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_and_plain_runs_agree(seed: int) -> None:
    if find_run is find_run_plainly:
        pytest.skip("not compiled here")
    rng = random.Random(seed)
    longest = 0
    for _ in range(60):
        version = rng.randint(9, 13) if rng.random() < 0.9 else rng.choice([-1, 3, 8, 14])
        topic: TopicKey = rng.choice(["t", "ünï", "n" * 126, "n" * 127])
        if version == 13:
            topic = UUID(int=rng.getrandbits(128))
        frames = [random_frame(rng, topic, version, number) for number in range(8)]
        at, count_max = rng.randrange(4), rng.choice([0, 1, 3, 100])
        told = []
        for find in BOTH:
            own = [memoryview(bytearray(frame)) for frame in frames]
            run = find(own, at, count_max)
            longest = max(longest, 0 if run is None else len(run))
            told.append(told_by(run, own))
        assert told[0] == told[1]
    assert longest > 1


@pytest.mark.parametrize("find", BOTH)
def test_what_nobody_may_write_to_is_no_run(find: FindRun) -> None:
    frame = memoryview(bytes(frame_of("t", batch_of())))
    assert find([frame], 0, 10) is None


@pytest.mark.parametrize("seed", range(10))
def test_entries_are_packed_alike(seed: int) -> None:
    rng = random.Random(seed)
    batches = []
    for _ in range(rng.randint(0, 5)):
        batch = bytearray(
            batch_of([b"x"] * rng.randint(1, 3), base_offset=rng.getrandbits(60), leader_epoch=rng.getrandbits(30))
        )
        batches.append(memoryview(batch))
    key = rng.randbytes(24)
    results = []
    for pack in (entries.pack_appends_into, entries.pack_appends_plainly):
        into = bytearray(b"\xee" * (BLOCK_HEADER_BYTES + 5 * ENTRY_BYTES))
        pack(into, BLOCK_HEADER_BYTES, key, batches)
        results.append(bytes(into))
        with pytest.raises(ValueError, match="do not fit"):
            pack(into, len(into) - ENTRY_BYTES, key, [memoryview(batch_of())] * 2)
    assert results[0] == results[1]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("note_run", [log_index.note_run, log_index.note_run_plainly])
def test_an_index_takes_many_batches_as_it_takes_each(
    note_run: Callable[..., tuple[int, int]], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_index, "note_run", note_run)
    rng = random.Random(seed)
    one_by_one, together = SparseIndex(1000), SparseIndex(1000)
    base_offset = offset = rng.getrandbits(50)
    position, newest, noted = 0, -1, -1
    for _ in range(10):
        begin = rng.choice([0, position])
        bases, positions, timestamps = [], [], []
        for _ in range(rng.randint(1, 8)):
            timestamps.append(rng.randint(0, 1000))
            newest = max(newest, timestamps[-1])
            one_by_one.note(offset - base_offset, position, newest)
            bases.append(offset)
            positions.append(position - begin)
            offset += rng.randint(1, 5)
            position += rng.randint(61, 900)
        noted = together.note_run(bases, base_offset, positions, begin, timestamps, noted)
        assert noted == newest
        assert together.unpersisted() == one_by_one.unpersisted()
    assert 1 < len(together) < 80


def test_an_index_refuses_what_no_segment_has() -> None:
    for base, position in ((1 << 32, 0), (0, 1 << 32), (-1, 0)):
        for note_run in (log_index.note_run, log_index.note_run_plainly):
            columns = array("I"), array("I"), array("q")
            with pytest.raises(OverflowError):
                note_run(*columns, 0, 1000, [base], 0, [position], 0, [5], -1)


# -- a run against single requests, in a whole broker ----------------------------------------------------------------


class Connection:
    """Sends frames to a broker, together or one by one, and collects the replies in order."""

    def __init__(self, bench: BrokerBench) -> None:
        self._bench = bench
        self._state = ConnectionState("test")
        self._replies: list[Any] = []
        self.runs: list[int] = []

    def send_together(self, frames: list[memoryview]) -> None:
        at = 0
        while at < len(frames):
            replies, taken = dispatch_run(self._bench.broker, self._state, frames, at, 1000)
            self.runs.append(taken)
            if taken:
                self._replies.append(replies)
            else:
                self.send_singly([frames[at]])
            at += max(taken, 1)

    def send_singly(self, frames: list[memoryview]) -> None:
        for frame in frames:
            self._replies.append(dispatch(self._bench.broker, self._state, frame))

    async def replies(self) -> bytes:
        out = bytearray()
        for reply in self._replies:
            if isinstance(reply, PendingReply | asyncio.Future):
                reply = await self._bench.until(reply)
            if isinstance(reply, list):
                whole = b"".join(reply)
                reply = len(whole).to_bytes(4, "big") + whole
            out += reply or b""
        return bytes(out)


def requests_of(rng: random.Random, now_ms: int) -> list[list[memoryview]]:
    """Requests for each of several loop iterations: valid and invalid, idempotent and not, for some partitions."""
    sequences = [0, 0]
    turns = []
    for turn in range(6):
        frames = []
        partition = rng.randrange(2)
        for number in range(rng.randint(1, 12)):
            partition = rng.randrange(3) if rng.random() < 0.1 else partition
            count = rng.randint(1, 3)
            producer = {}
            if partition < 2 and rng.random() < 0.4:
                odd = rng.random()
                sequence = sequences[partition] + (5 if odd < 0.1 else 0)
                sequence = max(sequence - count, 0) if odd > 0.9 else sequence
                sequences[partition] = max(sequences[partition], sequence + count)
                producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
            values = [rng.randbytes(rng.choice([1, 50, 400]))] * count
            batch = bytearray(batch_of(values, timestamps_ms=[now_ms - rng.randint(0, 9)], leader_epoch=-1, **producer))
            if rng.random() < 0.05:
                batch[-1] ^= 1
            acks = 0 if rng.random() < 0.1 else -1
            frames.append(frame_of("t", bytes(batch), number=100 * turn + number, acks=acks, partition=partition))
        turns.append(frames)
    return turns


CONFIGS: list[dict[str, str]] = [
    {"durability": "disk"},
    {"durability": "cache"},
    {"durability": "memory"},
    {"durability": "disk", "segment_bytes": "4096", "index_interval_bytes": "256"},
    {"durability": "cache", "segment_bytes": "4096", "index_interval_bytes": "256"},
    {"durability": "memory", "retention_bytes": "3000"},
    {"durability": "disk", "max_message_bytes": "500"},
    {"durability": "cache", "message_timestamp_type": "LogAppendTime"},
    {"durability": "disk", "compression_type": "gzip"},
]


async def outcome_of(
    seed: int, config: dict[str, str], send: Callable[[Connection], Callable[[list[memoryview]], None]]
) -> tuple[list[Any], list[int]]:
    rng = random.Random(seed)
    bench = BrokerBench(ottla_tail_cache_bytes="2000")
    await bench.create("t", 2, **config)
    connection = Connection(bench)
    for frames in requests_of(rng, bench.clock.now_ms()):
        send(connection)(frames)
        if rng.random() < 0.5:
            bench.clock.run_until_idle()
    seen: list[Any] = [await connection.replies()]
    for again in (False, True):
        if again and config["durability"] == "disk":
            bench.restart()
        for index in range(2):
            partition = bench.partition("t", index)
            log = partition.log
            producers = sorted((entry.producer_id, entry.epoch, tuple(entry.batches)) for entry in log.producers)
            seen += [partition.log.start_offset, partition.log.end_offset, producers, list(log.epochs)[:1]]
            if isinstance(log, FileLog):
                seen += [(part.base_offset, part.appended_end, part.index.last_entry()) for part in log.segments]
            seen += [await bench.values("t", index)]
            found = await bench.until(offset_for_time(partition, bench.clock.now_ms() - 5))
            seen.append(found)
    return seen, connection.runs


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("find", BOTH, ids=["plain", "best"])
async def test_a_run_does_what_its_requests_do(
    config: dict[str, str], find: FindRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "find_run", find)
    longest = 0
    for seed in range(5):
        together, runs = await outcome_of(seed, config, lambda connection: connection.send_together)
        singly, _ = await outcome_of(seed, config, lambda connection: connection.send_singly)
        # The replies of a run report the log start after the whole run: retention may have moved it within the run.
        compared = slice(1 if "retention_bytes" in config else 0, None)
        assert together[compared] == singly[compared]
        longest = max(longest, *runs)
    opens = "compression_type" in config or "message_timestamp_type" in config
    assert longest == 0 if opens else longest > 2
