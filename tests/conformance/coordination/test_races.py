"""Concurrent clients: exactly the compare-and-sets that were reported as committed take effect."""

from __future__ import annotations

import asyncio
import random

from ottla.coordination.port import (
    Committed,
    Condition,
    Conflict,
    Coordination,
    Entry,
    HasVersion,
    IsAbsent,
    Operation,
    Put,
)
from tests.conformance.coordination.worlds import World

CLIENTS = 5
COUNTERS = 3
INCREMENTS = 12


def condition_on(key: str, entry: Entry | None) -> Condition:
    return IsAbsent(key) if entry is None else HasVersion(key, entry.version)


async def increment(client: Coordination, keys: list[str]) -> None:
    """Increments all counters in one transaction, and retries until it succeeds."""
    entries = {key: await client.get(key) for key in keys}
    while True:
        conditions = [condition_on(key, entry) for key, entry in entries.items()]
        operations: list[Operation] = [
            Put(key, b"%d" % (int(entry.value if entry else 0) + 1)) for key, entry in entries.items()
        ]
        outcome = await client.commit(conditions, operations)
        if isinstance(outcome, Committed):
            return
        assert isinstance(outcome, Conflict)
        entries = dict(outcome.entries)


async def test_no_increment_is_lost(world: World, seed: int) -> None:
    clients = [await world.client() for _ in range(CLIENTS)]
    names = [f"counter-{number}" for number in range(COUNTERS)]
    chosen = random.Random(seed)
    expected = dict.fromkeys(names, 0)

    async def work(client: Coordination) -> None:
        for _ in range(INCREMENTS):
            keys = chosen.sample(names, chosen.randint(1, COUNTERS))
            await increment(client, keys)
            for key in keys:
                expected[key] += 1

    await asyncio.gather(*(work(client) for client in clients))
    entries = (await clients[0].snapshot("counter-")).entries
    assert {entry.key: int(entry.value) for entry in entries} == expected


async def test_one_of_many_wins(world: World) -> None:
    clients = [await world.client() for _ in range(CLIENTS)]
    for turn in range(5):
        key = f"leader-{turn}"
        outcomes = await asyncio.gather(
            *(client.commit([IsAbsent(key)], [Put(key, b"%d" % number)]) for number, client in enumerate(clients))
        )
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(winners) == 1
        entry = await clients[0].get(key)
        assert entry is not None
        assert int(entry.value) == winners[0]
        for outcome in outcomes:
            assert isinstance(outcome, Committed) or outcome == Conflict({key: entry})


async def test_a_conflict_shows_one_state(world: World) -> None:
    """A conflict reports one consistent state of all conditional keys, although they change all the time."""
    writer, other = await world.client(), await world.client()
    keys = [f"key-{number}" for number in range(30)]
    done = False

    async def write() -> None:
        nonlocal done
        for turn in range(30):
            await writer.commit([], [Put(key, b"%d" % turn) for key in keys])
        done = True

    await writer.commit([], [Put(key, b"first") for key in keys])
    writing = asyncio.create_task(write())
    seen = set()
    while not done:
        outcome = await other.commit([IsAbsent(key) for key in keys], [])
        assert isinstance(outcome, Conflict)
        versions = {entry.version for entry in outcome.entries.values() if entry is not None}
        assert len(versions) == 1
        seen |= versions
    await writing
    assert len(seen) > 1


async def test_transactions_of_one_client_side_by_side(world: World) -> None:
    """A client may send a commit before the previous one is done."""
    client = await world.client()
    outcomes = await asyncio.gather(*(client.commit([], [Put(f"key-{n}", b"%d" % n)]) for n in range(20)))
    revisions = [outcome.revision for outcome in outcomes if isinstance(outcome, Committed)]
    assert len(set(revisions)) == 20
    assert {entry.key: entry.version for entry in (await client.snapshot()).entries} == {
        f"key-{number}": revision for number, revision in enumerate(revisions)
    }
