"""The lag of groups as the coordinator reports it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import pytest

from ottla.broker.groups.groups import CommittedOffset
from ottla.broker.metrics import group_metrics as of_groups
from ottla.broker.metrics.group_metrics import GroupLags
from ottla.broker.metrics.page import Page
from ottla.broker.metrics.slices import Slices
from ottla.broker.partition.record_deletion import advance_log_start
from tests.support.handlers_caller import Caller, calling
from tests.support.metrics_reading import Scraped

AGE_MS = 60_000


@asynccontextmanager
async def committed(monkeypatch: pytest.MonkeyPatch, offsets: Iterable[CommittedOffset]) -> AsyncIterator[Caller]:
    """A topic of ten records, written a minute ago in batches of five, and groups that have committed these offsets."""

    def found() -> Iterator[CommittedOffset]:
        return iter(offsets)

    async with calling() as caller:
        await caller.create_topic("t")
        for _ in range(2):
            await caller.produce("t", records=5, timestamp_ms=caller.broker.clock.now_ms() - AGE_MS)
        monkeypatch.setattr(caller.broker.groups, "committed_offsets", found)
        yield caller


async def page_of(lags: GroupLags) -> Scraped:
    page = Page(1)
    await lags.add_to(page, Slices())
    return Scraped(page.text())


@pytest.mark.parametrize(("offset", "records"), [(0, 10), (3, 7), (9, 1), (10, 0), (12, 0)])
async def test_records_and_seconds(monkeypatch: pytest.MonkeyPatch, offset: int, records: int) -> None:
    async with committed(monkeypatch, [CommittedOffset("g", "t", 0, offset, 0)]) as caller:
        page = await page_of(GroupLags(caller.broker))
        assert page.value("ottla_group_committed_offset", group="g", topic="t", partition="0") == offset
        assert page.value("ottla_group_lag_records", group="g") == records
        seconds = page.value("ottla_group_lag_seconds", group="g")
        if records:
            assert AGE_MS / 1000 <= seconds < 10 * AGE_MS / 1000
        else:
            assert seconds == 0


async def test_records_that_are_deleted_are_nobodys_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    async with committed(monkeypatch, [CommittedOffset("g", "t", 0, 2, 0)]) as caller:
        topic = caller.broker.topics.get("t")
        assert topic is not None
        await advance_log_start(topic.partitions[0], 6)
        assert (await page_of(GroupLags(caller.broker))).value("ottla_group_lag_records") == 4


async def test_a_topic_that_is_gone_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = [CommittedOffset("g", "gone", 0, 2, 0), CommittedOffset("g", "t", 0, 4, 0)]
    async with committed(monkeypatch, offsets) as caller:
        page = await page_of(GroupLags(caller.broker))
        assert [sample.labels["topic"] for sample in page.matching("ottla_group_lag_records")] == ["t"]
        assert page.sum("ottla_group_committed_offset", topic="gone") == 2


async def test_a_group_that_stands_still_costs_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with committed(monkeypatch, [CommittedOffset("g", "t", 0, 4, 0)]) as caller:
        topic = caller.broker.topics.get("t")
        assert topic is not None
        partition = topic.partitions[0]
        reads = 0
        read = partition.read

        def counted(offset: int, max_bytes: int, *, committed_only: bool = False) -> object:
            nonlocal reads
            reads += 1
            return read(offset, max_bytes, committed_only=committed_only)

        monkeypatch.setattr(partition, "read", counted)
        lags = GroupLags(caller.broker)
        first = (await page_of(lags)).value("ottla_group_lag_seconds")
        assert (await page_of(lags)).value("ottla_group_lag_seconds") >= first
        assert reads == 1


async def test_cold_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_groups, "COLD_READS_MAX", 1)
    offsets = [CommittedOffset("g", "t", 0, 0, 0), CommittedOffset("h", "t", 0, 5, 0)]
    async with committed(monkeypatch, offsets) as caller:
        await caller.broker.housekeeping.flush_everything()
        for log in caller.broker.context.file_logs():
            caller.broker.context.shared.tail.forget(log.writer)
        monkeypatch.setattr("ottla.sim.files.SimFile.read_cached", lambda *_: None)
        lags = GroupLags(caller.broker)
        page = await page_of(lags)
        assert page.sum("ottla_group_lag_records") == 15
        assert len(list(page.matching("ottla_group_lag_seconds"))) == 1
        assert len(list((await page_of(lags)).matching("ottla_group_lag_seconds"))) == 2, "the next page has the other"
