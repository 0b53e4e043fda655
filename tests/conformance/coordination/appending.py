"""A workload that detects lost and repeated updates: clients append unique words to one entry by compare-and-set.

Each word is sent once. Its outcome is recorded: committed, certainly not, or unknown.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ottla.coordination.port import (
    Batch,
    Committed,
    Condition,
    Coordination,
    Entry,
    HasVersion,
    IsAbsent,
    OutcomeUnknownError,
    Put,
    UnavailableError,
)
from tests.conformance.coordination.reading import TIMEOUT_S

KEY = "words"


@dataclass
class Ledger:
    committed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def check(self, entry: Entry | None) -> None:
        words = words_of(entry)
        assert len(words) == len(set(words)), "a word stands twice"
        lost = set(self.committed) - set(words)
        assert not lost, f"these were committed and are gone: {lost}"
        revived = set(self.refused) & set(words)
        assert not revived, f"these were certainly not committed and are there: {revived}"
        assert set(words) <= {*self.committed, *self.unknown}

    def __str__(self) -> str:
        return f"{len(self.committed)} committed, {len(self.refused)} refused, {len(self.unknown)} unknown"


def words_of(entry: Entry | None) -> list[str]:
    return entry.value.decode().split(",") if entry is not None else []


class Appender:
    """Appends as fast as it can until it is stopped."""

    def __init__(self, client: Coordination, name: str, ledger: Ledger) -> None:
        self._client = client
        self._name = name
        self._ledger = ledger
        self._turn = 0
        self._stopped = False
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        self._stopped = True
        await self._task

    async def _work(self) -> None:
        while not self._stopped:
            try:
                entry = await self._client.get(KEY)
            except UnavailableError:
                await asyncio.sleep(0.01)
                continue
            await self._append(entry)
            await asyncio.sleep(0.002)

    async def _append(self, entry: Entry | None) -> None:
        self._turn += 1
        word = f"{self._name}-{self._turn}"
        condition: Condition = IsAbsent(KEY) if entry is None else HasVersion(KEY, entry.version)
        value = ",".join([*words_of(entry), word]).encode()
        try:
            outcome = await self._client.commit([condition], [Put(KEY, value)])
        except OutcomeUnknownError:
            self._ledger.unknown.append(word)
        except UnavailableError:
            self._ledger.refused.append(word)
        else:
            (self._ledger.committed if isinstance(outcome, Committed) else self._ledger.refused).append(word)


async def until_committed(ledger: Ledger, more: int) -> None:
    """Waits until that many more words are committed."""
    enough = len(ledger.committed) + more
    until = asyncio.get_running_loop().time() + TIMEOUT_S
    while len(ledger.committed) < enough:
        assert asyncio.get_running_loop().time() < until, f"not {enough} commits in {TIMEOUT_S} s: {ledger}"
        await asyncio.sleep(0.01)


def check_watched(batches: list[Batch], entry: Entry | None) -> None:
    """Checks that each batch adds one word to the previous value, and that the last one is the current value."""
    before: list[str] = []
    for batch in batches:
        (change,) = batch.changes
        words = words_of(change.entry)
        assert words[:-1] == before, "a change was missed, or came out of order"
        before = words
    assert before == words_of(entry)
