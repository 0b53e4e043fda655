"""The consumer protocol (KIP-848): epochs, targets, and partitions with one owner at a time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ottla.machines.groups.config import GroupConfig
from ottla.machines.groups.records import NOTHING
from ottla.machines.groups.replies import DescribeConsumerReply, FetchOffsetsReply
from ottla.machines.groups.requests import DescribeConsumerGroup, FetchOffsets
from ottla.protocol.model.ids import TopicId
from tests.support.groups_driver import REBALANCE_MS, TOPICS, Consumer, Groups

SESSION_MS = 45_000
ORDERS = TOPICS["orders"][0]


def together(groups: Groups, *member_ids: str, **more: Any) -> list[Consumer]:
    """Creates a stable group."""
    consumers = [Consumer(groups, member_id, **more).join() for member_id in member_ids]
    for _ in range(3):
        for consumer in consumers:
            consumer.beat()
    assert state(groups) == "Stable"
    return consumers


def state(groups: Groups) -> str:
    return described(groups).state


def described(groups: Groups) -> DescribeConsumerReply:
    return groups.expect(DescribeConsumerReply, groups.ask(DescribeConsumerGroup(group="g")))


class TestJoin:
    def test_the_first_member_gets_everything(self) -> None:
        consumer = Consumer(Groups(), "m").join()
        assert consumer.epoch == 1
        assert consumer.partitions == [("orders", index) for index in range(4)]

    def test_an_id_is_made_up_for_who_brings_none(self) -> None:
        groups = Groups()
        reply = Consumer(groups, "").ask(
            Consumer(groups, "").request(
                member_epoch=0, rebalance_timeout_ms=1, subscribed_names=("orders",), fresh_id="f"
            )
        )
        assert (reply.error.name, reply.member_id) == ("none", "f")

    def test_a_lost_reply_is_given_again(self) -> None:
        consumer = Consumer(Groups(), "m").join()
        owned, epoch = consumer.owned, consumer.epoch
        consumer.join()
        assert (consumer.owned, consumer.epoch) == (owned, epoch)

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"group": ""}, "invalid_request"),
            ({"instance_id": ""}, "invalid_request"),
            ({"rack_id": ""}, "invalid_request"),
            ({"member_epoch": -3}, "invalid_request"),
            ({"member_epoch": -2}, "invalid_request"),
            ({"member_epoch": 1, "member_id": ""}, "invalid_request"),
            ({"rebalance_timeout_ms": -1}, "invalid_request"),
            ({"owned": None}, "invalid_request"),
            ({"owned": frozenset({(ORDERS, 0)})}, "invalid_request"),
            ({"subscribed_names": ()}, "invalid_request"),
            ({"assignor": "sticky"}, "unsupported_assignor"),
            ({"member_epoch": 1}, "group_id_not_found"),
            ({"member_epoch": -1}, "group_id_not_found"),
        ],
    )
    def test_nonsense_is_refused_and_leaves_nothing(self, wrong: dict[str, Any], error: str) -> None:
        groups = Groups()
        assert Consumer(groups, "m").join(**wrong).error == error
        assert groups.log == []

    def test_no_more_than_the_group_takes(self) -> None:
        groups = Groups(GroupConfig(consumer_size_max=1))
        consumer = Consumer(groups, "m").join()
        assert Consumer(groups, "n").join().error == "group_max_size_reached"
        assert consumer.beat().error == "none"

    def test_topics_that_do_not_exist_yet(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", topics=("later",)).join()
        assert (consumer.error, consumer.partitions) == ("none", [])
        groups.change_topics({**TOPICS, "later": (TopicId(UUID(int=9)), 2)})
        assert consumer.beat().partitions == [("later", 0), ("later", 1)]
        assert consumer.epoch == 2


class TestReconciliation:
    def test_revocation_comes_before_assignment(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        second = Consumer(groups, "n").join()
        assert second.epoch == 2
        assert second.partitions == [], "the first one still has everything"
        before = first.owned
        first.take(first.ask(first.request(owned=None)))
        assert (first.epoch, len(first.owned)) == (1, 2), "it has been told, and keeps its epoch"
        given_up = before - first.owned
        assert second.beat().owned == NOTHING, "it has not confirmed yet"
        first.beat()
        assert first.epoch == 2
        assert second.beat().owned == given_up
        assert state(groups) == "Stable"

    def test_without_its_word_nothing_is_taken(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        second = Consumer(groups, "n").join()
        mine = first.owned
        first.beat()
        for _ in range(3):
            first.ask(first.request(owned=None))
            first.ask(first.request(owned=mine))
            assert second.beat().owned == NOTHING

    def test_who_does_not_own_it_yet_need_not_give_it_up(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        second = Consumer(groups, "n").join()
        first.owned = NOTHING
        assert len(first.beat().owned) == 2
        assert len(second.beat().owned) == 2

    def test_who_takes_too_long_is_out(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        second = Consumer(groups, "n").join()
        mine = first.owned
        first.beat()
        for _ in range(REBALANCE_MS // 10_000):
            assert first.ask(first.request(owned=mine)).error.name == "none"
            assert len(second.beat().owned) == 0
            groups.wait(10_000)
        assert first.beat(owned=mine).error == "unknown_member_id"
        assert len(second.beat().owned) == 4

    def test_a_heartbeat_that_changes_nothing_says_nothing(self) -> None:
        groups = Groups()
        (consumer,) = together(groups, "m")
        written = len(groups.log)
        reply = consumer.ask(consumer.request())
        assert (reply.assignment, reply.heartbeat_interval_ms) == (None, 5_000)
        assert len(groups.log) == written

    def test_a_full_request_gets_a_full_reply(self) -> None:
        (consumer,) = together(Groups(), "m")
        reply = consumer.ask(consumer.request(rebalance_timeout_ms=1, subscribed_names=("orders",)))
        assert reply.assignment == consumer.owned

    def test_a_changed_subscription_is_a_new_epoch(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        epoch = first.epoch
        first.beat(subscribed_names=("bills",))
        first.beat()
        assert {topic for topic, _ in first.partitions} == {"bills"}
        assert len(second.beat().partitions) == 4
        assert first.epoch == second.epoch == epoch + 1

    def test_more_partitions_are_a_new_epoch(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        epoch = first.epoch
        groups.change_topics({**TOPICS, "users": (TOPICS["users"][0], 7)})
        assert first.beat().epoch == epoch, "nobody reads that topic"
        groups.change_topics({**TOPICS, "orders": (ORDERS, 6)})
        assert (len(first.beat().owned), len(second.beat().owned)) == (3, 3)
        assert first.epoch == epoch + 1

    def test_a_deleted_topic_is_taken_away(self) -> None:
        groups = Groups()
        (consumer,) = together(groups, "m", topics=("orders", "bills"))
        names = {name: facts for name, facts in TOPICS.items() if name != "bills"}
        groups.change_topics(names, deleted=frozenset({"bills"}))
        assert {topic_id for topic_id, _ in consumer.beat().owned} == {ORDERS}

    def test_the_assignor_that_most_want(self) -> None:
        groups = Groups(topics={"orders": (ORDERS, 3), "bills": (TOPICS["bills"][0], 3)})
        more = {"assignor": "range"}
        first, second = together(groups, "m", "n", topics=("orders", "bills"), more=more)
        assert described(groups).assignor == "range"
        assert first.partitions == [("bills", 0), ("bills", 1), ("orders", 0), ("orders", 1)]
        assert second.partitions == [("bills", 2), ("orders", 2)]


class TestEpochs:
    def test_an_unknown_member(self) -> None:
        groups = Groups()
        Consumer(groups, "m").join()
        assert Consumer(groups, "n", epoch=1).beat().error == "unknown_member_id"

    @pytest.mark.parametrize("wrong", [-1, 1])
    def test_another_epoch_is_fenced(self, wrong: int) -> None:
        groups = Groups()
        first, _ = together(groups, "m", "n")
        Consumer(groups, "k").join()
        first.beat()
        first.beat()
        first.epoch += wrong * 2
        assert first.beat().error == "fenced_member_epoch"

    def test_a_lost_reply_does_not_fence(self) -> None:
        groups = Groups()
        first, _ = together(groups, "m", "n")
        groups.change_topics({**TOPICS, "orders": (ORDERS, 6)})
        lost = first.ask(first.request())
        assert lost.member_epoch == first.epoch + 1
        assert first.beat(owned=None).error == "fenced_member_epoch", "it does not say what it has"
        first.beat(rebalance_timeout_ms=REBALANCE_MS, subscribed_names=("orders",))
        assert (first.error, first.epoch) == ("none", lost.member_epoch)
        assert first.owned == lost.assignment

    def test_the_fenced_come_back_with_nothing(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        first.epoch = 99
        assert first.beat().error == "fenced_member_epoch"
        assert first.join().error == "none"
        assert first.beat().owned | second.beat().owned == {(ORDERS, index) for index in range(4)}

    def test_offsets_are_committed_in_the_members_epoch(self) -> None:
        groups = Groups()
        (member,) = together(groups, "m")
        assert groups.commit("g", 5, generation=member.epoch, member_id="m") == "none"
        assert groups.commit("g", 6, generation=member.epoch + 1, member_id="m") == "stale_member_epoch"
        assert groups.commit("g", 6, generation=member.epoch, member_id="x") == "unknown_member_id"
        assert groups.commit("g", 6) == "unknown_member_id"
        assert groups.commit("g", 6, generation=member.epoch, member_id="m", knows_epochs=False) == (
            "unsupported_version"
        )
        stale = groups.commit("g", 6, generation=member.epoch + 1, member_id="m", producer_id=7)
        assert stale == "illegal_generation"
        assert groups.committed("g") == 5

    def test_and_fetched_in_it(self) -> None:
        groups = Groups()
        (member,) = together(groups, "m")
        for member_id, epoch, error in (
            ("m", 1, "none"),
            ("m", 2, "stale_member_epoch"),
            ("x", 1, "unknown_member_id"),
        ):
            reply = groups.ask(FetchOffsets(group="g", member_id=member_id, member_epoch=epoch))
            assert groups.expect(FetchOffsetsReply, reply).error.name == error
        assert member.epoch == 1


class TestExpiry:
    def test_only_topics_that_nobody_reads_any_more(self) -> None:
        groups = Groups(GroupConfig(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=1_000))
        (member,) = together(groups, "m")
        for topic in ("orders", "bills"):
            assert groups.commit("g", 5, topic=topic, generation=member.epoch, member_id="m") == "none"
        for _ in range(7):
            groups.wait(10_000)
            member.beat()
        assert (groups.committed("g"), groups.committed("g", "bills")) == (5, None)


class TestLeaving:
    def test_what_a_member_had_goes_to_the_others(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        assert first.leave() == "none"
        assert len(second.beat().owned) == 4
        assert first.beat().error == "unknown_member_id"

    def test_the_last_one_leaves_an_empty_group(self) -> None:
        groups = Groups()
        (member,) = together(groups, "m")
        member.leave()
        assert state(groups) == "Empty"
        assert Consumer(groups, "n").join().epoch == 3

    def test_silence_ends_a_membership(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        groups.wait(SESSION_MS - 1)
        second.beat()
        groups.wait(1)
        assert len(second.beat().owned) == 4
        assert first.beat().error == "unknown_member_id"

    def test_an_empty_group_without_offsets_is_cleaned_up(self) -> None:
        groups = Groups()
        (member,) = together(groups, "m")
        member.leave()
        groups.wait(groups.config.offsets_retention_check_interval_ms)
        assert groups.reloaded().tables.consumer == {}


class TestStaticMembers:
    def test_one_that_is_back_finds_its_partitions(self) -> None:
        groups = Groups()
        first, second = (Consumer(groups, name, instance_id=name).join() for name in "ik")
        for _ in range(3):
            first.beat()
            second.beat()
        mine, epoch = first.owned, first.epoch
        assert first.leave(-2) == "none"
        assert second.beat().owned & mine == NOTHING
        back = Consumer(groups, "m", instance_id="i").join()
        assert (back.owned, back.epoch) == (mine, epoch)
        assert first.beat().error == "fenced_instance_id"

    def test_not_while_its_place_is_taken(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m", instance_id="i").join()
        assert Consumer(groups, "n", instance_id="i").join().error == "unreleased_instance_id"
        assert first.beat().error == "none"

    def test_one_that_stays_away_is_out(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m", instance_id="i").join()
        first.leave(-2)
        second = Consumer(groups, "n").join()
        groups.wait(SESSION_MS - 1)
        assert second.beat().owned == NOTHING
        groups.wait(1)
        assert len(second.beat().owned) == 4

    def test_one_that_leaves_for_good(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m", instance_id="i").join()
        second = Consumer(groups, "n").join()
        assert first.leave(-1) == "none"
        assert len(second.beat().owned) == 4

    def test_strangers(self) -> None:
        groups = Groups()
        Consumer(groups, "m", instance_id="i").join()
        assert Consumer(groups, "m", instance_id="k", epoch=1).beat().error == "unknown_member_id"
        assert Consumer(groups, "n", instance_id="i").leave() == "fenced_instance_id"


class TestRegularExpressions:
    def test_topics_by_their_names(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*", "subscribed_names": ()}).join()
        assert consumer.partitions == []
        groups.resolve({"b.*": ("bills",)})
        assert {topic for topic, _ in consumer.beat().partitions} == {"bills"}
        assert groups.coordinator.regexes() == {"b.*"}
        books = TopicId(UUID(int=9))
        groups.change_topics({**TOPICS, "books": (books, 1)}, regexes={"b.*": ("bills", "books")})
        assert ("books", 0) in consumer.beat().partitions
        groups.fail_over()
        assert ("books", 0) in consumer.beat().partitions

    def test_topics_by_name_do_not_wait_for_those_that_match(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*"}).join()
        assert {topic for topic, _ in consumer.partitions} == {"orders"}
        groups.resolve({"b.*": ("bills",)})
        assert {topic for topic, _ in consumer.beat().partitions} == {"orders", "bills"}

    def test_a_second_member_with_the_same_expression_does_not_wait(self) -> None:
        groups = Groups()
        more = {"subscribed_regex": "b.*", "subscribed_names": ()}
        first = Consumer(groups, "m", more=more).join()
        groups.resolve({"b.*": ("bills",)})
        first.beat()
        epoch = groups.tables.consumer["g"].epoch
        Consumer(groups, "n", more=more).join()
        assert groups.tables.consumer["g"].epoch == epoch + 1
        assert not groups.coordinator.has_unresolved_regexes

    def test_an_expression_that_waits_does_not_disturb_the_others(self) -> None:
        groups = Groups()
        other = Consumer(groups, "m").join()
        epoch = groups.tables.consumer["g"].epoch
        Consumer(groups, "n", more={"subscribed_regex": "u.*", "subscribed_names": ()}).join()
        assert groups.tables.consumer["g"].epoch == epoch
        groups.resolve({"u.*": ()})
        assert groups.tables.consumer["g"].epoch == epoch, "it matches nothing"
        assert {topic for topic, _ in other.beat().partitions} == {"orders"}

    def test_another_expression(self) -> None:
        """Topics that only the old one matches are revoked at once; new ones are assigned when they are resolved."""
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*"}).join()
        groups.resolve({"b.*": ("bills",)})
        assert {topic for topic, _ in consumer.beat().partitions} == {"orders", "bills"}
        epoch = groups.tables.consumer["g"].epoch
        consumer.beat(subscribed_regex="u.*")
        assert {topic for topic, _ in consumer.partitions} == {"orders"}
        assert groups.tables.consumer["g"].epoch == epoch
        groups.resolve({"u.*": ("users",)})
        consumer.beat()
        assert {topic for topic, _ in consumer.beat().partitions} == {"orders", "users"}

    def test_another_expression_for_the_same_topics(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*", "subscribed_names": ()}).join()
        groups.resolve({"b.*": ("bills",)})
        before = consumer.beat().partitions
        consumer.beat(subscribed_regex="bi.*")
        consumer.beat()
        assert consumer.partitions == []
        groups.resolve({"bi.*": ("bills",)})
        consumer.beat()
        assert consumer.beat().partitions == before

    def test_another_expression_while_partitions_are_revoked(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*"}).join()
        groups.resolve({"b.*": ("bills",)})
        consumer.beat()
        consumer.beat(subscribed_names=())
        consumer.beat(subscribed_regex="u.*", owned=None)
        current = groups.tables.consumer["g"].current_of("m")
        assert (len(current.assigned), len(current.revoking)) == (0, 8)
        groups.resolve({"u.*": ("users",)})
        consumer.beat()
        consumer.beat()
        assert {topic for topic, _ in consumer.beat().partitions} == {"users"}

    def test_a_coordinator_that_takes_over_resolves_what_was_not(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*", "subscribed_names": ()}).join()
        groups.fail_over()
        assert groups.coordinator.regexes() == {"b.*"}
        groups.change_topics(TOPICS, regexes={"b.*": ("bills",)})
        assert {topic for topic, _ in consumer.beat().partitions} == {"bills"}

    def test_none_any_more(self) -> None:
        groups = Groups()
        consumer = Consumer(groups, "m", more={"subscribed_regex": "b.*"}).join()
        groups.resolve({"b.*": ("bills",)})
        consumer.beat()
        consumer.beat(subscribed_regex="")
        assert {topic for topic, _ in consumer.beat().partitions} == {"orders"}
        assert groups.coordinator.regexes() == set()

    def test_it_goes_with_its_last_member(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m", more={"subscribed_regex": "b.*", "subscribed_names": ()}).join()
        groups.resolve({"b.*": ("bills",)})
        Consumer(groups, "n").join()
        assert groups.tables.consumer["g"].topics.keys() == {"bills", "orders"}
        first.leave()
        assert groups.coordinator.regexes() == set()
        assert groups.tables.consumer["g"].topics.keys() == {"orders"}


class TestFailover:
    def test_members_go_on(self) -> None:
        groups = Groups()
        first, second = together(groups, "m", "n")
        written = len(groups.log)
        groups.wait(SESSION_MS - 1)
        groups.fail_over()
        groups.wait(SESSION_MS - 1)
        assert (first.beat().error, second.beat().error) == ("none", "none")
        assert len(groups.log) == written

    def test_in_the_middle_of_a_revocation(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        second = Consumer(groups, "n").join()
        mine = first.owned
        first.beat()
        groups.fail_over()
        assert second.beat().owned == NOTHING
        first.beat()
        assert second.beat().owned == mine - first.owned

    def test_its_time_for_that_is_limited_again(self) -> None:
        groups = Groups()
        first = Consumer(groups, "m").join()
        Consumer(groups, "n").join()
        mine = first.owned
        first.beat()
        groups.fail_over()
        for _ in range(REBALANCE_MS // 10_000):
            assert first.ask(first.request(owned=mine)).error.name == "none"
            groups.wait(10_000)
        assert first.beat().error == "unknown_member_id"

    def test_topics_that_changed_meanwhile(self) -> None:
        groups = Groups()
        (first,) = together(groups, "m")
        groups.topics["orders"] = (ORDERS, 5)
        groups.fail_over()
        assert len(first.beat().owned) == 5
