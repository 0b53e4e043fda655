"""A follower that appends batches as one run has the same state as one that appends them singly."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.broker.partition import follower_partition as following
from ottla.broker.storage.memory_log import MemoryLog
from ottla.protocol.records.batch import stamp
from ottla.protocol.records.control import ControlKind, end_transaction_batch
from ottla.protocol.records.record import Record, encode_batch
from ottla.protocol.records.replica_run import find_followed_run
from tests.support.sim_broker import BrokerBench
from tests.unit.broker.partition.test_following import EPOCH, Bench

SEEDS = range(60)
NOW_MS = 1_700_000_000_000


class Leader:
    """Batches as a leader sends them: of all kinds, in log order, sometimes invalid."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._offset, self._epoch = 0, 1
        self._sequences = {7: 0, 8: 0, 9: 0}
        self._in_transaction = False

    def answer(self) -> bytes:
        return b"".join(self._batch() for _ in range(self._rng.randint(1, 12)))

    def _batch(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.1:
            self._epoch = min(self._epoch + 1, EPOCH)
        if self._in_transaction and rng.random() < 0.3:
            self._in_transaction = False
            batch = end_transaction_batch(
                rng.choice([ControlKind.abort, ControlKind.commit]),
                producer_id=9,
                producer_epoch=0,
                coordinator_epoch=1,
                timestamp_ms=NOW_MS,
            )
            return self._stamped(batch, 1)
        count = rng.randint(1, 4)
        timestamp_ms = -1 if rng.random() < 0.03 else NOW_MS + rng.randint(-500, 500)
        records = [Record(place, timestamp_ms, b"key", b"value" * count) for place in range(count)]
        return self._stamped(encode_batch(records, **self._producer(count)), count)

    def _producer(self, count: int) -> dict[str, Any]:
        kind = self._rng.random()
        if kind < 0.5:
            return {}
        if kind < 0.55:
            return {"producer_id": 6, "producer_epoch": 0, "base_sequence": -1}
        producer_id = 9 if kind < 0.65 else self._rng.choice([7, 8])
        self._in_transaction |= producer_id == 9
        sequence, self._sequences[producer_id] = self._sequences[producer_id], self._sequences[producer_id] + count
        numbers = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        return {**numbers, "transactional": True} if producer_id == 9 else numbers

    def _stamped(self, batch: bytearray, count: int) -> bytes:
        wrong = self._rng.random()
        stamp(batch, self._offset + (wrong < 0.01), EPOCH + 1 if 0.01 < wrong < 0.02 else self._epoch)
        if 0.02 < wrong < 0.04:
            batch[self._rng.randrange(len(batch))] ^= 1 << self._rng.randrange(8)
        self._offset += count
        return bytes(batch[: -self._rng.randint(1, 9)] if 0.04 < wrong < 0.05 else batch)


async def bench_of(durability: str) -> Bench:
    broker = BrokerBench()
    await broker.create("t", durability=durability)
    return Bench(broker.partition("t"))


def known(bench: Bench) -> tuple[Any, ...]:
    log = bench.partition.log
    untimed = dict(log._untimed) if isinstance(log, MemoryLog) else log.active.untimed_ms
    return (
        untimed,
        log.end_offset,
        log.acknowledged_end,
        list(log.epochs),
        list(log.producers),
        log.transactions,
        bench.ends,
    )


@pytest.mark.parametrize("durability", ["memory", "cache", "disk"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_runs_are_the_same_as_single_batches(seed: int, durability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_runs, one_by_one = await bench_of(durability), await bench_of(durability)
    leader = Leader(seed)
    for _ in range(8):
        records = leader.answer()
        error = in_runs.take(records, watermark=1000)
        with monkeypatch.context() as patched:
            patched.setattr(following, "find_followed_run", lambda *_: None)
            assert one_by_one.take(records, watermark=1000) is error
        assert known(in_runs) == known(one_by_one)
        leader._offset = in_runs.partition.log.end_offset


def test_plain_batches_are_one_run() -> None:
    """Otherwise the test above would show nothing."""
    batches = []
    for offset in range(40):
        batch = encode_batch([Record(0, NOW_MS, None, b"value")])
        stamp(batch, offset, 1)
        batches.append(bytes(batch))
    records = memoryview(b"".join(batches))
    run = find_followed_run(records, 0, 0, 0, EPOCH)
    assert run is not None
    assert (len(run), run.size_bytes, run.ends[-1]) == (40, len(records), 40)
