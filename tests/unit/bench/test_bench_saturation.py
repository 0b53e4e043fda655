"""The saturation benchmark: its plan, its figures and its checks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.bench.results import Row
from ottla.bench.saturation.in_sync import shrinks_between
from ottla.bench.saturation.plan import BURST, PEAK, Configuration, Load, chosen, configurations
from ottla.bench.saturation.probe import Pace, ProbeResult
from ottla.bench.saturation.producers import Offer, OfferResult, offer_records, producer_settings, queue_settings
from ottla.bench.saturation.rendezvous import Rendezvous
from ottla.bench.saturation.summary import SaturationResult, checks_of, figures_of, rows_of

ONE = Configuration("1 KB", 1000, 1, True, (Load(PEAK), Load("3x", 3.0)))


def measured(load: Load, offered: OfferResult, *, written: int | None = None, shrinks: int = 0) -> SaturationResult:
    return SaturationResult(ONE, load, 2.0, [offered], written, shrinks, ProbeResult())


def test_all_sizes_partitions_and_kinds_of_producers_are_planned_once() -> None:
    found = configurations()
    assert len({each.name for each in found}) == len(found) == 4 * 3 * 2 + 1
    assert all(each.loads[0].name == PEAK for each in found), "other loads are multiples of the peak"
    assert [load.factor for load in found[0].loads[1:]] == [0.5, 1.0, 1.5, 2.0, 3.0]
    assert [each.name for each in found if each.is_burst] == ["500 KB, 1 partition, not idempotent"]


def test_the_quick_plan_is_a_part_of_the_whole_one() -> None:
    rows = {(each.name, load) for each in configurations() for load in each.loads}
    quick = {(each.name, load) for each in configurations(quick=True) for load in each.loads}
    assert quick < rows
    assert any(load.name == BURST for _, load in quick)


def test_only_keeps_the_rows_that_match_and_their_peak() -> None:
    (kept,) = chosen(configurations(), "burst")
    assert [load.name for load in kept.loads] == [PEAK, BURST]
    (kept,) = chosen(configurations(), "^10 KB, 100 partitions, idempotent, 2x")
    assert [load.name for load in kept.loads] == [PEAK, "2x"]
    with pytest.raises(ValueError, match="--list prints the names"):
        chosen(configurations(), "nothing")
    with pytest.raises(ValueError, match="not a regular expression"):
        chosen(configurations(), "(")


def test_goodput_counts_only_what_was_acknowledged_in_the_measured_time() -> None:
    offered = OfferResult(1, 9000, 1000, acknowledged_in_time=4000, acknowledged=7900, failed=60, unresolved=40)
    figures = figures_of(measured(Load("3x", 3.0), offered, written=8001))
    assert figures["records_per_s"] == 2000
    assert figures["mb_per_s"] == 2.0
    assert figures["offered_records_per_s"] == 4500
    assert figures["shed"] == 1000
    assert figures["failed"] == 100, "a record that is never resolved has failed"
    assert (figures["duplicates"], figures["lost"]) == (100, 0)


def test_fewer_records_than_acknowledged_are_a_loss() -> None:
    figures = figures_of(measured(Load(PEAK), OfferResult(acknowledged=10), written=8))
    assert (figures["duplicates"], figures["lost"]) == (0, 2)


def test_a_row_without_time_has_no_rate() -> None:
    row = SaturationResult(ONE, Load(PEAK), 0.0, [OfferResult(acknowledged=5)], 5, 0, ProbeResult())
    assert figures_of(row)["records_per_s"] == 0
    assert rows_of([row], "disk")[0].figures["share_of_peak"] == 0


def test_offsets_that_could_not_be_read_are_not_zero() -> None:
    assert "duplicates" not in figures_of(measured(Load(PEAK), OfferResult(), written=None))


def test_shares_are_of_the_highest_goodput_and_of_what_could_be_acknowledged() -> None:
    rows = rows_of(
        [
            measured(Load(PEAK), OfferResult(offered=2000, acknowledged=2000)),
            measured(Load("0.5x", 0.5), OfferResult(offered=1000, acknowledged_in_time=1000)),
            measured(Load("3x", 3.0), OfferResult(offered=6000, acknowledged_in_time=1000)),
        ],
        "disk",
    )
    assert [row.figures["share_of_peak"] for row in rows] == [1.0, 0.5, 0.5]
    assert [row.figures["share_of_expected"] for row in rows] == [1.0, 1.0, 0.5]
    assert rows[2].name == "saturation 1 KB, 1 partition, idempotent, 3x disk"


def row(case: str, **figures: float) -> Row:
    zeros = dict.fromkeys(("isr_shrinks", "failed", "lost", "ended_brokers"), 0.0)
    good = {"share_of_expected": 1.0, "probe_max_ms": 9.0, "produce_max_ms": 9.0}
    return Row("saturation", case, "disk", {**zeros, **good, **figures})


def test_a_good_run_keeps_every_check() -> None:
    assert all(check.is_kept for check in checks_of([row("a"), row("b", share_of_expected=0.8, probe_max_ms=250)]))
    assert checks_of([]) == []


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("share_of_expected", 0.79),
        ("isr_shrinks", 1),
        ("probe_max_ms", 251),
        ("produce_max_ms", 251),
        ("failed", 1),
        ("lost", 1),
        ("ended_brokers", 1),
    ],
)
def test_one_bad_row_breaks_its_check_and_is_named(figure: str, value: float) -> None:
    broken = [check for check in checks_of([row("good"), row("bad", **{figure: value})]) if not check.is_kept]
    assert len(broken) == 1
    assert broken[0].worst.endswith(": bad")
    assert (broken[0].broken, broken[0].rows) == (1, 2)


def test_a_stall_counts_for_all_requests_that_were_due_meanwhile() -> None:
    pace = Pace(10.0, 0.005)
    assert pace.replied(10.0, 10.0225) == pytest.approx([0.0225, 0.0175, 0.0125, 0.0075, 0.0025])
    assert pace.due == pytest.approx(10.0225)


def test_replies_that_take_a_little_too_long_do_not_add_up() -> None:
    pace, now = Pace(10.0, 0.005), 10.0
    for _ in range(100):
        latencies = pace.replied(now, now + 0.006)
        assert max(latencies) == pytest.approx(0.006)
        now = pace.due


def test_a_probe_that_wakes_up_late_does_not_blame_the_broker() -> None:
    pace = Pace(10.0, 0.005)
    assert pace.late_s(10.01) == pytest.approx(0.01)
    assert pace.replied(10.01, 10.011) == pytest.approx([0.001])


def test_only_a_replica_that_leaves_is_a_shrink() -> None:
    before = {("t", 0): frozenset({1, 2, 3}), ("t", 1): frozenset({1, 2})}
    after = {("t", 0): frozenset({1, 2}), ("t", 1): frozenset({1, 2, 3}), ("t", 2): frozenset({1})}
    assert shrinks_between(before, after) == 1
    assert shrinks_between(after, after) == 0


def test_settings_of_a_row_replace_the_common_ones() -> None:
    settings = {**queue_settings(8 << 20), "message.timeout.ms": 1}
    offer = Offer("a:1", "t", 1024, True, 1.0, settings=settings)
    found = producer_settings(offer)
    assert (found["acks"], found["enable.idempotence"], found["message.timeout.ms"]) == ("all", True, 1)
    assert found["queue.buffering.max.kbytes"] == 8 << 10


MOCK = {"test.mock.num.brokers": 1}
"""librdkafka starts a mock broker inside the client."""


def test_a_generator_offers_its_rate_and_accounts_for_each_record() -> None:
    offer = Offer("", "t", 100, True, 0.3, rate=5000, settings=MOCK)
    found = offer_records(offer)
    assert found.offered == 1500
    assert found.acknowledged + found.shed == 1500
    assert found.acknowledged_in_time <= found.acknowledged
    assert (found.failed, found.unresolved) == (0, 0)


def test_a_record_that_finds_the_queue_full_is_shed_and_never_sent() -> None:
    settings = {**MOCK, "queue.buffering.max.messages": 10, "linger.ms": 1000}
    found = offer_records(Offer("", "t", 100, False, 0.2, rate=1000, settings=settings))
    assert found.offered == 200, "the offered load does not follow what is accepted"
    assert found.shed > 0
    assert found.acknowledged == 200 - found.shed


def test_a_burst_hands_over_its_records_and_waits_for_all() -> None:
    offer = Offer("", "t", 1000, False, 0.0, records_max=60, settings=MOCK)
    found = offer_records(offer)
    assert (found.offered, found.acknowledged, found.shed) == (60, 60, 0)


def test_processes_that_meet_get_the_same_start(tmp_path: Path) -> None:
    meeting = Rendezvous(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        arrivals = [threads.submit(meeting.arrive, name) for name in ("a", "b")]
        meeting.begin(2, lambda: False)
        assert len({arrival.result() for arrival in arrivals}) == 1


def test_a_process_that_failed_does_not_hold_up_the_others(tmp_path: Path) -> None:
    meeting = Rendezvous(tmp_path)
    meeting.begin(2, lambda: True)
    assert meeting.arrive("a") > 0
    assert not meeting.has_ended
    meeting.end()
    assert meeting.has_ended
