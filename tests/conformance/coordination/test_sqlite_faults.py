"""The SQLite store with processes that are killed, hold its lock too long, or have a slow disk."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.coordination.port import Committed, IsAbsent, Put, UnavailableError
from tests.conformance.coordination.appending import KEY, Ledger, check_watched, words_of
from tests.conformance.coordination.reading import reader_of
from tests.conformance.coordination.stores import Place

WRITER = "tests.conformance.coordination.writer"
IMPATIENT_MS = 800
PATIENT_MS = 3000
"""Long enough on a busy machine for a round trip to the file after a failed wait for its lock."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("sqlite", str(tmp_path / "shared"))


@contextmanager
def held(place: Place, begin: str) -> Iterator[None]:
    """Another program locks the file, for writing or for reading."""
    connection = sqlite3.connect(Path(place.where) / "coordination.db", isolation_level=None)
    connection.execute(begin)
    connection.execute("SELECT count(*) FROM entries").fetchone()
    yield
    connection.execute("ROLLBACK")
    connection.close()


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN"], ids=["for writing", "for reading"])
async def test_a_held_file_is_unavailable_and_leases_live_on(place: Place, begin: str) -> None:
    client, other = await place.client(IMPATIENT_MS), await place.client(IMPATIENT_MS)
    lease = await client.open_lease(2 * IMPATIENT_MS)
    await client.commit([], [Put("mine", b"value", lease.id)])
    with held(place, begin):
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await other.commit([IsAbsent("key")], [Put("key", b"value")])
            assert await lease.renew()
    assert await other.get("key") is None
    assert await other.get("mine") is not None
    assert isinstance(await other.commit([IsAbsent("key")], [Put("key", b"value")]), Committed)
    await client.close()
    await other.close()


HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
time.sleep(60)
"""


async def test_the_process_that_is_stopped_with_the_file_is_named(place: Place) -> None:
    """A stopped process that holds the lock prevents all changes until it continues or is killed."""
    client = await place.client(PATIENT_MS)
    database = str(Path(place.where) / "coordination.db")
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, database, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"holds\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match=f"locked by process {holder.pid} .stopped."):
            await client.commit([], [Put("key", b"value")])
        assert await client.get("key") is None, "reading goes on"
    finally:
        holder.kill()
        await holder.wait()
    assert isinstance(await client.commit([], [Put("key", b"value")]), Committed)
    await client.close()


async def lines_of(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, str]]:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.endswith(b"\n"):
            kind, word = line.decode().split()
            yield kind, word


async def run_writer(place: Place, name: str, ledger: Ledger, words: int) -> None:
    """Runs a writer until it has sent that many words, then kills it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", WRITER, place.where, name, stdout=asyncio.subprocess.PIPE
    )
    open_words: set[str] = set()
    sent = 0
    async for kind, word in lines_of(process):
        if kind == "sent":
            sent += 1
            open_words.add(word)
            if sent == words:
                await asyncio.sleep(random.random() * 0.004)  # at a random point of the transaction
                process.kill()
        else:
            open_words.discard(word)
            getattr(ledger, kind).append(word)
    ledger.unknown.extend(open_words)
    await process.wait()


async def test_writers_that_are_killed_leave_whole_transactions(place: Place) -> None:
    ledger = Ledger()
    watcher = await place.client()

    async def run(name: str) -> None:
        for life in range(3):
            await run_writer(place, f"{name}-{life}", ledger, random.randint(2, 15))

    async with reader_of(watcher, KEY) as reader:
        await asyncio.gather(*(run(f"writer-{number}") for number in range(3)))
        entry = await watcher.get(KEY)
        assert entry is not None
        await reader.until_revision(entry.version)
    await watcher.close()
    ledger.check(entry)
    check_watched(reader.batches, entry)
    assert len(ledger.committed) > 15


@pytest.fixture(scope="session")
def slow_sync(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine to build a slow sync with")
    library = tmp_path_factory.mktemp("slow") / "slow_sync.so"
    source = Path(__file__).with_name("slow_sync.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


async def test_a_slow_disk_makes_outcomes_unknown(place: Place, slow_sync: Path) -> None:
    """The writer times out during a sync; its write is present completely or not at all."""
    reader = await place.client()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", WRITER, place.where, "slow", "400",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "LD_PRELOAD": str(slow_sync), "SLOW_SYNC_MS": "250"},
    )  # fmt: skip
    said = [line async for line in lines_of(process)]
    await process.wait()
    assert said == [("sent", "slow-0"), ("unknown", "slow-0")]
    entry = await reader.get(KEY)
    assert words_of(entry) in ([], ["slow-0"])
    outcome = await reader.commit([IsAbsent(KEY)], [Put(KEY, b"fast-0")])
    assert isinstance(outcome, Committed) == (entry is None)
    await reader.close()
