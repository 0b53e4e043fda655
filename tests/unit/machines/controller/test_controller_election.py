"""Elections, one rule of ADR 7 per test.

(safety: one-history, isr-incarnations, lost-incarnation, eligible-replicas)
"""

from __future__ import annotations

import pytest

from ottla.coordination.port import LeaseId
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.broker_requests import start_draining
from ottla.machines.controller.election import View, decide, is_alive
from ottla.machines.controller.rules import RuleBook, TopicRules, may_advance_watermark, rules_of
from ottla.machines.controller.state import FailedLogs, Member, PartitionState, Registration, RetainedSince
from ottla.machines.controller.writes import Write
from ottla.protocol.model.durability import Durability
from tests.support.controller_store import P0, Store, partition

DISK, CACHE, MEMORY = Durability.DISK, Durability.CACHE, Durability.MEMORY


def decided(store: Store, state: PartitionState, rules: TopicRules | None = None, **asked: bool) -> PartitionState:
    view = View(store.image(), P0, rules or TopicRules())
    new = decide(state, view, **asked)
    assert decide(new, view, **asked) == new, "to decide again changes nothing more"
    return new


def drain(store: Store, broker_id: int) -> None:
    write = start_draining(store.image(), broker_id)
    assert isinstance(write, Write)
    store.commit(write)


def cluster(*broker_ids: int) -> Store:
    store = Store()
    for broker_id in broker_ids:
        store.add_broker(broker_id)
    return store


# -- liveness (safety: isr-incarnations, lost-incarnation) -----------------------------------------------------------


def test_a_member_is_alive_if_its_broker_kept_what_it_had_then() -> None:
    registration = Registration(1, 9, "h", 1, "m", RetainedSince(disk=3, cache=7, memory=9))
    assert [epoch for epoch in range(12) if is_alive(Member(1, epoch), registration, DISK)] == [3, 4, 5, 6, 7, 8, 9]
    assert [epoch for epoch in range(12) if is_alive(Member(1, epoch), registration, CACHE)] == [7, 8, 9]
    assert [epoch for epoch in range(12) if is_alive(Member(1, epoch), registration, MEMORY)] == [9]
    assert not is_alive(Member(1, 9), None, DISK)


def test_a_failed_log_is_not_alive() -> None:
    store = cluster(1, 2)
    store.put(keys.failures(1), encoding.encode_failures(FailedLogs(1, partitions=frozenset({P0}))))
    assert decided(store, partition("1 2", "1")) == partition("1 2", "2", isr="2", eligible="1", epoch=1)


# -- elections ------------------------------------------------------------------------------------------------------


def test_nothing_is_due_while_all_are_well() -> None:
    state = partition("1 2 3", "2", epoch=4)
    assert decided(cluster(1, 2, 3), state) == state


def test_the_first_alive_member_in_the_order_of_the_replicas_leads() -> None:
    state = partition("3 1 2", "3", isr="2 1 3", epoch=4)
    assert decided(cluster(1, 2), state) == partition("3 1 2", "1", isr="2 1", epoch=5)


def test_the_dead_leave_the_isr_in_the_same_write() -> None:
    state = partition("1 2 3 4", "1")
    assert decided(cluster(2, 4), state).isr == (Member(2, 1), Member(4, 1))


def test_the_dead_leave_the_isr_of_a_living_leader() -> None:
    """Its epoch stays: nothing changes for the leader except the replicas that it waits for."""
    assert decided(cluster(1, 2), partition("1 2 3", "1", epoch=7)) == partition("1 2 3", "1", isr="1 2", epoch=7)


def test_outside_of_the_isr_nobody_is_elected() -> None:
    state = partition("1 2 3", "1", isr="1", epoch=2)
    assert decided(cluster(2, 3), state, TopicRules(min_insync_replicas=1)) == partition("1 2 3", isr="1", epoch=3)


def test_without_a_leader_the_isr_and_the_eligible_stay() -> None:
    state = partition("1 2 3", "1", isr="1 2", eligible="3", epoch=2)
    assert decided(cluster(), state) == partition("1 2 3", isr="1 2", eligible="3", epoch=3)


def test_whoever_returns_with_everything_leads_again() -> None:
    store = Store()
    store.add_broker(2, epoch=6, kept=1)
    assert decided(store, partition("1 2", isr="1 2:5", epoch=3)) == partition(
        "1 2", "2:6", isr="2:6", eligible="1", epoch=4
    )


def test_whoever_returns_empty_does_not() -> None:
    store = Store()
    store.add_broker(2, epoch=6)
    state = partition("1 2", isr="1 2:5", epoch=3)
    assert decided(store, state) == state


def test_a_leader_of_an_older_incarnation_gets_a_new_epoch() -> None:
    """Even the same broker with all its data: it may have forgotten what it sent (safety: one-history)."""
    store = cluster(2)
    store.add_broker(1, epoch=2, kept=1)
    assert decided(store, partition("1 2", "1:1", epoch=5)) == partition("1 2", "1:2", isr="1:2 2", epoch=6)


def test_a_leader_of_an_older_incarnation_stands_behind_the_first_replica() -> None:
    store = cluster(1)
    store.add_broker(2, epoch=2, kept=1)
    assert decided(store, partition("1 2", "2:1", epoch=5)) == partition("1 2", "1", epoch=6)


def test_a_leader_that_came_back_empty_leads_no_more() -> None:
    store = cluster(2)
    store.add_broker(1, epoch=2)
    assert decided(store, partition("1 2", "1:1", epoch=5)) == partition("1 2", "2", isr="2", epoch=6)


@pytest.mark.parametrize(("durability", "leader"), [(DISK, 1), (CACHE, 2), (MEMORY, 2)])
def test_the_class_says_what_a_restart_keeps(durability: Durability, leader: int) -> None:
    store = cluster(2)
    store.add_broker(1, epoch=2, kept=RetainedSince(disk=1, cache=2, memory=2))
    assert decided(store, partition("1 2", "1:1"), TopicRules(durability)).leader == leader


# -- eligible replicas, KIP-966 (safety: eligible-replicas) ----------------------------------------------------------


def test_who_leaves_an_isr_below_the_minimum_is_eligible() -> None:
    state = partition("1 2 3", "1")
    assert decided(cluster(1), state) == partition("1 2 3", "1", isr="1", eligible="2 3")
    assert decided(cluster(1, 2), state) == partition("1 2 3", "1", isr="1 2")


def test_an_eligible_replica_is_elected_when_nobody_in_sync_is_left() -> None:
    state = partition("1 2 3", "1", isr="1", eligible="2 3", epoch=3)
    assert decided(cluster(3), state) == partition("1 2 3", "3", isr="3", eligible="1 2", epoch=4)


def test_those_in_sync_come_before_the_eligible() -> None:
    state = partition("1 2 3", "2", isr="2 3", eligible="1", epoch=3)
    rules = TopicRules(min_insync_replicas=3)
    assert decided(cluster(1, 3), state, rules) == partition("1 2 3", "3", isr="3", eligible="1 2", epoch=4)


def test_an_eligible_replica_that_came_back_empty_is_not_elected_and_forgotten() -> None:
    store = Store()
    store.add_broker(2, epoch=2)
    state = partition("1 2 3", isr="1", eligible="2 3")
    assert decided(store, state) == state
    store.add_broker(1)
    assert decided(store, state) == partition("1 2 3", "1", isr="1", eligible="3", epoch=1)


def test_a_member_that_came_back_empty_is_not_eligible() -> None:
    store = cluster(1)
    store.add_broker(2, epoch=2)
    assert decided(store, partition("1 2", "1")) == partition("1 2", "1", isr="1")


def test_enough_in_sync_again_clear_the_eligible() -> None:
    """Also when the minimum was lowered: until then the leader's high watermark does not advance."""
    state = partition("1 2 3", "1", isr="1", eligible="2")
    assert decided(cluster(1, 2), state) == state
    assert decided(cluster(1, 2), state, TopicRules(min_insync_replicas=1)) == partition("1 2 3", "1", isr="1")


def test_the_watermark_moves_with_enough_in_sync_and_nobody_eligible() -> None:
    rules = TopicRules(min_insync_replicas=2)
    assert may_advance_watermark(rules, partition("1 2 3", "1", isr="1 2"))
    assert not may_advance_watermark(rules, partition("1 2 3", "1", isr="1"))
    assert not may_advance_watermark(TopicRules(min_insync_replicas=1), partition("1 2 3", "1", isr="1", eligible="2"))


def test_the_minimum_is_a_majority_unless_given_and_never_more_than_there_are() -> None:
    assert [TopicRules().min_insync(partition(text)) for text in ("1", "1 2", "1 2 3", "1 2 3 4 5")] == [1, 2, 2, 3]
    assert TopicRules(min_insync_replicas=4).min_insync(partition("1 2 3")) == 3
    growing = partition("1 2 3", "1", isr="1", adding="2 3")
    assert TopicRules().min_insync(growing) == 1


# -- unclean --------------------------------------------------------------------------------------------------------


def test_an_unclean_election_resets_isr_and_eligible() -> None:
    state = partition("1 2 3", "1", isr="1", eligible="2", epoch=3)
    expected = partition("1 2 3", "3", isr="3", epoch=4)
    assert decided(cluster(3), state, TopicRules(unclean=True)) == expected
    assert decided(cluster(3), state, unclean=True) == expected


def test_even_then_clean_comes_first() -> None:
    state = partition("1 2 3", "1", isr="1", eligible="3", epoch=3)
    assert decided(cluster(2, 3), state, TopicRules(unclean=True)).leader == 3


def test_a_failed_log_leads_not_even_uncleanly() -> None:
    store = cluster(2, 3)
    store.put(keys.failures(2), encoding.encode_failures(FailedLogs(1, all_disk=True)))
    assert decided(store, partition("1 2 3", "1", isr="1"), TopicRules(unclean=True)).leader == 3


def test_a_memory_topic_goes_on_empty_once_every_copy_is_lost() -> None:
    rules = rules_of({"ottla.durability": "memory"})
    state = partition("1 2", "1", isr="1 2")
    store = Store()
    store.add_broker(1, epoch=2)
    waiting = decided(store, state, rules)
    assert not waiting.has_leader, "broker 2 may still have everything"
    store.add_broker(2, epoch=2)
    anew = decided(store, waiting, rules)
    assert anew == partition("1 2", "1:2", isr="1:2", epoch=2, anew_in_epoch=2)
    store.end_lease(LeaseId(1))
    assert decided(store, anew, rules).anew_in_epoch == 2, "whoever leads next must still know"
    assert not decided(store, state, TopicRules(DISK)).has_leader


def test_a_replica_that_fell_behind_begins_anew_when_those_in_sync_have_lost_everything() -> None:
    """It is alive but lacks the end of the log: continuing there would reuse offsets (safety: memory-loss)."""
    store = Store()
    store.add_broker(1)
    store.add_broker(2, epoch=2)
    elected = decided(store, partition("1 2", isr="2", epoch=4), rules_of({"ottla.durability": "memory"}))
    assert elected == partition("1 2", "1", isr="1", epoch=5, anew_in_epoch=5)


def test_an_unclean_election_that_may_pass_over_a_living_copy_keeps_what_is_there() -> None:
    rules = rules_of({"ottla.durability": "memory", "unclean.leader.election.enable": "true"})
    elected = decided(cluster(1), partition("1 2", isr="2", epoch=4), rules)
    assert elected == partition("1 2", "1", isr="1", epoch=5)


def test_a_copy_is_known_to_be_lost_though_its_broker_is_away_again() -> None:
    rules = rules_of({"ottla.durability": "memory"})
    store = Store()
    store.add_broker(2, epoch=2)
    store.end_lease(LeaseId(2))
    store.add_broker(1, epoch=2)
    assert decided(store, partition("1 2", isr="1 2"), rules).leader == 1


def test_a_cache_topic_goes_on_with_what_was_flushed_once_the_pages_of_all_are_lost() -> None:
    """All machines lost power: no replica has more than its disk, and the class promises no more."""
    rules = TopicRules(CACHE)
    state = partition("1 2 3", "1", isr="1 2")
    rebooted = RetainedSince(disk=1, cache=2, memory=2)
    store = Store()
    store.add_broker(2, epoch=2, kept=rebooted)
    store.add_broker(3)
    waiting = decided(store, state, rules)
    assert not waiting.has_leader, "broker 1 may still have everything"
    store.add_broker(1, epoch=2)
    wiped = decided(store, waiting, rules)
    assert wiped == partition("1 2 3", "2:2", isr="2:2", epoch=2), "broker 1 has lost its disk, 3 was not in sync"
    store.add_broker(1, epoch=3, kept=rebooted)
    assert decided(store, waiting, rules).leader == 1


def test_a_cache_topic_whose_disks_are_gone_too_waits_for_somebody_to_say_so() -> None:
    store = Store()
    store.add_broker(1, epoch=2)
    store.add_broker(2, epoch=2)
    state = partition("1 2", isr="1 2")
    assert not decided(store, state, TopicRules(CACHE)).has_leader
    assert decided(store, state, TopicRules(CACHE, unclean=True)).has_leader


# -- draining, preferred --------------------------------------------------------------------------------------------


def test_a_draining_broker_gives_its_leaderships_away() -> None:
    store = cluster(1, 2, 3)
    drain(store, 1)
    assert decided(store, partition("1 2 3", "1", epoch=3)) == partition("1 2 3", "2", isr="1 2 3", epoch=4)


def test_not_to_another_one_that_drains_nor_outside_of_the_isr() -> None:
    store = cluster(1, 2, 3)
    drain(store, 1)
    drain(store, 2)
    state = partition("1 2 3", "1", isr="1 2")
    assert decided(store, state) == state


def test_a_draining_broker_leads_rather_than_nobody() -> None:
    store = cluster(2, 3)
    drain(store, 2)
    assert decided(store, partition("1 2 3", "1", isr="1 2")).leader == 2
    assert decided(store, partition("1 2 3", "1")).leader == 3


def test_the_preferred_leader_is_elected_when_asked() -> None:
    store = cluster(1, 2, 3)
    state = partition("1 2 3", "2", epoch=4)
    assert decided(store, state) == state
    assert decided(store, state, prefer=True) == partition("1 2 3", "1", epoch=5)
    out_of_sync = partition("1 2 3", "2", isr="2 3")
    assert decided(store, out_of_sync, prefer=True) == out_of_sync
    drain(store, 1)
    assert decided(store, state, prefer=True) == state


# -- reassignments (KIP-455) ----------------------------------------------------------------------------------------


def test_a_reassignment_waits_until_all_of_its_target_are_in_sync() -> None:
    store = cluster(1, 2, 3, 4)
    state = partition("2 4 3 1", "1", isr="1 2 3", adding="4", removing="3 1")
    assert decided(store, state) == state


def test_it_ends_with_the_target_and_a_leader_of_it() -> None:
    store = cluster(1, 2, 3, 4)
    state = partition("4 2 3 1", "1", isr="1 2 3 4", adding="4", removing="3 1", epoch=6)
    assert decided(store, state) == partition("4 2", "4", isr="2 4", epoch=7)


def test_whoever_loses_a_replica_gets_a_new_epoch() -> None:
    """So that requests of the removed replica are rejected."""
    store = cluster(1, 2, 3)
    state = partition("1 2 3", "1", removing="3", epoch=6)
    assert decided(store, state) == partition("1 2", "1", epoch=7)


def test_a_dead_replica_of_the_target_is_waited_for() -> None:
    state = partition("1 4 2", "1", isr="1 2 4", adding="4", removing="2")
    assert decided(cluster(1, 2), state) == partition("1 4 2", "1", isr="1 2", adding="4", removing="2")


def test_an_elected_leader_that_is_all_of_the_target_completes_it() -> None:
    rules = TopicRules(min_insync_replicas=2)
    state = partition("2 1", "1", isr="1", eligible="2", removing="1", epoch=1)
    assert decided(cluster(2), state, rules) == partition("2", "2", isr="2", epoch=2)
    state = partition("2 1", "1", isr="1", adding="2", removing="1", epoch=1)
    assert decided(cluster(2), state, unclean=True) == partition("2", "2", isr="2", epoch=2)


# -- configuration --------------------------------------------------------------------------------------------------


def test_rules_come_from_the_topic_then_the_dynamic_defaults_then_the_file() -> None:
    store = Store()
    topic = store.add_topic([partition("1")])
    book = RuleBook({"min.insync.replicas": "3", "unclean.leader.election.enable": "true"})
    assert book.of(store.image(), topic) == TopicRules(DISK, 3, unclean=True)
    store.put(keys.configs("default"), encoding.encode_configs({"min.insync.replicas": "2"}))
    assert book.of(store.image(), topic) == TopicRules(DISK, 2, unclean=True)
    own = store.add_topic(
        [partition("1")], configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
    )
    assert book.of(store.image(), own) == TopicRules(DISK, 1)


def test_a_value_that_is_not_understood_counts_as_the_strictest() -> None:
    rules = rules_of(
        {"ottla.durability": "stone", "min.insync.replicas": "some", "unclean.leader.election.enable": "perhaps"}
    )
    assert rules == TopicRules(MEMORY, None, unclean=False, goes_on_empty=False)
