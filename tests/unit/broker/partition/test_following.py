"""A follower by itself: its requests to the leader, and its handling of each reply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.partition import Partition, Role
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.machines.controller.state import Member
from ottla.ports import Completion
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch_client import FetchedPartition
from tests.support.sim_broker import BrokerBench
from tests.support.sim_logs import batch_of

EPOCH = 5
BYTES_MAX = 1 << 20


@dataclass
class Cuts:
    """Truncates logs. The test says when a truncation is durable."""

    due: list[tuple[str, int, Completion]] = field(default_factory=list)

    def truncate(self, log: AnyLog, offset: int, done: Completion) -> None:
        cast("MemoryLog", log).truncate_to(offset)
        self.due.append(("truncate", offset, done))

    def reset(self, log: AnyLog, offset: int, done: Completion) -> None:
        cast("MemoryLog", log).reset_to(offset)
        self.due.append(("reset", offset, done))


class Bench:
    def __init__(self, partition: Partition) -> None:
        self.cuts = Cuts()
        self.partition = partition
        self.partition.role = Role.FOLLOWER
        self.following = FollowerPartition(partition, self.cuts, Member(2, 1), EPOCH, 0)
        self.partition.following = self.following
        self.partition.leader_epoch = EPOCH

    def take(
        self,
        records: bytes = b"",
        *,
        watermark: int = 0,
        start: int = 0,
        error: ErrorCode = ErrorCode.none,
        diverging: tuple[int, int] | None = None,
    ) -> ErrorCode:
        asked = self.following.next_fetch(BYTES_MAX)
        assert asked is not None
        return self.following.take(asked, answer(records, watermark, start, error, diverging))

    @property
    def ends(self) -> tuple[int, int]:
        return self.partition.log.end_offset, self.partition.high_watermark


def answer(
    records: bytes,
    watermark: int = 0,
    start: int = 0,
    error: ErrorCode = ErrorCode.none,
    diverging: tuple[int, int] | None = None,
) -> FetchedPartition:
    return FetchedPartition(0, error.value, watermark, watermark, start, None, -1, memoryview(records), diverging)


def batch(base_offset: int, count: int = 1, epoch: int = EPOCH) -> bytes:
    return batch_of([b"value"] * count, base_offset=base_offset, leader_epoch=epoch)


@pytest.fixture
async def bench() -> Bench:
    broker = BrokerBench()
    await broker.create("t", durability="memory")
    return Bench(broker.partition("t"))


async def test_it_takes_what_follows_on_and_shows_no_more_than_it_has(bench: Bench) -> None:
    assert bench.take(batch(0, 3) + batch(3, 2), watermark=9) is ErrorCode.none
    assert bench.ends == (5, 5)
    asked = bench.following.next_fetch(BYTES_MAX)
    assert asked is not None
    assert (asked.fetch_offset, asked.last_fetched_epoch, asked.current_leader_epoch) == (5, EPOCH, EPOCH)


@pytest.mark.parametrize(
    "records",
    [batch(1), batch(0, epoch=EPOCH + 1), batch(0)[:-1] + b"\xff", batch(0, 2)[:-3]],
    ids=["a-gap", "a-later-epoch", "a-flipped-byte", "a-torn-batch"],
)
async def test_what_does_not_fit_is_not_taken(bench: Bench, records: bytes) -> None:
    """A torn batch is no error: a reply may end in the middle of one."""
    error = bench.take(records, watermark=1)
    assert bench.ends == (0, 0)
    is_torn = records == batch(0, 2)[:-3]
    assert error is (ErrorCode.none if is_torn else ErrorCode.corrupt_message)


async def test_an_answer_to_an_older_question_changes_nothing(bench: Bench) -> None:
    """A reply that no longer fits the request is not applied (safety: fetch-replies)."""
    asked = bench.following.next_fetch(BYTES_MAX)
    assert asked is not None
    bench.take(batch(0, 2), watermark=2)
    assert bench.following.take(asked, answer(batch(0, 4), 4)) is ErrorCode.none
    assert bench.following.take(asked._replace(fetch_offset=2, current_leader_epoch=EPOCH - 1), answer(batch(2))) is (
        ErrorCode.none
    )
    assert bench.ends == (2, 2)


async def test_it_waits_until_a_cut_is_over(bench: Bench) -> None:
    bench.take(batch(0, 2, EPOCH - 2) + batch(2, 2, EPOCH - 1), watermark=2)
    ready: list[None] = []
    bench.following.on_ready = lambda: ready.append(None)
    assert bench.take(diverging=(EPOCH - 2, 2)) is ErrorCode.none
    assert [(kind, offset) for kind, offset, _ in bench.cuts.due] == [("truncate", 2)]
    assert bench.following.next_fetch(BYTES_MAX) is None
    assert not ready
    bench.cuts.due[0][2](None)
    assert ready
    asked = bench.following.next_fetch(BYTES_MAX)
    assert asked is not None
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (2, EPOCH - 2)


async def test_after_a_cut_below_the_watermark_new_records_are_hidden_until_they_are_said_to_be_visible(
    bench: Bench,
) -> None:
    """Only an unclean election causes this: readers must not see records that are not committed yet."""
    bench.take(batch(0, 2, EPOCH - 2) + batch(2, 4, EPOCH - 1), watermark=6)
    assert bench.ends == (6, 6)
    bench.take(diverging=(EPOCH - 2, 2))
    bench.cuts.due[0][2](None)
    bench.take(batch(2, 4), watermark=2)
    assert bench.ends == (6, 2)


async def test_after_a_rebuild_new_records_are_hidden_until_they_are_said_to_be_visible(bench: Bench) -> None:
    bench.take(batch(0, 6), watermark=6)
    bench.following.rebuild(3)
    assert [(kind, offset) for kind, offset, _ in bench.cuts.due] == [("reset", 3)]
    bench.cuts.due[0][2](None)
    bench.take(batch(3, 5), watermark=3)
    assert bench.ends == (8, 3)


async def test_what_the_leader_deleted_is_deleted_here(bench: Bench) -> None:
    bench.take(batch(0, 3) + batch(3, 3), watermark=6, start=3)
    assert bench.partition.log.start_offset == 3


async def test_a_role_that_ended_takes_nothing_more(bench: Bench) -> None:
    asked = bench.following.next_fetch(BYTES_MAX)
    assert asked is not None
    bench.partition.stand_by(EPOCH)
    assert bench.following.take(asked, answer(batch(0), 1)) is ErrorCode.none
    assert bench.ends == (0, 0)
    assert bench.following.next_fetch(BYTES_MAX) is None


async def test_an_empty_log_begins_with_the_batch_that_the_leaders_log_starts_in(bench: Bench) -> None:
    """After DeleteRecords a leader's log may start in the middle of a batch, and batches are copied as a whole."""
    bench.following.rebuild(2)
    bench.cuts.due.pop()[2](None)
    assert bench.take(batch(0, 4) + batch(4), watermark=5, start=2) is ErrorCode.none
    [(kind, offset, done)] = bench.cuts.due
    assert (kind, offset) == ("reset", 0)
    assert bench.following.next_fetch(BYTES_MAX) is None
    done(None)
    assert bench.ends == (4, 0)
    assert bench.take(batch(4), watermark=5, start=2) is ErrorCode.none
    assert bench.ends == (5, 5)
    assert bench.partition.log.start_offset == 2


async def test_a_log_that_ends_where_its_leaders_log_starts_begins_with_that_batch(bench: Bench) -> None:
    """The leader has forgotten the epochs below its start, so a replica that diverged earlier is truncated to that
    start only. Nothing that it has is in its leader's log any more. Found by seed 210043 of the simulation of long
    logs."""
    assert bench.take(batch(0) + batch(1), watermark=0) is ErrorCode.none
    assert bench.take(batch(1, 4) + batch(5), watermark=6, start=2) is ErrorCode.none
    [(kind, offset, done)] = bench.cuts.due
    assert (kind, offset) == ("reset", 1)
    done(None)
    assert bench.take(batch(5), watermark=6, start=2) is ErrorCode.none
    assert bench.ends == (6, 6)
    assert bench.partition.log.start_offset == 2


async def test_a_log_that_ends_above_its_leaders_start_does_not_begin_anew(bench: Bench) -> None:
    assert bench.take(batch(0) + batch(1), watermark=0) is ErrorCode.none
    assert bench.take(batch(1, 4), watermark=5, start=1) is ErrorCode.corrupt_message
    assert not bench.cuts.due


async def test_a_batch_that_the_log_does_not_end_in_is_not_begun_with(bench: Bench) -> None:
    bench.following.rebuild(2)
    bench.cuts.due.pop()[2](None)
    assert bench.take(batch(3), watermark=4, start=2) is ErrorCode.corrupt_message
    assert not bench.cuts.due
