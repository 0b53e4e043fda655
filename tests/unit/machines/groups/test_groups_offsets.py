"""Offsets: which members may commit and read them, and when they expire."""

from __future__ import annotations

from uuid import UUID

from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.replies import CommitReply, DeleteGroupReply, DeleteOffsetsReply, FetchOffsetsReply
from ottla.machines.groups.requests import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from ottla.machines.groups.tables import Tables
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.ids import TopicId
from tests.support.groups_driver import DELAY_MS, SESSION_MS, TOPICS, Groups, subscribe

DAY_MS = 24 * 60 * 60_000
RETENTION_MS = 7 * DAY_MS


def fetch_all(groups: Groups, group: str = "g", *, require_stable: bool = False) -> dict[tuple[str, int], object]:
    reply = groups.expect(FetchOffsetsReply, groups.ask(FetchOffsets(group=group, require_stable=require_stable)))
    return {
        (each.topic, each.partition): each.error.name if each.value is None else each.value.offset
        for each in reply.offsets
    }


def delete(groups: Groups, topic: str, group: str = "g") -> str:
    reply = groups.expect(DeleteOffsetsReply, groups.ask(DeleteOffsets(group=group, topics=((topic, (0,)),))))
    return reply.error.name if reply.error is not ErrorCode.none else reply.partitions[0][2].name


class TestCommit:
    def test_a_consumer_without_a_group_commits(self) -> None:
        groups = Groups()
        assert groups.commit("g", 5) == "none"
        assert groups.committed("g") == 5

    def test_what_was_not_committed_is_not_there(self) -> None:
        assert Groups().committed("g") is None

    def test_all_that_was_acknowledged_survives_a_failover(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        groups.commit("g", 6, partition=1)
        groups.commit("g", 7)
        groups.fail_over()
        assert fetch_all(groups) == {("orders", 0): 7, ("orders", 1): 6}

    def test_metadata_and_leader_epoch_are_kept(self) -> None:
        groups = Groups()
        offset = OffsetToCommit(topic="orders", partition=1, offset=5, leader_epoch=3, metadata="mine")
        groups.ask(CommitOffsets(group="g", offsets=(offset,)))
        groups.fail_over()
        value = groups.tables.offsets.of("g")["orders"][1]
        assert (value.leader_epoch, value.metadata) == (3, "mine")

    def test_too_much_metadata_is_refused_and_the_rest_is_taken(self) -> None:
        groups = Groups(GroupConfig(offset_metadata_max_bytes=3))
        offsets = tuple(
            OffsetToCommit(topic="orders", partition=number, offset=5, metadata="x" * (3 + number)) for number in (0, 1)
        )
        reply = groups.expect(CommitReply, groups.ask(CommitOffsets(group="g", offsets=offsets)))
        assert [error.name for error in reply.errors] == ["none", "offset_metadata_too_large"]
        assert fetch_all(groups) == {("orders", 0): 5}

    def test_a_generation_of_no_group(self) -> None:
        groups = Groups()
        assert groups.commit("g", 5, generation=1, member_id="m") == "group_id_not_found"
        assert groups.commit("g", 5, generation=1, member_id="m", knows_epochs=False) == "illegal_generation"
        groups.commit("g", 5)
        assert groups.commit("g", 6, generation=1, member_id="m") == "unknown_member_id"

    def test_a_member_of_the_generation_commits(self) -> None:
        groups = Groups()
        member = groups.assemble()[0]
        assert groups.commit("g", 5, generation=member.generation, member_id=member.member_id) == "none"

    def test_others_do_not(self) -> None:
        groups = Groups()
        member = groups.assemble()[0]
        assert groups.commit("g", 5) == "unknown_member_id"
        assert groups.commit("g", 5, generation=member.generation, member_id="x") == "unknown_member_id"
        assert groups.commit("g", 5, generation=9, member_id=member.member_id) == "illegal_generation"
        assert groups.committed("g") is None

    def test_an_emptied_group_takes_commits_without_a_generation(self) -> None:
        groups = Groups()
        groups.assemble()
        groups.wait(SESSION_MS)
        assert groups.state() == "Empty"
        assert groups.commit("g", 5) == "none"

    def test_not_before_the_generation_is_assigned(self) -> None:
        groups = Groups()
        ticket = groups.join()
        groups.wait(DELAY_MS)
        member = groups.joined(ticket)
        generation, member_id = member.generation, member.member_id
        assert groups.commit("g", 5, generation=generation, member_id=member_id) == "rebalance_in_progress"

    def test_a_commit_counts_as_a_heartbeat(self) -> None:
        groups = Groups()
        member = groups.assemble()[0]
        for _ in range(3):
            groups.wait(SESSION_MS - 1)
            assert groups.commit("g", 5, generation=member.generation, member_id=member.member_id) == "none"


class TestDelete:
    def test_a_subscribed_topic_is_refused(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        groups.commit("g", 5, topic="bills")
        groups.assemble()
        assert delete(groups, "orders") == "group_subscribed_to_topic"
        assert delete(groups, "bills") == "none"
        assert fetch_all(groups) == {("orders", 0): 5}

    def test_of_a_group_that_is_no_consumer(self) -> None:
        groups = Groups()
        groups.assemble(protocol_type="connect")
        assert delete(groups, "orders") == "non_empty_group"

    def test_of_no_group(self) -> None:
        assert delete(Groups(), "orders") == "group_id_not_found"

    def test_stays_deleted(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        assert delete(groups, "orders") == "none"
        groups.fail_over()
        assert groups.committed("g") is None
        assert not groups.tables.offsets.committed

    def test_a_group_goes_with_its_offsets(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        groups.assemble()
        delete_group = DeleteGroup(group="g")
        assert groups.ask(delete_group) == DeleteGroupReply(ErrorCode.non_empty_group)
        groups.wait(SESSION_MS)
        assert groups.ask(delete_group) == DeleteGroupReply()
        assert groups.ask(delete_group) == DeleteGroupReply(ErrorCode.group_id_not_found)
        assert groups.reloaded().tables == Tables()

    def test_offsets_go_with_their_topic(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        groups.commit("h", 5)
        groups.commit("h", 6, topic="bills")
        again = {**TOPICS, "orders": (TopicId(UUID(int=99)), 1)}
        groups.change_topics(again, deleted=frozenset({"orders"}))
        assert fetch_all(groups) == {}
        assert fetch_all(groups, "h") == {("bills", 0): 6}


class TestExpiry:
    def test_without_a_group_each_commit_has_its_own_time(self) -> None:
        groups = Groups()
        groups.commit("g", 5)
        groups.wait(DAY_MS)
        groups.commit("g", 6, partition=1)
        groups.wait(RETENTION_MS - DAY_MS - 1)
        assert len(fetch_all(groups)) == 2
        groups.wait(groups.config.offsets_retention_check_interval_ms)
        assert fetch_all(groups) == {("orders", 1): 6}
        groups.wait(DAY_MS)
        assert fetch_all(groups) == {}

    def test_of_a_group_that_was_left_the_time_counts_from_then(self) -> None:
        groups = Groups(GroupConfig(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000))
        groups.commit("g", 5)
        member = groups.assemble()[0]
        for _ in range(10):
            groups.wait(9_000)
            assert groups.beat(member) == "none"
        assert groups.committed("g") == 5, "it is subscribed"
        groups.wait(SESSION_MS + 59_000)
        assert groups.committed("g") == 5
        groups.wait(2_000)
        assert groups.committed("g") is None
        assert groups.state() == "Dead"
        assert not groups.reloaded().tables.classic

    def test_topics_that_nobody_subscribes_to_any_more_expire_while_the_group_lives(self) -> None:
        groups = Groups(GroupConfig(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000))
        groups.commit("g", 5, topic="bills")
        groups.commit("g", 5)
        member = groups.assemble()[0]
        for _ in range(10):
            groups.wait(9_000)
            assert groups.beat(member) == "none"
        assert fetch_all(groups) == {("orders", 0): 5}

    def test_not_while_subscriptions_are_unknown(self) -> None:
        groups = Groups(GroupConfig(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000))
        groups.commit("g", 5, topic="bills")
        member = groups.assemble(protocols=(("range", b"?"),))[0]
        for _ in range(10):
            groups.wait(9_000)
            groups.beat(member)
        assert groups.committed("g", "bills") == 5

    def test_a_retention_of_its_own(self) -> None:
        groups = Groups()
        offset = OffsetToCommit(topic="orders", partition=0, offset=5, leader_epoch=3)
        groups.ask(CommitOffsets(group="g", offsets=(offset,), retention_ms=DAY_MS))
        assert groups.reloaded().tables == groups.tables
        groups.fail_over()
        groups.wait(DAY_MS - 1)
        assert groups.committed("g") == 5
        groups.wait(groups.config.offsets_retention_check_interval_ms)
        assert groups.committed("g") is None


class TestTransactions:
    def commit(self, groups: Groups, offset: int, producer_id: int = 7) -> str:
        return groups.commit("g", offset, producer_id=producer_id)

    def test_offsets_count_when_the_transaction_commits(self) -> None:
        groups = Groups()
        groups.commit("g", 1)
        assert self.commit(groups, 5) == "none"
        assert groups.committed("g") == 1
        groups.complete(7, is_committed=True)
        assert groups.committed("g") == 5
        assert groups.reloaded().tables == groups.tables

    def test_and_never_if_it_aborts(self) -> None:
        groups = Groups()
        self.commit(groups, 5)
        groups.complete(7, is_committed=False)
        assert groups.committed("g") is None
        assert groups.reloaded().tables == groups.tables

    def test_a_stable_read_waits(self) -> None:
        groups = Groups()
        groups.commit("g", 1)
        self.commit(groups, 5)
        groups.fail_over()
        assert fetch_all(groups) == {("orders", 0): 1}
        assert fetch_all(groups, require_stable=True) == {("orders", 0): "unstable_offset_commit"}
        groups.complete(7, is_committed=True)
        assert fetch_all(groups, require_stable=True) == {("orders", 0): 5}

    def test_a_later_commit_outside_wins(self) -> None:
        groups = Groups()
        self.commit(groups, 5)
        groups.commit("g", 9)
        groups.complete(7, is_committed=True)
        assert groups.committed("g") == 9

    def test_of_a_member_of_an_old_generation_is_refused(self) -> None:
        groups = Groups()
        member = groups.assemble()[0]
        refused = groups.commit("g", 5, producer_id=7, generation=9, member_id=member.member_id)
        assert refused == "illegal_generation"
        assert groups.commit("h", 5, producer_id=7, generation=9, member_id="m") == "illegal_generation"

    def test_a_deleted_group_does_not_come_back_with_a_transaction(self) -> None:
        groups = Groups()
        self.commit(groups, 5)
        assert groups.ask(DeleteGroup(group="g")) == DeleteGroupReply()
        groups.complete(7, is_committed=True)
        assert groups.tables == Tables() == groups.reloaded().tables

    def test_pending_offsets_keep_their_group(self) -> None:
        groups = Groups(GroupConfig(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=1_000))
        groups.commit("g", 1)
        self.commit(groups, 5)
        groups.wait(10_000)
        assert groups.committed("g") == 1
        groups.complete(7, is_committed=False)
        groups.wait(10_000)
        assert groups.committed("g") is None


def test_subscriptions_of_the_driver_can_be_read() -> None:
    groups = Groups()
    groups.assemble(2, protocols=(("range", subscribe("bills", version=3)),))
    groups.commit("h", 1)
    assert groups.coordinator._shard.classic["g"].subscribed() == frozenset({"bills"})
