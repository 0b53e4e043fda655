"""A leader's decisions about the high watermark and the ISR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.machines.replication import LeaderReplication

REGISTERED = {1: 10, 2: 20, 3: 30}
LAG_MS = 1000.0


def leader(
    isr: Mapping[int, int] | None = None,
    *,
    end: int = 100,
    high_watermark: int = 100,
    min_in_sync: int = 2,
    by_fetch: bool = False,
    replicas: tuple[int, ...] = (1, 2, 3),
    acknowledged_end: int | None = None,
) -> LeaderReplication:
    return LeaderReplication(
        1,
        replicas,
        REGISTERED if isr is None else isr,
        min_in_sync=min_in_sync,
        high_watermark=high_watermark,
        end=end,
        acknowledged_end=end if acknowledged_end is None else acknowledged_end,
        lag_max_ms=LAG_MS,
        now_ms=0.0,
        acknowledges_by_fetch=by_fetch,
    )


def catch_up(machine: LeaderReplication, broker_id: int, end: int, now_ms: float = 0.0) -> None:
    machine.on_fetched(broker_id, REGISTERED[broker_id], end, now_ms)
    machine.on_acknowledged(broker_id, REGISTERED[broker_id], end, now_ms)


# -- high watermark --------------------------------------------------------------------------------------------------


def test_it_is_the_least_acknowledged_end_of_everybody_in_sync() -> None:
    machine = leader()
    assert not machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 100
    catch_up(machine, 3, 105)
    assert machine.high_watermark == 105
    catch_up(machine, 3, 110)
    assert machine.high_watermark == 110


def test_a_fetch_ahead_of_its_sync_does_not_count_for_disk() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    assert not machine.on_fetched(2, 20, 110, 0.0)
    assert machine.on_acknowledged(2, 20, 110, 0.0)
    assert machine.high_watermark == 110


def test_a_fetch_brings_the_synced_end_along() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    assert machine.on_fetched(2, 20, 110, 0.0, acknowledged_end=105)
    assert machine.high_watermark == 105


def test_the_synced_end_of_a_fetch_counts_no_further_than_its_offset_nor_behind_a_later_report() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    machine.on_fetched(2, 20, 104, 0.0, acknowledged_end=110)
    assert machine.high_watermark == 104
    machine.on_fetched(2, 20, 110, 0.0, acknowledged_end=104)
    machine.on_acknowledged(2, 20, 108, 0.0)
    # The leader evaluates the waiting fetch once more, with the same report.
    machine.on_fetched(2, 20, 110, 0.0, acknowledged_end=104)
    follower = machine.follower(2)
    assert follower is not None
    assert follower.acknowledged_end == 108


def test_a_fetch_counts_by_itself_where_the_class_says_so() -> None:
    machine = leader({1: 10, 2: 20}, by_fetch=True)
    machine.on_own_progress(110, 110)
    assert machine.on_fetched(2, 20, 107, 0.0)
    assert machine.high_watermark == 107


def test_the_leaders_own_sync_counts_too() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 100)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 100
    assert machine.on_own_progress(110, 108)
    assert machine.high_watermark == 108


def test_a_report_counts_no_further_than_the_fetch_offset() -> None:
    """Records beyond it may be of another history, which the next fetch would detect."""
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    machine.on_fetched(2, 20, 104, 0.0)
    machine.on_acknowledged(2, 20, 110, 0.0)
    assert machine.high_watermark == 104


def test_a_report_before_any_fetch_does_not_count() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    assert not machine.on_acknowledged(2, 20, 110, 0.0)


def test_reports_of_another_incarnation_do_not_count() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    machine.on_fetched(2, 20, 110, 0.0)
    assert not machine.on_acknowledged(2, 19, 110, 0.0)
    assert not machine.on_acknowledged(2, 21, 110, 0.0)
    assert not machine.on_fetched(2, 19, 110, 0.0)


def test_a_new_incarnation_begins_with_nothing() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    machine.on_fetched(2, 20, 110, 0.0)
    machine.on_fetched(2, 21, 0, 0.0)
    machine.on_acknowledged(2, 20, 110, 0.0)
    assert machine.high_watermark == 100


def test_it_never_goes_back() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110)
    machine.on_fetched(2, 20, 50, 0.0)
    assert machine.high_watermark == 110
    machine.on_own_progress(120, 120)
    assert machine.high_watermark == 110


def test_strangers_do_not_count() -> None:
    machine = leader({1: 10, 2: 20}, replicas=(1, 2))
    machine.on_own_progress(110, 110)
    assert not machine.on_fetched(3, 30, 110, 0.0)
    assert machine.follower(3) is None


def test_it_stands_still_below_min_insync_replicas() -> None:
    """Otherwise the last remaining replica would decide alone what is committed (safety: eligible-replicas)."""
    machine = leader({1: 10})
    assert not machine.has_enough_in_sync
    assert not machine.on_own_progress(110, 110)
    assert machine.on_min_in_sync(1)
    assert machine.high_watermark == 110


def test_it_stands_still_while_others_are_eligible() -> None:
    machine = leader({1: 10, 2: 20})
    machine.on_isr_stored({1: 10, 2: 20}, has_eligible=True)
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 100
    assert machine.on_isr_stored({1: 10, 2: 20})
    assert machine.high_watermark == 110


def test_one_replica_is_enough_where_there_is_only_one() -> None:
    machine = leader({1: 10}, replicas=(1,))
    assert machine.has_enough_in_sync
    assert machine.on_own_progress(110, 110)


# -- the ISR ---------------------------------------------------------------------------------------------------------


def test_a_follower_that_falls_behind_leaves() -> None:
    machine = leader()
    catch_up(machine, 2, 100)
    catch_up(machine, 3, 100)
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110, 900.0)
    assert machine.next_isr(REGISTERED, 1000.0) is None
    assert machine.next_isr(REGISTERED, 1001.0) == {1: 10, 2: 20}


def test_a_follower_that_only_fetches_but_does_not_sync_leaves() -> None:
    """The lag is measured on the synced end (safety: synced-ends)."""
    machine = leader({1: 10, 2: 20})
    machine.on_own_progress(110, 110)
    for now_ms in range(0, 1200, 100):
        machine.on_fetched(2, 20, 110, float(now_ms))
    assert machine.next_isr(REGISTERED, 1200.0) == {1: 10}


def test_a_follower_in_a_steady_stream_stays() -> None:
    """It never has quite everything, but always the end as of its previous fetch."""
    machine = leader({1: 10, 2: 20})
    end = 100
    for now_ms in range(0, 5000, 100):
        machine.on_fetched(2, 20, end, float(now_ms))
        end += 10
        machine.on_own_progress(end, end)
        machine.on_acknowledged(2, 20, end - 10, float(now_ms + 50))
        assert machine.next_isr(REGISTERED, float(now_ms + 60)) is None


def test_an_idle_follower_that_has_everything_stays() -> None:
    machine = leader({1: 10, 2: 20})
    catch_up(machine, 2, 100)
    assert machine.next_isr(REGISTERED, 1e9) is None


def test_a_shrink_counts_only_when_it_is_confirmed() -> None:
    machine = leader()
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110, 1500.0)
    wanted = machine.next_isr(REGISTERED, 2000.0)
    assert wanted == {1: 10, 2: 20}
    machine.on_isr_sent(wanted)
    assert machine.high_watermark == 100
    assert machine.next_isr(REGISTERED, 2000.0) is None, "one at a time"
    assert machine.on_isr_stored(wanted)
    assert machine.high_watermark == 110


def test_an_expansion_counts_from_when_it_is_sent() -> None:
    machine = leader({1: 10, 2: 20})
    catch_up(machine, 2, 100)
    catch_up(machine, 3, 100)
    wanted = machine.next_isr(REGISTERED, 0.0)
    assert wanted == REGISTERED
    machine.on_isr_sent(wanted)
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 100, "the third may be in the ISR already"
    catch_up(machine, 3, 104)
    assert machine.high_watermark == 104


def test_an_unknown_outcome_keeps_the_larger_set() -> None:
    machine = leader()
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110, 1500.0)
    machine.on_isr_sent({1: 10, 2: 20})
    catch_up(machine, 2, 110, 1600.0)
    assert machine.high_watermark == 100
    machine.on_isr_stored({1: 10, 2: 20, 3: 30})
    assert machine.high_watermark == 100


def test_a_refused_change_leaves_what_is_stored() -> None:
    machine = leader({1: 10, 2: 20})
    catch_up(machine, 2, 100)
    machine.on_isr_sent(REGISTERED)
    machine.on_own_progress(110, 110)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 100
    assert machine.on_isr_refused()
    assert machine.high_watermark == 110


def test_who_lacks_the_epochs_start_does_not_join() -> None:
    """The high watermark may be far below the epoch's first offset: a member without those records would lose them."""
    machine = leader({1: 10, 2: 20}, end=100, high_watermark=50)
    catch_up(machine, 3, 60)
    assert machine.next_isr(REGISTERED, 0.0) is None
    catch_up(machine, 3, 100)
    assert machine.next_isr(REGISTERED, 0.0) == REGISTERED


def test_an_incarnation_that_is_not_registered_does_not_join() -> None:
    machine = leader({1: 10, 2: 20})
    catch_up(machine, 2, 100)
    catch_up(machine, 3, 100)
    assert machine.next_isr({1: 10, 2: 20, 3: 31}, 0.0) is None
    assert machine.next_isr({1: 10, 2: 20}, 0.0) is None


def test_a_member_that_came_back_as_another_incarnation_has_to_join_again() -> None:
    machine = leader({1: 10, 2: 20})
    registered = {1: 10, 2: 21}
    machine.on_own_progress(110, 110)
    machine.on_fetched(2, 21, 40, 0.0)
    assert machine.next_isr(registered, 0.0) == {1: 10}
    machine.on_fetched(2, 21, 110, 10.0)
    machine.on_acknowledged(2, 21, 110, 10.0)
    assert machine.next_isr(registered, 10.0) == {1: 10, 2: 21}


def test_who_is_no_replica_any_more_is_forgotten() -> None:
    machine = leader()
    catch_up(machine, 3, 100)
    machine.on_replicas((1, 2))
    assert machine.follower(3) is None
    assert machine.next_isr(REGISTERED, 0.0) == {1: 10, 2: 20}


# -- a leader whose own log is not synced to its end -----------------------------------------------------------------


def test_an_unsynced_end_at_the_election_is_not_acknowledged() -> None:
    machine = leader({1: 10, 2: 20}, end=110, acknowledged_end=104)
    catch_up(machine, 2, 110)
    assert machine.high_watermark == 104
    assert machine.on_own_progress(110, 110)
    assert machine.high_watermark == 110


def test_an_unsynced_end_at_the_election_is_part_of_the_log() -> None:
    assert leader({1: 10}, end=110, acknowledged_end=104).least_end_needed() == 110


def test_a_report_before_the_first_fetch_changes_nothing() -> None:
    """It may describe another history (safety: synced-ends)."""
    machine = leader({1: 10, 2: 20})
    follower = machine.follower(2)
    assert follower is not None
    before = replace(follower)
    assert not machine.on_acknowledged(2, 20, 110, 500.0)
    assert machine.follower(2) == before


def test_an_epoch_starts_at_the_end_of_the_log_and_not_at_its_synced_end() -> None:
    machine = leader({1: 10}, end=110, acknowledged_end=104, min_in_sync=1)
    assert machine.epoch_start == 110
    catch_up(machine, 2, 109)
    assert machine.next_isr(REGISTERED, 0.0) is None, "it lacks a record from before the epoch"
    catch_up(machine, 2, 110)
    assert machine.next_isr(REGISTERED, 0.0) == {1: 10, 2: 20}


def test_a_follower_lags_behind_the_end_and_not_behind_the_synced_end() -> None:
    machine = leader({1: 10, 2: 20})
    catch_up(machine, 2, 100)
    machine.on_own_progress(110, 104)
    catch_up(machine, 2, 104)
    assert machine.next_isr(REGISTERED, LAG_MS) is None
    assert machine.next_isr(REGISTERED, LAG_MS + 1) == {1: 10}


def test_no_more_in_sync_than_there_are_replicas_can_be_demanded() -> None:
    machine = leader({1: 10, 2: 20}, min_in_sync=3, replicas=(1, 2))
    assert machine.has_enough_in_sync
    machine.on_isr_stored({1: 10})
    assert not machine.has_enough_in_sync
