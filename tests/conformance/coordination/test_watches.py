"""Watches deliver every transaction once, completely and in order, or `Resync`."""

from __future__ import annotations

import asyncio
import random

from ottla.coordination.port import (
    COMMIT_BYTES_MAX,
    Batch,
    Change,
    Committed,
    Coordination,
    Delete,
    Entry,
    Operation,
    Put,
    Revision,
)
from tests.conformance.coordination.reading import reader_of
from tests.conformance.coordination.test_entries import put
from tests.conformance.coordination.worlds import World


async def test_changes_of_others_arrive_in_order(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    async with reader_of(watcher) as reader:
        first = await put(writer, "key", b"one")
        second = await put(writer, "key", b"two")
        deleted = await writer.commit([], [Delete("key")])
        assert isinstance(deleted, Committed)
        await reader.until_revision(deleted.revision)
    assert reader.batches == [
        Batch((Change("key", Entry("key", b"one", first)),), first),
        Batch((Change("key", Entry("key", b"two", second)),), second),
        Batch((Change("key", None),), deleted.revision),
    ]


async def test_own_changes_arrive_too(world: World) -> None:
    client = await world.client()
    async with reader_of(client) as reader:
        revision = await put(client, "key", b"value")
        await reader.until_revision(revision)
    assert reader.batches == [Batch((Change("key", Entry("key", b"value", revision)),), revision)]


async def test_a_watch_begins_after_its_revision(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    revisions = [await put(writer, "key", b"%d" % number) for number in range(6)]
    async with reader_of(watcher, after=revisions[2]) as reader:
        revisions.append(await put(writer, "key", b"6"))
        await reader.until_revision(revisions[-1])
    assert [batch.revision for batch in reader.batches] == revisions[3:]


async def test_a_watch_sees_its_prefix_alone(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    async with reader_of(watcher, "topics/") as reader:
        both: list[Operation] = [
            Put("topics/a", b"1"),
            Put("brokers/1", b"2"),
            Put("topics", b"3"),
            Put("topics0", b"4"),
        ]
        outcome = await writer.commit([], both)
        assert isinstance(outcome, Committed)
        await put(writer, "brokers/2", b"unseen")
        last = await put(writer, "topics/b", b"5")
        await reader.until_revision(last)
    assert reader.batches == [
        Batch((Change("topics/a", Entry("topics/a", b"1", outcome.revision)),), outcome.revision),
        Batch((Change("topics/b", Entry("topics/b", b"5", last)),), last),
    ]


async def test_a_large_value_arrives(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    large = bytes(range(250)) * (COMMIT_BYTES_MAX // 250)
    async with reader_of(watcher) as reader:
        revision = await put(writer, "large", large)
        await reader.until_revision(revision)
    assert reader.batches == [Batch((Change("large", Entry("large", large, revision)),), revision)]


async def test_nothing_is_missed_under_concurrent_writers(world: World, seed: int) -> None:
    """Watches that start before, during and after the writes report the same history: the committed one."""
    clients = [await world.client() for _ in range(4)]
    start = (await clients[0].snapshot()).revision
    history: dict[Revision, dict[str, bytes | None]] = {}
    chosen = random.Random(seed)

    async def write(client: Coordination, name: str) -> None:
        for turn in range(25):
            keys = [f"{chosen.choice([name, 'shared'])}/{number}" for number in range(chosen.randint(1, 4))]
            operations: list[Operation] = [Put(key, f"{name} {turn}".encode()) for key in dict.fromkeys(keys)]
            outcome = await client.commit([], operations)
            assert isinstance(outcome, Committed)
            history[outcome.revision] = {one.key: one.value for one in operations if isinstance(one, Put)}

    async with reader_of(clients[3], after=start) as early, reader_of(clients[0], after=start) as own:
        writing = [asyncio.create_task(write(clients[number], f"writer-{number}")) for number in range(3)]
        while len(history) < 20:
            await world.sleep(1)
        middle = await clients[3].snapshot()
        async with reader_of(clients[3], after=middle.revision) as late:
            await asyncio.gather(*writing)
            async with reader_of(clients[2], after=start) as after:
                for reader in (early, own, late, after):
                    await reader.until_revision(max(history))
    for reader in (early, own, after):
        assert [told(batch) for batch in reader.batches] == sorted(history.items())
    assert [told(batch) for batch in late.batches] == sorted(
        (revision, changes) for revision, changes in history.items() if revision > middle.revision
    )
    assert replayed(late.batches, middle.entries) == (await clients[0].snapshot()).entries


def told(batch: Batch) -> tuple[Revision, dict[str, bytes | None]]:
    for change in batch.changes:
        assert change.entry is None or change.entry.version == batch.revision
    return batch.revision, {
        change.key: None if change.entry is None else change.entry.value for change in batch.changes
    }


def replayed(batches: list[Batch], entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    state: dict[str, Entry | None] = {entry.key: entry for entry in entries}
    for batch in batches:
        state.update({change.key: change.entry for change in batch.changes})
    return tuple(entry for _, entry in sorted(state.items()) if entry is not None)


async def test_a_lost_history_means_a_resync(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    old = await put(writer, "key", b"old")
    await put(writer, "key", b"new")
    await world.forget_history()
    async with reader_of(watcher, after=old) as reader:
        await reader.until(lambda: reader.ended)
    assert reader.resync
    assert reader.batches == []
    now = await watcher.snapshot()
    async with reader_of(watcher, after=now.revision) as reader:
        revision = await put(writer, "key", b"newer")
        await reader.until_revision(revision)
    assert not reader.resync


async def test_a_revision_that_never_was_means_a_resync(world: World) -> None:
    """The store was restored from a backup and is older than its reader."""
    client = await world.client()
    revision = await put(client, "key", b"value")
    async with reader_of(client, after=Revision(revision + 1000)) as reader:
        await reader.until(lambda: reader.ended)
    assert reader.resync


async def test_a_watch_ends_with_its_client(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    async with reader_of(watcher) as reader:
        revision = await put(writer, "key", b"value")
        await reader.until_revision(revision)
        await watcher.close()
        await reader.until(lambda: reader.ended)
    assert not reader.resync


async def test_an_idle_watch_wakes_up(world: World) -> None:
    watcher, writer = await world.client(), await world.client()
    async with reader_of(watcher) as reader:
        for number in range(3):
            await world.sleep(300)
            revision = await put(writer, "key", b"%d" % number)
            await reader.until_revision(revision)
    assert len(reader.batches) == 3
