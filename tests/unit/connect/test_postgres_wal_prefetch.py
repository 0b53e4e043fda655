"""Prefetching for a recovering PostgreSQL server: how often the log is opened, and how failures are handled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.connect.postgres_wal.failures import UnreachableError
from ottla.connect.postgres_wal.pieces import GapError
from ottla.connect.postgres_wal.positions import Lsn, Segment
from ottla.connect.postgres_wal.prefetch import Prefetch
from tests.support.postgres_wal_log import ONE, TWO, MemoryLog, wal

SEGMENT_BYTES = 1 << 10
WHOLE = 5
CONTENT = random.Random(5).randbytes(WHOLE * SEGMENT_BYTES + 300)


class World:
    """A log of five segments and part of the sixth."""

    def __init__(self, directory: Path, *, ahead: int = 9) -> None:
        self.log = MemoryLog()
        for at in range(0, len(CONTENT), 100):
            self.log.put(wal(ONE, at, CONTENT[at : at + 100]))
        self.opened = 0
        self.failure: Exception | None = None
        self.ready = directory / "ready"
        self.ready.mkdir()
        self.path = directory / "RECOVERYXLOG"
        self.prefetch = Prefetch(
            self.open,
            directory,
            self.ready,
            segment_bytes=SEGMENT_BYTES,
            up_to_gap=False,
            spool_bytes=ahead * SEGMENT_BYTES,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[MemoryLog]:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        yield self.log

    async def take(self, number: int) -> bool:
        self.path.unlink(missing_ok=True)
        found = await self.prefetch.take(segment(number), self.path)
        if found:
            assert self.path.read_bytes() == CONTENT[number * SEGMENT_BYTES : (number + 1) * SEGMENT_BYTES]
        assert found == self.path.exists()
        return found

    async def until_ready(self, *numbers: int) -> None:
        names: list[str] = []
        for _ in range(4000):
            names = sorted(each.name for each in self.ready.iterdir())
            if names == [segment(each).name for each in numbers]:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(names)


def segment(number: int) -> Segment:
    return Segment(ONE, Lsn(number * SEGMENT_BYTES), SEGMENT_BYTES)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_one_reading_gives_the_first_segment_and_all_that_follow(world: World) -> None:
    for number in range(WHOLE):
        assert await world.take(number)
    assert not await world.take(WHOLE), "it is not whole"
    assert world.opened == 1
    await world.prefetch.go_on_after(segment(WHOLE))
    await asyncio.sleep(0)
    assert world.opened == 1, "the log ended in it, so there is nothing to read ahead"
    await world.prefetch.stop()


async def test_it_goes_on_behind_a_segment_that_was_read_by_itself(world: World) -> None:
    assert await world.take(0)
    on_another_timeline = Segment(TWO, segment(1).first_lsn, SEGMENT_BYTES)
    assert not await world.prefetch.take(on_another_timeline, world.path), "PostgreSQL tries the newest one first"
    assert await world.take(1), "which does not end the run"
    await world.prefetch.go_on_after(segment(2))
    await world.until_ready(3, 4)
    assert await world.take(3)
    assert world.opened == 2
    await world.prefetch.stop()
    assert not list(world.ready.iterdir())


async def test_the_first_request_reports_why_the_log_cannot_be_read(world: World) -> None:
    """A later one reads the log again, which may work by then."""
    world.failure = UnreachableError("no broker answers")
    with pytest.raises(UnreachableError, match="no broker answers"):
        await world.take(0)
    world.failure = None
    assert not await world.take(0)
    await world.prefetch.go_on_after(segment(0))
    assert await world.take(1)
    await world.prefetch.stop()


async def test_a_gap_in_the_first_segment_is_reported(world: World) -> None:
    del world.log.records[3]
    with pytest.raises(GapError):
        await world.take(0)
    await world.prefetch.stop()


async def test_a_gap_further_on_is_none_of_the_first_request(world: World) -> None:
    del world.log.records[33]
    for number in range(3):
        assert await world.take(number)
    assert not await world.take(3)
    await world.prefetch.stop()


async def test_a_file_that_restore_command_took_is_not_promised_again(world: World) -> None:
    assert await world.take(0)
    await world.until_ready(1, 2, 3, 4)
    (world.ready / segment(4).name).unlink()
    assert not await world.take(4)
    await world.prefetch.stop()


async def test_the_spool_is_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, ahead=2)
    assert await world.take(0)
    await world.until_ready(1, 2)
    (world.ready / segment(1).name).unlink()
    await world.until_ready(2, 3)
    await world.prefetch.stop()
