"""Retention that waits for the archive: unarchived records stay, up to the bound, whoever leads and coordinates."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from ottla.broker.storage.archive_wait import ArchiveWaitLimits, ExpiredSegment, RemovalDecision, decide
from ottla.broker.storage.file_log import FileLog
from ottla.client.admin.admin import Admin
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.topic_config import TopicConfig, parse_topic_config
from ottla.sim.world import SimWorld
from tests.support.groups_bench import PROPERTIES, GroupsCluster

NO_BOUNDS = ArchiveWaitLimits(-1, -1)
TOPIC = "events"
RECORDS = 40
MUCH_LATER_S = 30
"""Many times the retention of these topics, in virtual time."""


def due(*ends: int, size_bytes: int = 100, waited_ms: float = 0) -> list[ExpiredSegment]:
    return [ExpiredSegment(end, size_bytes, waited_ms) for end in ends]


# -- the decision


@pytest.mark.parametrize(
    ("archived_end", "verdict"),
    [
        (None, RemovalDecision(0, 0)),
        (0, RemovalDecision(0, 0)),
        (9, RemovalDecision(0, 0)),
        (10, RemovalDecision(1, 0)),
        (25, RemovalDecision(2, 0)),
    ],
)
def test_a_segment_goes_when_all_of_it_is_archived(archived_end: int | None, verdict: RemovalDecision) -> None:
    assert decide(due(10, 20, 30), archived_end, NO_BOUNDS) == verdict


def test_what_is_beyond_the_bytes_goes_oldest_first() -> None:
    assert decide(due(10, 20, 30), None, ArchiveWaitLimits(300, -1)) == RemovalDecision(0, 0)
    assert decide(due(10, 20, 30), None, ArchiveWaitLimits(299, -1)) == RemovalDecision(0, 1)
    assert decide(due(10, 20, 30), 10, ArchiveWaitLimits(199, -1)) == RemovalDecision(1, 1)
    assert decide(due(10, 20, 30), 10, ArchiveWaitLimits(0, -1)) == RemovalDecision(1, 2)


def test_what_has_waited_too_long_goes() -> None:
    waited = [*due(10, waited_ms=9001), *due(20, waited_ms=9000), *due(30)]
    assert decide(waited, None, ArchiveWaitLimits(-1, 9000)) == RemovalDecision(0, 1)
    assert decide(waited, 10, ArchiveWaitLimits(-1, 9000)) == RemovalDecision(1, 0)


@pytest.mark.parametrize("seed", range(200))
def test_the_decision_keeps_its_promises(seed: int) -> None:
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1, 1000), chance.randrange(12)))
    waits = sorted((chance.uniform(0, 100) for _ in ends), reverse=True)
    segments = [ExpiredSegment(end, chance.randrange(1, 50), waited) for end, waited in zip(ends, waits, strict=True)]
    archived_end = chance.choice([None, chance.randrange(1100)])
    bounds = ArchiveWaitLimits(chance.choice([-1, chance.randrange(300)]), chance.choice([-1, chance.randrange(100)]))
    archived, given_up = decide(segments, archived_end, bounds)
    going, left = segments[archived : archived + given_up], segments[archived + given_up :]
    assert all(archived_end is not None and each.end_offset <= archived_end for each in segments[:archived])
    assert archived_end is None or all(each.end_offset > archived_end for each in [*going, *left])

    def is_within(some: list[ExpiredSegment]) -> bool:
        has_room = bounds.bytes_max < 0 or sum(each.size_bytes for each in some) <= bounds.bytes_max
        return has_room and (bounds.ms_max < 0 or all(each.waited_ms <= bounds.ms_max for each in some))

    assert is_within(left)
    assert not going or not is_within([going[-1], *left]), "no more goes than has to"


# -- the setting


def test_the_setting_is_checked() -> None:
    plain = parse_topic_config({})
    assert isinstance(plain, TopicConfig)
    assert plain.archive_group == ""
    named = parse_topic_config({"ottla.archive.group": "archive", "ottla.archive.wait.max.bytes": "-1"})
    assert isinstance(named, TopicConfig)
    assert (named.archive_group, named.archive_wait_max_bytes) == ("archive", -1)
    for wrong in (
        {"ottla.archive.wait.max.bytes": "-2"},
        {"ottla.archive.wait.max.ms": "soon"},
        {"ottla.archive.group": "archive", "ottla.durability": "memory"},
    ):
        refused = parse_topic_config(wrong)
        assert isinstance(refused, Refused)
        assert refused.error is ErrorCode.invalid_config


# -- in a cluster


@pytest.fixture
def bench() -> Iterator[GroupsCluster]:
    with SimWorld(1) as world:
        bench = GroupsCluster(world, properties=PROPERTIES)
        bench.ready()
        yield bench


def fill(bench: GroupsCluster, group: str, *, factor: int = 3, **configs: str) -> None:
    """Creates a topic of small segments, all of which expire after a second."""
    settings = {"retention_ms": "1000", "segment_bytes": "1024", "ottla_archive_group": group, **configs}
    bench.run(bench.create(TOPIC, partitions=1, factor=factor, **settings))
    bench.run(bench.write(TOPIC, [b"x" * 400] * RECORDS))


def starts(bench: GroupsCluster) -> set[int]:
    """The start offsets of all running replicas."""
    found = [bench.find(number, TOPIC) for number in bench.ids]
    return {each.log.start_offset for each in found if each is not None and each.log.failed is None}


def archive(bench: GroupsCluster, group: str, offset: int) -> None:
    async def commit() -> None:
        async with Admin(bench.bootstrap) as admin:
            assert not await admin.alter_group_offsets(group, {(TOPIC, 0): offset})

    bench.run(commit())


def configure(bench: GroupsCluster, values: dict[str, str], *reset: str) -> None:
    async def change() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.alter_configs(TOPIC, set_values=values, delete=reset)

    bench.run(change())


def group_elsewhere(bench: GroupsCluster, number: int) -> str:
    """Returns a group whose coordinator is another broker."""
    return next(name for name in map(str, range(100)) if bench.coordinator(name) != number)


def group_here(bench: GroupsCluster, number: int) -> str:
    return next(name for name in map(str, range(100)) if bench.coordinator(name) == number)


def reports(bench: GroupsCluster) -> list[str]:
    said = [text for program in bench.programs.values() for text in program.reports]
    return [text for text in said if "DELETED BEFORE THEY WERE ARCHIVED" in text]


@pytest.mark.parametrize("is_here", [True, False])
def test_segments_go_on_all_replicas_when_they_are_archived(bench: GroupsCluster, is_here: bool) -> None:
    fill(bench, "nobody yet")
    leader = bench.leader(TOPIC)
    group = group_here(bench, leader) if is_here else group_elsewhere(bench, leader)
    configure(bench, {"ottla.archive.group": group})
    bench.world.run_for(MUCH_LATER_S)
    assert starts(bench) == {0}, "nothing is archived"
    waits = bench.broker(leader).housekeeping.archive_waits
    assert waits.waiting_bytes(bench.partition(leader, TOPIC)) > RECORDS * 400
    archive(bench, group, RECORDS // 2 + 1)
    bench.until(lambda: starts(bench) == {RECORDS // 2})
    bench.world.run_for(MUCH_LATER_S)
    assert starts(bench) == {RECORDS // 2}, "the segment with the next record is not archived as a whole"
    archive(bench, group, RECORDS)
    bench.until(lambda: starts(bench) == {RECORDS})
    assert waits.waiting_bytes(bench.partition(leader, TOPIC)) == 0
    assert reports(bench) == []


def test_a_coordinator_that_cannot_be_asked_has_archived_nothing(bench: GroupsCluster) -> None:
    fill(bench, "nobody yet", factor=1, retention_ms="3600000")
    leader = bench.leader(TOPIC)
    group = group_elsewhere(bench, leader)
    archive(bench, group, RECORDS)
    fault = bench.world.network.cut([bench.name(leader)], [bench.name(bench.coordinator(group))])
    configure(bench, {"ottla.archive.group": group, "retention.ms": "1000"})
    bench.world.run_for(MUCH_LATER_S)
    assert starts(bench) == {0}
    fault.heal()
    bench.until(lambda: starts(bench) == {RECORDS})


def test_a_new_leader_waits_too(bench: GroupsCluster) -> None:
    fill(bench, "archive")
    bench.until_in_sync(TOPIC)
    bench.world.run_for(MUCH_LATER_S)
    killed = bench.leader(TOPIC)
    bench.kill(killed)
    bench.until(lambda: bench.leader(TOPIC) not in (killed, -1))
    bench.world.run_for(MUCH_LATER_S)
    assert starts(bench) == {0}
    archive(bench, "archive", RECORDS)
    bench.until(lambda: starts(bench) == {RECORDS})
    bench.boot(killed)
    bench.until(lambda: bench.find(killed, TOPIC) is not None and starts(bench) == {RECORDS})


def test_a_bound_in_bytes(bench: GroupsCluster) -> None:
    fill(bench, "archive", ottla_archive_wait_max_bytes="4096")
    bench.until(lambda: starts(bench) != {0} and len(starts(bench)) == 1)
    bench.world.run_for(MUCH_LATER_S)
    leader = bench.leader(TOPIC)
    (start,) = starts(bench)
    waits = bench.broker(leader).housekeeping.archive_waits
    assert 4096 - 1024 < waits.waiting_bytes(bench.partition(leader, TOPIC)) <= 4096
    assert waits.deleted_unarchived == {TOPIC: start}
    assert any(f"{TOPIC}-0" in text and "group archive is not known here" in text for text in reports(bench))
    archive(bench, "archive", RECORDS)
    bench.until(lambda: starts(bench) == {RECORDS})
    assert waits.deleted_unarchived == {TOPIC: start}


def test_a_bound_of_nothing_gives_up_each_record_once(bench: GroupsCluster) -> None:
    """The active segment is deleted too, and a segment as a whole, however large a batch has made it."""
    fill(bench, "archive", ottla_archive_wait_max_bytes="0")
    bench.run(bench.write(TOPIC, [b"x" * 5000]))
    bench.until(lambda: starts(bench) == {RECORDS + 1})
    bench.world.run_for(MUCH_LATER_S)
    spans = [re.search(r"offsets (\d+) to (\d+)", text) for text in reports(bench)]
    given_up = [offset for span in spans if span for offset in range(int(span[1]), int(span[2]) + 1)]
    assert sorted(given_up) == list(range(RECORDS + 1))


def test_a_bound_in_time(bench: GroupsCluster) -> None:
    fill(bench, "archive", ottla_archive_wait_max_ms="60000")
    bench.world.run_for(MUCH_LATER_S)
    archive(bench, "archive", 2)
    assert starts(bench) <= {0, 2}
    bench.world.run_for(2 * MUCH_LATER_S)
    bench.until(lambda: starts(bench) == {RECORDS})
    assert any("offsets 2 to" in text and "has come to 2" in text for text in reports(bench))


def test_records_are_deleted_by_hand_whether_archived_or_not(bench: GroupsCluster) -> None:
    fill(bench, "archive")

    async def delete() -> None:
        async with Admin(bench.bootstrap) as admin:
            await admin.delete_records({(TOPIC, 0): 11})

    bench.run(delete())
    bench.until(lambda: starts(bench) == {11})
    log = bench.partition(bench.leader(TOPIC), TOPIC).log
    assert isinstance(log, FileLog)
    bench.until(lambda: log.segments[0].base_offset >= 10)
    bench.world.run_for(MUCH_LATER_S)
    assert starts(bench) == {11}
    assert reports(bench) == []


def test_a_topic_that_waits_for_nobody_any_more(bench: GroupsCluster) -> None:
    fill(bench, "archive")
    bench.world.run_for(MUCH_LATER_S)
    configure(bench, {}, "ottla.archive.group")
    bench.until(lambda: starts(bench) == {RECORDS})
    leader = bench.leader(TOPIC)
    assert bench.broker(leader).housekeeping.archive_waits.waiting_bytes(bench.partition(leader, TOPIC)) == 0
