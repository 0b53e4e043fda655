"""Entries: compare-and-set of many keys at once."""

from __future__ import annotations

import asyncio

import pytest

from ottla.coordination.port import (
    COMMIT_BYTES_MAX,
    KEY_BYTES_MAX,
    OPERATIONS_MAX,
    Committed,
    Condition,
    Conflict,
    Coordination,
    Delete,
    Entry,
    HasVersion,
    IsAbsent,
    LeaseId,
    Operation,
    Put,
    Revision,
)
from tests.conformance.coordination.reading import reader_of
from tests.conformance.coordination.worlds import World

ODD_KEYS = [
    "a", "a/", "a/b", "a//b", "/a", "ab", "a b", " ", ".", "..", "a/./b", "%", "%2F", "a%2Fb", "a\\b", "a*b?[c]",
    "a'b\"", "tab\t", "line\n", "nul\0nul", "\x01\x1f\x7f", "ä", "日本", "\U0001f600", "\uffff", "\U0010ffff", "_", "-",
    "zookeeper", "x" * KEY_BYTES_MAX,
]  # fmt: skip


async def put(client: Coordination, key: str, value: bytes) -> Revision:
    outcome = await client.commit([], [Put(key, value)])
    assert isinstance(outcome, Committed), outcome
    return outcome.revision


async def test_an_entry_is_what_was_put_last(world: World) -> None:
    client, other = await world.client(), await world.client()
    first = await put(client, "key", b"one")
    assert await other.get("key") == Entry("key", b"one", first)
    second = await put(other, "key", b"two")
    assert second > first
    assert await client.get("key") == Entry("key", b"two", second)


async def test_an_absent_key_has_no_entry(world: World) -> None:
    client = await world.client()
    await put(client, "key", b"value")
    assert await client.get("ke") is None
    assert await client.get("key2") is None


async def test_a_deleted_entry_is_gone(world: World) -> None:
    client, other = await world.client(), await world.client()
    first = await put(client, "key", b"value")
    deleted = await client.commit([HasVersion("key", first)], [Delete("key")])
    assert isinstance(deleted, Committed)
    assert deleted.revision > first
    assert await other.get("key") is None
    assert (await other.snapshot()).entries == ()


async def test_to_delete_nothing_changes_nothing(world: World) -> None:
    client = await world.client()
    before = await client.snapshot()
    async with reader_of(client, after=before.revision) as reader:
        outcome = await client.commit([], [Delete("absent")])
        assert isinstance(outcome, Committed)
        assert outcome.revision >= before.revision
        revision = await put(client, "key", b"value")
        await reader.until_revision(revision)
    assert [batch.revision for batch in reader.batches] == [revision]


async def test_conditions_alone_are_a_question(world: World) -> None:
    client = await world.client()
    first = await put(client, "key", b"value")
    assert isinstance(await client.commit([HasVersion("key", first), IsAbsent("other")], []), Committed)
    assert isinstance(await client.commit([IsAbsent("key")], []), Conflict)
    assert [entry.version for entry in (await client.snapshot()).entries] == [first]


async def test_a_condition_on_absence(world: World) -> None:
    client = await world.client()
    assert isinstance(await client.commit([IsAbsent("key")], [Put("key", b"one")]), Committed)
    assert isinstance(await client.commit([IsAbsent("key")], [Put("key", b"two")]), Conflict)
    entry = await client.get("key")
    assert entry is not None
    assert entry.value == b"one"


async def test_a_conflict_shows_what_stands_there(world: World) -> None:
    client, other = await world.client(), await world.client()
    first = await put(client, "key", b"one")
    second = await put(client, "key", b"two")
    outcome = await other.commit([HasVersion("key", first), IsAbsent("other")], [Put("key", b"three")])
    assert outcome == Conflict({"key": Entry("key", b"two", second), "other": None})


async def test_a_version_is_never_used_again(world: World) -> None:
    """A key that was deleted and created again has another version than before."""
    client, other = await world.client(), await world.client()
    seen = [await put(client, "key", b"value")]
    for _ in range(5):
        await client.commit([], [Delete("key")])
        seen.append(await put(other, "key", b"value"))
    assert seen == sorted(set(seen))
    for version in seen[:-1]:
        assert isinstance(await client.commit([HasVersion("key", version)], [Put("key", b"late")]), Conflict)
    assert isinstance(await client.commit([HasVersion("key", seen[-1])], [Put("key", b"new")]), Committed)


async def test_a_conflict_changes_nothing(world: World) -> None:
    client = await world.client()
    first = await put(client, "held", b"value")
    await put(client, "doomed", b"value")
    before = (await client.snapshot()).entries
    failing: list[list[Condition]] = [[IsAbsent("held")], [IsAbsent("new"), HasVersion("held", Revision(first + 1000))]]
    for conditions in failing:
        operations: list[Operation] = [Put("new", b"1"), Put("held", b"2"), Delete("doomed")]
        assert isinstance(await client.commit(conditions, operations), Conflict)
    assert (await client.snapshot()).entries == before


async def test_a_transaction_is_seen_whole(world: World) -> None:
    """Concurrent readers see all keys of a transaction, or none."""
    writer, reader = await world.client(), await world.client()
    keys = [f"atomic/{number}" for number in range(60)]
    done = False

    async def write() -> None:
        nonlocal done
        for turn in range(15):
            value = b"%d" % turn
            operations: list[Operation] = [Put(key, value) for key in keys[turn % 2 :]]
            operations += [Delete(key) for key in keys[: turn % 2]]
            assert isinstance(await writer.commit([], operations), Committed)
        done = True

    writing = asyncio.create_task(write())
    seen = set()
    while not done:
        entries = (await reader.snapshot("atomic/")).entries
        assert len({entry.value for entry in entries}) <= 1
        assert len({entry.version for entry in entries}) <= 1
        seen.add(len(entries))
        await world.sleep(1)
    await writing
    assert seen <= {0, 59, 60}
    assert len(seen) > 1


async def test_a_commit_takes_the_promised_number_of_operations(world: World) -> None:
    client = await world.client()
    assert client.operations_max == OPERATIONS_MAX
    keys = [f"many/{number:03}" for number in range(client.operations_max)]
    assert isinstance(await client.commit([IsAbsent(key) for key in keys], [Put(key, b"1") for key in keys]), Committed)
    entries = (await client.snapshot("many/")).entries
    assert [entry.key for entry in entries] == keys
    conditions = [HasVersion(entry.key, entry.version) for entry in entries]
    assert isinstance(await client.commit(conditions, [Delete(key) for key in keys]), Committed)
    assert (await client.snapshot("many/")).entries == ()


@pytest.mark.parametrize(
    "operations",
    [
        [Put(f"key{number}", b"") for number in range(OPERATIONS_MAX + 1)],
        [Put("key", b"1"), Put("key", b"2")],
        [Put("key", b"1"), Delete("key")],
        [Put("", b"value")],
        [Put("x" * (KEY_BYTES_MAX + 1), b"value")],
        [Put("key", bytes(COMMIT_BYTES_MAX + 1))],
        [Put("\ud800", b"no text")],
        [Put("key", b"", LeaseId(1)), Put("other", b"", LeaseId(2))],
    ],
    ids=["too many", "twice", "put and deleted", "empty key", "long key", "large value", "surrogate", "two leases"],
)
async def test_what_no_store_takes_is_refused_at_once(world: World, operations: list[Operation]) -> None:
    client = await world.client()
    with pytest.raises(ValueError):  # noqa: PT011  # the messages differ, only the type is promised
        await client.commit([], operations)
    assert (await client.snapshot()).entries == ()


async def test_keys_with_odd_characters(world: World) -> None:
    client, other = await world.client(), await world.client()
    for number, key in enumerate(ODD_KEYS):
        await put(client, key, b"%d" % number)
    for number, key in enumerate(ODD_KEYS):
        entry = await other.get(key)
        assert entry is not None, key
        assert (entry.key, entry.value) == (key, b"%d" % number)
    found = await other.snapshot()
    assert [entry.key for entry in found.entries] == sorted(ODD_KEYS)
    for prefix in ("a", "a/", "%", "\x01", "ä", "日", "."):
        entries = (await other.snapshot(prefix)).entries
        assert [entry.key for entry in entries] == sorted(key for key in ODD_KEYS if key.startswith(prefix)), prefix


async def test_values_of_any_size(world: World) -> None:
    client, other = await world.client(), await world.client()
    large = bytes(range(256)) * (COMMIT_BYTES_MAX // 256)
    for key, value in (("empty", b""), ("zeros", bytes(100)), ("large", large)):
        version = await put(client, key, value)
        assert await other.get(key) == Entry(key, value, version)
    version = await put(client, "large", large[::-1])
    assert await other.get("large") == Entry("large", large[::-1], version)
    assert {entry.key: len(entry.value) for entry in (await other.snapshot()).entries} == {
        "empty": 0, "large": len(large), "zeros": 100,
    }  # fmt: skip


async def test_thousands_of_keys(world: World) -> None:
    client, other = await world.client(), await world.client()
    keys = [f"topic-{number % 7}/partition-{number:05}" for number in range(2000)]
    for start in range(0, len(keys), OPERATIONS_MAX):
        await client.commit([], [Put(key, key.encode() * 3) for key in keys[start : start + OPERATIONS_MAX]])
    entries = (await other.snapshot()).entries
    assert [(entry.key, entry.value) for entry in entries] == [(key, key.encode() * 3) for key in sorted(keys)]
    part = (await other.snapshot("topic-3/")).entries
    assert [entry.key for entry in part] == sorted(key for key in keys if key.startswith("topic-3/"))
