"""Leader and follower on an in-memory log: their states agree, and nothing acknowledged is lost at a takeover."""

from __future__ import annotations

import asyncio
import random

import pytest

from ottla.recovery import (
    Follower,
    Leader,
    NotLeadingError,
    RecoveryError,
    RowTables,
    SnapshotStore,
    delete,
    lead,
    put,
    recover,
)
from ottla.recovery.entries import Change, Kind, decode
from ottla.wal import TooMuchInFlightError
from tests.support.recovery_memory_log import MemoryLog, Shared


async def a_leader(shared: Shared, store: SnapshotStore | None = None) -> Leader:
    return await lead(MemoryLog(shared, fence=True), RowTables(), store)


async def test_a_follower_has_what_the_leader_has() -> None:
    shared = Shared()
    leader = await a_leader(shared)
    follower = Follower(MemoryLog(shared), RowTables())
    await follower.start()
    await leader.write(put(b"a", b"1"))
    await leader.write_transaction([(Kind.PUT, "", b"b", b"2"), (Kind.DELETE, "", b"a", b"")])
    await leader.write_heartbeat()
    last = await leader.write_digest()
    await follower.wait_for(last)
    assert follower.applier.digest() == leader.applier.digest()
    assert follower.position.next_offset == leader.position.next_offset == last + 1
    await follower.stop()


async def test_writes_at_once_are_applied_in_the_order_of_the_log() -> None:
    shared = Shared()
    leader = await a_leader(shared)
    futures = [leader.write_nowait(put(b"n", b"%d" % number)) for number in range(100)]
    assert await asyncio.gather(*futures) == list(range(1, 101))
    assert leader.applier.digest() == (await a_leader(shared)).applier.digest()


async def test_a_write_whose_caller_is_gone_is_in_the_state_if_it_is_in_the_log() -> None:
    shared = Shared()
    leader = await a_leader(shared)
    task = asyncio.create_task(leader.write(put(b"a", b"1")))
    shared.grown.clear()
    await shared.grown.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await leader.write(put(b"b", b"1"))
    rebuilt = RowTables()
    await recover(MemoryLog(shared), rebuilt)
    assert rebuilt.digest() == leader.applier.digest()
    assert rebuilt.rows == {b"a": b"1", b"b": b"1"}


async def test_a_leader_stops_when_another_one_has_taken_over() -> None:
    shared = Shared()
    old = await a_leader(shared)
    follower = Follower(MemoryLog(shared), RowTables())
    await follower.start()
    await old.write(put(b"a", b"old"))
    new = await follower.take_over(MemoryLog(shared, fence=True))
    assert new.applier.digest() == old.applier.digest()
    waiting = old.write_nowait(put(b"a", b"too late"))
    with pytest.raises(NotLeadingError, match="epoch 1 is over"):
        await waiting
    with pytest.raises(NotLeadingError, match="has stopped"):
        old.write_nowait(put(b"a", b"again"))
    await new.write(put(b"a", b"new"))
    assert old.applier.digest() != new.applier.digest()
    assert str(old.failure) == "epoch 1 is over"


async def test_a_leader_whose_append_fails_applies_nothing_after_it() -> None:
    shared = Shared()
    log = MemoryLog(shared, fence=True)
    leader = await lead(log, RowTables())
    first = leader.write_nowait(put(b"a", b"1"))
    log.fails_with = OSError("whether it was written is not known")
    second = leader.write_nowait(put(b"a", b"2"))
    log.fails_with = None
    third = leader.write_nowait(put(b"a", b"3"))
    outcomes = await asyncio.gather(first, second, third, return_exceptions=True)
    assert outcomes[0] == 1
    assert [type(each) for each in outcomes[1:]] == [NotLeadingError] * 2
    tables = leader.applier
    assert isinstance(tables, RowTables)
    assert tables.rows == {b"a": b"1"}


async def test_a_transaction_that_was_open_at_a_takeover_is_gone() -> None:
    shared = Shared()
    leader = await a_leader(shared)
    leader.write_nowait(put(b"a", b"half", transaction=9))
    await leader.write(put(b"b", b"1"))
    new = await a_leader(shared)
    assert await new.write_transaction([(Kind.PUT, "", b"c", b"1")]) == 1
    rebuilt = RowTables()
    recovered = await recover(MemoryLog(shared), rebuilt)
    assert rebuilt.rows == {b"b": b"1", b"c": b"1"}
    assert recovered.replayer.open_transactions == []


async def test_leaders_that_change_at_random_lose_nothing_and_agree() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        shared, store = Shared(), SnapshotStore(f"memory://leaders-{seed}")
        expected: dict[bytes, bytes] = {}
        leaders = [await a_leader(shared, store)]
        for number in range(60):
            leader = chance.choice(leaders[-2:])
            key, image = b"%d" % chance.randrange(5), b"%d" % number
            try:
                if chance.random() < 0.7:
                    await leader.write(put(key, image))
                    expected[key] = image
                elif chance.random() < 0.5:
                    await leader.write_transaction([(Kind.PUT, "", key, image), (Kind.PUT, "", b"t", image)])
                    expected |= {key: image, b"t": image}
                else:
                    await leader.write(delete(key))
                    expected.pop(key, None)
            except NotLeadingError:
                assert leader is not leaders[-1]
                leaders.append(await a_leader(shared, store))
            if chance.random() < 0.1:
                await leaders[-1].snapshot()
                await leaders[-1].trim()
            if chance.random() < 0.1:
                leaders.append(await a_leader(shared, store))
        tables = leaders[-1].applier
        assert isinstance(tables, RowTables)
        assert tables.rows == expected, seed
        rebuilt = RowTables()
        await recover(MemoryLog(shared), rebuilt, snapshots=store)
        assert rebuilt.rows == expected, seed


async def test_a_snapshot_needs_a_store() -> None:
    leader = await a_leader(Shared())
    with pytest.raises(RecoveryError, match="no snapshot store"):
        await leader.snapshot()
    assert await leader.trim() is None


async def test_a_transaction_whose_caller_is_gone_in_the_middle_is_aborted() -> None:
    shared = Shared()
    leader = await a_leader(shared)
    changes: list[Change] = [(Kind.PUT, "", b"%d" % number, b"") for number in range(5)]
    task = asyncio.create_task(leader.write_transaction(changes))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await leader.write(put(b"after", b""))
    rebuilt = RowTables()
    recovered = await recover(MemoryLog(shared), rebuilt)
    assert rebuilt.rows == {b"after": b""}
    assert 1 < recovered.entry_count < 8, "some of it is in the log"
    assert recovered.replayer.open_transactions == []


async def test_a_follower_that_the_log_was_trimmed_past_says_so_and_can_still_take_over() -> None:
    shared, store = Shared(), SnapshotStore("memory://trimmed-past", keep=1)
    leader = await a_leader(shared, store)
    await leader.write(put(b"a", b"1"))
    log = MemoryLog(shared)
    follower = Follower(log, RowTables(), store)
    await follower.start()
    log.fails_with = OSError("what was to be read is gone")
    last = await leader.write(put(b"b", b"2"))
    with pytest.raises(OSError, match="is gone"):
        await follower.wait_for(last)
    assert isinstance(follower.failure, OSError)
    await leader.snapshot()
    await leader.trim()
    await leader.snapshot()  # without a record that has a timestamp
    new = await follower.take_over(MemoryLog(shared, fence=True))
    assert new.applier.digest() == leader.applier.digest()


async def test_a_checksum_is_of_all_that_is_written_before_it() -> None:
    """If a concurrent write came between the checksum and its entry, no replay could pass it."""
    shared = Shared()
    leader = await a_leader(shared)

    async def write(name: int) -> None:
        for number in range(20):
            await leader.write(put(b"%d-%d" % (name, number), b""))

    async def check() -> None:
        for _ in range(20):
            await leader.write_digest()

    await asyncio.gather(write(1), check(), write(2), check())
    recovered = await recover(MemoryLog(shared), RowTables())
    assert recovered.replayer.digest_count == 40


async def test_a_transaction_without_room_for_its_end_is_aborted_later() -> None:
    """Its caller is cancelled while it waits for space, and gets that cancellation and nothing else."""

    class Full(MemoryLog):
        is_full = False
        filled = asyncio.Event()
        emptied = asyncio.Event()

        def append(self, data: bytes, /) -> asyncio.Future[int]:
            if self.is_full:
                raise TooMuchInFlightError("no room")
            kind, transaction, *_ = decode(data, 0)
            if kind == Kind.PUT and transaction > 0:
                self.is_full = True
                self.filled.set()
            return super().append(data)

        async def ready(self) -> None:
            if self.is_full:
                await self.emptied.wait()

    shared = Shared()
    log = Full(shared, fence=True)
    leader = await lead(log, RowTables())
    changes: list[Change] = [(Kind.PUT, "", b"a", b""), (Kind.PUT, "", b"b", b"")]
    task = asyncio.create_task(leader.write_transaction(changes))
    await log.filled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    log.is_full = False
    await leader.write(put(b"after", b""))
    await leader.write_heartbeat()
    rebuilt = RowTables()
    recovered = await recover(MemoryLog(shared), rebuilt)
    assert rebuilt.rows == {b"after": b""}
    assert recovered.replayer.open_transactions == []


async def test_who_waits_for_a_follower_hears_what_is_wrong() -> None:
    follower = Follower(MemoryLog(Shared()), RowTables())
    with pytest.raises(RecoveryError, match=r"call start\(\) first"):
        await follower.wait_for(0)
    await follower.start()
    await follower.stop()
    with pytest.raises(RecoveryError, match="has stopped"):
        await follower.wait_for(0)
