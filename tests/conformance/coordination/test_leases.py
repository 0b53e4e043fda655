"""Leases: they expire when their owner stops renewing them, their entries are deleted, and watches report it."""

from __future__ import annotations

import asyncio

from ottla.coordination.port import Committed, Delete, HasVersion, LeaseEnded, Put
from tests.conformance.coordination.reading import TIMEOUT_S, reader_of
from tests.conformance.coordination.test_entries import put
from tests.conformance.coordination.worlds import World


async def test_an_entry_names_its_lease(world: World) -> None:
    client, other = await world.client(), await world.client()
    lease = await client.open_lease(world.ttl_ms)
    outcome = await client.commit([], [Put("brokers/1", b"here", lease.id)])
    assert isinstance(outcome, Committed)
    entry = await other.get("brokers/1")
    assert entry is not None
    assert entry.lease == lease.id
    assert (await put(other, "other", b"")) > outcome.revision
    unbound = await other.get("other")
    assert unbound is not None
    assert unbound.lease is None


async def test_a_lease_is_alive_until_its_deadline(world: World) -> None:
    client = await world.client()
    before_ms = world.clock.monotonic_ms()
    lease = await client.open_lease(world.ttl_ms)
    after_ms = world.clock.monotonic_ms()
    assert lease.ttl_ms >= world.ttl_ms
    assert before_ms < lease.deadline_ms <= after_ms + lease.ttl_ms
    assert lease.is_alive(lease.deadline_ms - 1)
    assert not lease.is_alive(lease.deadline_ms)
    assert not lease.lost


async def test_the_entries_of_a_lease_end_together_and_in_order(world: World) -> None:
    owner, other = await world.client(), await world.client()
    async with reader_of(other) as reader:
        lease = await owner.open_lease(world.ttl_ms)
        mine = [Put(f"mine/{number}", b"value", lease.id) for number in range(3)]
        await owner.commit([], mine)
        kept = await put(owner, "kept", b"value")
        await reader.until(lambda: bool(reader.deleted_keys()))
        assert world.clock.monotonic_ms() >= lease.deadline_ms
        after = await put(other, "after", b"value")
        await reader.until_revision(after)
    deletion = reader.batches[2]
    assert sorted(change.key for change in deletion.changes) == ["mine/0", "mine/1", "mine/2"]
    assert all(change.entry is None for change in deletion.changes)
    assert kept < deletion.revision < after
    assert [entry.key for entry in (await other.snapshot()).entries] == ["after", "kept"]
    assert not lease.is_alive(world.clock.monotonic_ms())
    assert await lease.renew() is False
    assert lease.lost


async def test_renewals_keep_a_lease(world: World) -> None:
    owner, other = await world.client(), await world.client()
    lease = await owner.open_lease(world.ttl_ms)
    await owner.commit([], [Put("mine", b"value", lease.id)])
    end_ms = world.clock.monotonic_ms() + 2 * lease.ttl_ms
    while world.clock.monotonic_ms() < end_ms:
        before_ms, deadline_ms = world.clock.monotonic_ms(), lease.deadline_ms
        assert await lease.renew()
        assert deadline_ms <= lease.deadline_ms <= world.clock.monotonic_ms() + lease.ttl_ms
        assert lease.is_alive(before_ms)
        await world.sleep(lease.ttl_ms / 5)
    assert await other.get("mine") is not None
    assert lease.is_alive(world.clock.monotonic_ms())


async def test_a_revoked_lease_is_gone_at_once(world: World) -> None:
    owner, other = await world.client(), await world.client()
    lease = await owner.open_lease(60_000)
    await owner.commit([], [Put("mine/1", b"value", lease.id), Put("mine/2", b"value", lease.id)])
    async with reader_of(other) as reader:
        await lease.revoke()
        assert lease.lost
        assert not lease.is_alive(world.clock.monotonic_ms())
        assert (await owner.snapshot()).entries == ()
        await reader.until(lambda: bool(reader.deleted_keys()))
    assert sorted(reader.deleted_keys()) == ["mine/1", "mine/2"]
    assert len(reader.batches) == 1
    assert await lease.renew() is False


async def test_an_ended_lease_takes_no_entries(world: World) -> None:
    owner, other = await world.client(), await world.client()
    lease = await owner.open_lease(60_000)
    await lease.revoke()
    for client in (owner, other):
        outcome = await client.commit([], [Put("free", b"value"), Put("mine", b"value", lease.id)])
        assert outcome == LeaseEnded(lease.id)
    assert (await other.snapshot()).entries == ()


async def test_a_put_without_a_lease_unbinds_the_entry(world: World) -> None:
    owner = await world.client()
    lease = await owner.open_lease(60_000)
    await owner.commit([], [Put("kept", b"value", lease.id), Put("deleted", b"value", lease.id)])
    await put(owner, "kept", b"mine no more")
    await owner.commit([], [Delete("deleted")])
    again = await put(owner, "deleted", b"again")
    await lease.revoke()
    entries = (await owner.snapshot()).entries
    assert [(entry.key, entry.value, entry.lease) for entry in entries] == [
        ("deleted", b"again", None), ("kept", b"mine no more", None),
    ]  # fmt: skip
    assert entries[0].version == again


async def test_an_entry_moves_from_one_lease_to_another(world: World) -> None:
    """As a broker does that restarts before its old lease expires."""
    owner = await world.client()
    old, new = await owner.open_lease(60_000), await owner.open_lease(60_000)
    assert old.id != new.id
    outcome = await owner.commit([], [Put("brokers/1", b"old", old.id)])
    assert isinstance(outcome, Committed)
    moved = await owner.commit([HasVersion("brokers/1", outcome.revision)], [Put("brokers/1", b"new", new.id)])
    assert isinstance(moved, Committed)
    await old.revoke()
    entry = await owner.get("brokers/1")
    assert entry is not None
    assert (entry.value, entry.lease) == (b"new", new.id)
    await new.revoke()
    assert await owner.get("brokers/1") is None


async def test_an_owner_that_closed_loses_its_lease(world: World) -> None:
    owner, other = await world.client(), await world.client()
    lease = await owner.open_lease(world.ttl_ms)
    await owner.commit([], [Put("mine", b"value", lease.id)])
    await owner.close()
    async with asyncio.timeout(TIMEOUT_S):
        while await other.get("mine") is not None:
            await world.sleep(20)


async def test_a_lease_without_entries_ends_too(world: World) -> None:
    owner, other = await world.client(), await world.client()
    lease = await owner.open_lease(world.ttl_ms)
    async with asyncio.timeout(TIMEOUT_S):
        while await other.commit([], [Put("probe", b"", lease.id)]) != LeaseEnded(lease.id):
            await world.sleep(100)
            await other.commit([], [Delete("probe")])
