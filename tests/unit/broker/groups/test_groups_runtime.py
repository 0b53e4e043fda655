"""The group coordinator of one broker: its state comes from its log alone; failures of loading and writing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from ottla.broker.coordinators import led_shard
from ottla.broker.coordinators import log_replay as loading
from ottla.machines.groups import coordinator
from ottla.machines.groups.coordinator import GroupCoordinator
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.replies import ConsumerHeartbeatReply, HeartbeatReply, JoinReply, ListGroupsReply, Reply
from ottla.machines.groups.requests import CommitOffsets, FetchOffsets, ListGroups, OffsetToCommit
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.records.batch import read_header, stamp, stamped
from ottla.protocol.records.record import Record, encode_batch
from tests.support.groups_bench import GroupsAlone, commit, error_of, first_heartbeat, heartbeat, join

LOADING = Refused(ErrorCode.coordinator_load_in_progress)
NOT_COORDINATOR = Refused(ErrorCode.not_coordinator)


def fill_up(bench: GroupsAlone) -> None:
    """Fills the disk and uses up the reserved space."""

    def fail() -> None:
        raise OSError(errno.ENOSPC, "no space")

    reserve = bench.broker.context.shared.reserve
    assert reserve is not None
    with pytest.raises(OSError, match="no space"):
        reserve.use_for(fail)
    bench.disk.capacity_bytes = bench.disk.used_bytes


async def test_offsets_are_there_after_a_crash() -> None:
    bench = GroupsAlone()
    await bench.ready()
    for offset in range(20):
        assert error_of(await bench.ask(commit("g", offset))) is ErrorCode.none
    bench.restart()
    await bench.until(bench.loaded())
    assert await bench.committed() == {("orders", 0): 19}


async def test_a_member_that_is_alive_stays_over_a_crash() -> None:
    bench = GroupsAlone()
    await bench.ready()
    joined = await bench.member()
    bench.restart()
    await bench.until(bench.loaded())
    assert await bench.ask(heartbeat("g", joined)) == HeartbeatReply()
    await bench.settle(11_000)
    assert error_of(await bench.ask(heartbeat("g", joined))) is ErrorCode.unknown_member_id, "its session is over"


async def test_nothing_is_answered_before_the_log_is_loaded() -> None:
    bench = GroupsAlone()
    await bench.ready()
    await bench.ask(commit("g", 7))
    bench.restart()
    assert await bench.broker.groups.ask(FetchOffsets(group="g"), "g") == LOADING
    assert await bench.broker.groups.ask_all(ListGroups()) == LOADING
    await bench.until(bench.loaded())
    assert await bench.committed() == {("orders", 0): 7}


async def test_loading_leaves_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the log is, no iteration of the loop replays more than a slice of it."""
    bench = GroupsAlone(offsets_topic_num_partitions="1", ottla_tail_cache_bytes="0")
    await bench.ready()
    for number in range(200):
        offsets = tuple(OffsetToCommit(topic="orders", partition=number % 4, offset=each) for each in range(10))
        await bench.ask(CommitOffsets(group=f"g{number}", offsets=offsets))
    bench.restart()
    replayed, turns = 0, list[int]()
    original = GroupCoordinator.replay

    def count(self: GroupCoordinator, *args: object) -> None:
        nonlocal replayed
        replayed += 1
        original(self, *args)  # type: ignore[arg-type]  # the arguments of replay

    monkeypatch.setattr(GroupCoordinator, "replay", count)

    def look() -> None:
        turns.append(replayed)
        if replayed < 2000:
            bench.clock.advance(1)
            asyncio.get_running_loop().call_soon(look)

    asyncio.get_running_loop().call_soon(look)
    for _ in range(10_000):
        await asyncio.sleep(0)
    assert replayed == 2000
    assert max(after - before for before, after in pairwise(turns)) <= loading.RECORDS_A_TURN


async def test_reads_wait_for_what_they_see() -> None:
    """An offset that is appended but not synced may be lost, so it is not returned."""
    bench = GroupsAlone()
    await bench.ready()
    await bench.ask(commit("g", 1))
    committing = await bench.asking(commit("g", 2))
    reading = await bench.asking(FetchOffsets(group="g"))
    assert not committing.done()
    assert not reading.done()
    await bench.until(reading)
    assert committing.done(), "the disk had it before anyone read it"


async def test_a_full_disk_refuses_commits_and_loses_no_member() -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="1")
    await bench.ready()
    joined = await bench.member("g")
    await bench.ask(commit("simple", 5), "simple")
    fill_up(bench)
    refused = await bench.ask(commit("simple", 6), "simple")
    assert error_of(refused) is ErrorCode.coordinator_not_available
    assert await bench.committed("simple") == {("orders", 0): 5}, "what is there can be read"
    await bench.settle(60_000)
    bench.disk.capacity_bytes = None
    await bench.settle(1000)
    assert await bench.ask(heartbeat("g", joined)) == HeartbeatReply(), "nobody could hear it for a minute"
    assert error_of(await bench.ask(commit("simple", 6), "simple")) is ErrorCode.none
    assert await bench.committed("simple") == {("orders", 0): 6}


async def test_a_record_that_is_not_taken_ends_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is then ahead of its log. It is reloaded and has the state of the log."""
    bench = GroupsAlone(offsets_topic_num_partitions="1")
    await bench.ready()
    await bench.ask(commit("g", 1))
    log = bench.partition(OFFSETS_TOPIC).log
    refusal: Callable[..., Refused | None] = log.refusal

    def refuse(size_bytes: int, record_count: int = 1) -> Refused | None:
        is_step = size_bytes != led_shard.ROOM_BYTES
        return Refused(ErrorCode.kafka_storage_error, "full") if is_step else refusal(size_bytes, record_count)

    monkeypatch.setattr(type(log), "refusal", lambda self, *args: refuse(*args))
    assert await bench.ask(commit("g", 2)) == NOT_COORDINATOR
    monkeypatch.undo()
    assert error_of(await bench.ask(commit("g", 3))) is ErrorCode.coordinator_not_available
    await bench.settle(2000)
    assert await bench.committed() == {("orders", 0): 1}


async def test_a_step_that_fails_ends_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="1")
    await bench.ready()
    await bench.ask(commit("g", 1))
    await bench.member("other")
    waiting = await bench.asking(join("other", fresh_id="2"), "other")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(coordinator._HANDLERS, FetchOffsets, fail)
    assert error_of(await bench.ask(FetchOffsets(group="g"))) is ErrorCode.unknown_server_error
    assert await bench.until(waiting) == NOT_COORDINATOR, "whoever waits asks again"
    monkeypatch.undo()
    await bench.settle(2000)
    assert await bench.committed() == {("orders", 0): 1}


async def test_a_log_that_fails_sends_everybody_away() -> None:
    bench = GroupsAlone(offsets_topic_num_partitions="1")
    await bench.ready()
    await bench.member()
    waiting = await bench.asking(join("g", fresh_id="2"))
    partition = bench.partition(OFFSETS_TOPIC)
    partition.log.failed = OSError(5, "broken")
    partition.on_log_failed(partition.log.failed)
    await asyncio.sleep(0)
    assert waiting.done(), "at once: no time has passed"
    assert waiting.result() == NOT_COORDINATOR
    assert error_of(await bench.ask(commit("g", 1))) is ErrorCode.coordinator_not_available


async def test_whoever_waits_is_sent_away_when_the_broker_stops() -> None:
    bench = GroupsAlone()
    await bench.ready()
    await bench.member()
    waiting = await bench.asking(join("g", fresh_id="2"))
    assert not waiting.done()
    bench.broker.begin_shutdown()
    assert await bench.until(waiting) == NOT_COORDINATOR
    assert error_of(await bench.ask(commit("g", 1))) is ErrorCode.coordinator_not_available


async def test_deadlines_are_kept() -> None:
    """A second member waits until the first one's session expires."""
    bench = GroupsAlone()
    await bench.ready()
    first = await bench.member()
    waiting = await bench.asking(join("g", fresh_id="2"))
    await bench.settle(9000)
    assert not waiting.done()
    await bench.settle(2000)
    joined: Reply = waiting.result()
    assert isinstance(joined, JoinReply)
    assert joined.generation == first.generation + 1
    assert [member.member_id for member in joined.members] == [joined.member_id]


async def test_a_batch_may_be_larger_than_a_producers() -> None:
    bench = GroupsAlone(message_max_bytes="1000")
    await bench.ready()
    offsets = tuple(OffsetToCommit(topic="orders", partition=0, offset=1, metadata="x" * 1000) for _ in range(2))
    assert error_of(await bench.ask(CommitOffsets(group="g", offsets=offsets))) is ErrorCode.none


async def test_groups_are_listed_and_counted() -> None:
    bench = GroupsAlone()
    await bench.ready()
    for number in range(6):
        await bench.ask(commit(f"g{number}", number), f"g{number}")
    await bench.member("alive")
    listed = await bench.until(bench.broker.groups.ask_all(ListGroups()))
    assert not isinstance(listed, Refused)
    names = [each.group for part in listed if isinstance(part, ListGroupsReply) for each in part.groups]
    assert sorted(names) == ["alive", *(f"g{number}" for number in range(6))]
    assert dict(bench.broker.groups.group_counts()) == {"Empty": 6, "Stable": 1}
    found = {(each.group, each.topic, each.partition, each.offset) for each in bench.broker.groups.committed_offsets()}
    assert found == {(f"g{number}", "orders", 0, number) for number in range(6)}


async def test_a_copied_log_is_read_as_far_as_it_is_known() -> None:
    """Records of later versions and invalid ones are skipped; the others count."""
    bench = GroupsAlone(offsets_topic_num_partitions="1")
    await bench.ready()
    await bench.ask(commit("g", 3))
    partition = bench.partition(OFFSETS_TOPIC)
    strange = [Record(0, 1, b"\x00\x63later", b"value"), Record(1, 1, b"\x00", None), Record(2, 1, None, b"no key")]
    batch = memoryview(encode_batch(strange))
    stamp(batch, partition.log.end_offset, 1)
    partition.log.append(stamped(read_header(batch), partition.log.end_offset, 1), batch)
    await bench.settle()
    bench.restart()
    await bench.until(bench.loaded())
    assert await bench.committed() == {("orders", 0): 3}


async def test_a_consumer_hears_of_its_topic() -> None:
    bench = GroupsAlone()
    await bench.ready()
    joined = await bench.ask(first_heartbeat("g", topics=("later",)))
    assert isinstance(joined, ConsumerHeartbeatReply)
    assert not joined.assignment
    topic = await bench.create("later", partitions=2)
    await bench.settle(1000)
    assert joined.member_id is not None
    again = await bench.ask(
        replace(first_heartbeat("g"), member_epoch=joined.member_epoch, subscribed_names=None, owned=None)
    )
    assert isinstance(again, ConsumerHeartbeatReply)
    assert again.assignment == frozenset({(topic.id, 0), (topic.id, 1)})


async def test_a_compacted_log_says_the_same() -> None:
    """Members joined and left, offsets were committed repeatedly: the compacted log gives the same state."""
    bench = GroupsAlone(
        offsets_topic_num_partitions="1", log_cleaner_backoff_ms="100", offsets_topic_segment_bytes="4000"
    )
    await bench.ready()
    for offset in range(300):
        await bench.ask(commit("g", offset, partition=offset % 4))
    joined = await bench.member("other")
    log = bench.partition(OFFSETS_TOPIC).log
    size_bytes = log.size_bytes
    await bench.settle(5000)
    assert await bench.ask(heartbeat("other", joined), "other") == HeartbeatReply()
    assert log.size_bytes < size_bytes / 2, "it was compacted"
    bench.restart()
    await bench.until(bench.loaded())
    assert await bench.committed() == {("orders", index): 296 + index for index in range(4)}
    assert await bench.ask(heartbeat("other", joined), "other") == HeartbeatReply()
    assert await bench.ask(commit("g", 1000)) is not None
    assert (await bench.committed())["orders", 0] == 1000
