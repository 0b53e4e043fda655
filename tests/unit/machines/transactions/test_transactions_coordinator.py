"""The transaction coordinator beyond its scenarios (tests/scenarios/transactions): requests, reports, deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.machines.coordinators import Instant
from ottla.machines.transactions import encoding
from ottla.machines.transactions.config import TransactionConfig
from ottla.machines.transactions.coordinator import TransactionCoordinator
from ottla.machines.transactions.effects import WriteMarkers
from ottla.machines.transactions.listing import EXPIRED_PER_STEP
from ottla.machines.transactions.records import (
    EPOCH_MAX,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)
from ottla.machines.transactions.replies import (
    AddPartitionsReply,
    DescribeTransactionReply,
    EndTransactionReply,
    InitProducerReply,
)
from ottla.machines.transactions.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducer,
)
from ottla.machines.transactions.timers import TimerKind, TimerName, Timers
from ottla.protocol.model.errors import ErrorCode
from tests.support.transactions_driver import WALL_MS, Coordinated, partitions

ONE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def init(world: Coordinated, name: str = "a", timeout_ms: int = 60_000) -> InitProducerReply:
    return world.ask(InitProducerReply, InitProducer(transactional_id=name, timeout_ms=timeout_ms))


def add(world: Coordinated, producer: InitProducerReply, to: str, name: str = "a", version: int = 2) -> set[str]:
    request = AddPartitions(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        partitions=partitions(to),
        transaction_version=version,
    )
    return {error.name for _, error in world.ask(AddPartitionsReply, request).errors}


def end(world: Coordinated, producer: InitProducerReply, *, is_commit: bool = True, name: str = "a") -> str:
    request = EndTransaction(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        is_commit=is_commit,
        transaction_version=2,
    )
    return world.ask(EndTransactionReply, request).error.name


def prepared(to: str = "t-0,t-1") -> tuple[Coordinated, WriteMarkers]:
    world = Coordinated()
    producer = init(world)
    assert add(world, producer, to) == {"none"}
    assert end(world, producer) == "none"
    return world, world.markers.pop()


# -- requests --------------------------------------------------------------------------------------------------------


def test_a_transactional_id_without_a_name_is_no_request() -> None:
    world = Coordinated()
    nobody = InitProducerReply(ErrorCode.none, 1, 0)
    assert init(world, "").error.name == "invalid_request"
    assert add(world, nobody, "t-0", name="") == {"invalid_request"}
    assert end(world, nobody, name="") == "invalid_request"
    request = DescribeTransaction(transactional_id="")
    assert world.ask(DescribeTransactionReply, request).error.name == "invalid_request"
    assert not world.log


def test_a_transactional_id_that_nobody_knows_has_no_producer() -> None:
    world = Coordinated()
    stranger = InitProducerReply(ErrorCode.none, 1, 0)
    assert add(world, stranger, "t-0") == {"invalid_producer_id_mapping"}
    assert end(world, stranger) == "invalid_producer_id_mapping"
    producer = init(world)
    assert add(world, producer._replace(producer_id=77), "t-0") == {"invalid_producer_id_mapping"}
    assert end(world, producer._replace(producer_id=77)) == "invalid_producer_id_mapping"
    assert add(world, producer._replace(producer_epoch=1), "t-0") == {"producer_fenced"}, "not even from the future"


def test_each_partition_is_verified_by_itself() -> None:
    world = Coordinated()
    producer = init(world)
    add(world, producer, "t-0")
    request = AddPartitions(
        transactional_id="a",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        partitions=frozenset({ONE, OTHER}),
        verify_only=True,
    )
    before = len(world.log)
    assert world.ask(AddPartitionsReply, request).errors == (
        (ONE, ErrorCode.none),
        (OTHER, ErrorCode.transaction_abortable),
    )
    assert world.transaction().partitions == {ONE}
    assert len(world.log) == before, "to verify changes nothing"


def test_reads_and_refusals_append_nothing() -> None:
    world = Coordinated()
    producer = init(world)
    before = len(world.log)
    world.ask(DescribeTransactionReply, DescribeTransaction(transactional_id="a"))
    end(world, producer)
    add(world, producer._replace(producer_epoch=9), "t-0")
    add(world, producer, "")
    assert len(world.log) == before


def test_a_new_producer_may_change_the_timeout() -> None:
    world = Coordinated()
    init(world)
    init(world, timeout_ms=5_000)
    assert world.transaction().timeout_ms == 5_000


def test_an_end_without_partitions_is_decided_and_complete_in_one_step() -> None:
    """Both records are one batch: no marker is needed."""
    world = Coordinated()
    producer = init(world)
    before = len(world.log)
    assert end(world, producer, is_commit=False) == "none"
    assert len(world.log) == before + 2
    assert not world.markers
    assert world.transaction().state is TransactionState.COMPLETE_ABORT
    assert world.transaction().started_ms == WALL_MS


# -- markers ---------------------------------------------------------------------------------------------------------


def test_what_a_marker_says() -> None:
    world, effect = prepared()
    assert effect == WriteMarkers("a", 1000, 1, 1, True, 2, frozenset({ONE, OTHER}))
    world.report(effect)
    assert world.transaction().state is TransactionState.COMPLETE_COMMIT


def test_a_marker_of_an_older_client_has_the_epoch_of_its_records() -> None:
    world = Coordinated()
    producer = init(world)
    add(world, producer, "t-0", version=0)
    request = EndTransaction(
        transactional_id="a", producer_id=producer.producer_id, producer_epoch=0, is_commit=False, transaction_version=1
    )
    assert world.ask(EndTransactionReply, request).error.name == "none"
    assert world.markers == [WriteMarkers("a", 1000, 0, 1, False, 1, frozenset({ONE}))]


def test_partitions_may_report_one_by_one() -> None:
    world, effect = prepared()
    world.report(effect, of=[ONE])
    assert world.transaction().state is TransactionState.PREPARE_COMMIT
    world.report(effect, of=[ONE])
    world.report(effect, of=[OTHER])
    assert world.transaction().state is TransactionState.COMPLETE_COMMIT


def test_a_report_of_a_transaction_that_is_over_changes_nothing() -> None:
    world, effect = prepared()
    world.report(effect)
    before = list(world.log)
    world.report(effect)
    world.report(effect._replace(transactional_id="nobody"))
    producer = InitProducerReply(ErrorCode.none, effect.producer_id, effect.producer_epoch)
    add(world, producer, "t-0,t-1")
    end(world, producer, is_commit=False)
    world.report(effect)
    assert world.transaction().state is TransactionState.PREPARE_ABORT
    assert len(world.log) == len(before) + 2


@pytest.mark.parametrize("error", ["invalid_producer_epoch", "unsupported_for_message_format"])
def test_errors_that_leave_nothing_to_mark(error: str) -> None:
    world, effect = prepared()
    world.report(effect, ErrorCode[error])
    assert world.transaction().state is TransactionState.COMPLETE_COMMIT
    assert world.coordinator.refused_markers == {ErrorCode[error]: 2}


@pytest.mark.parametrize(
    "error",
    ["unknown_topic_or_partition", "not_leader_or_follower", "transaction_coordinator_fenced", "unknown_server_error"],
)
def test_whatever_else_fails_is_tried_again(error: str) -> None:
    world, effect = prepared()
    world.report(effect, ErrorCode[error], of=[ONE])
    world.report(effect, of=[OTHER])
    world.wait(10_000)
    assert world.markers == [effect._replace(partitions=frozenset({ONE}))]
    assert world.transaction().state is TransactionState.PREPARE_COMMIT


def test_retries_wait_longer_each_time_and_never_end() -> None:
    world, effect = prepared("t-0")
    waited = []
    for _ in range(12):
        world.report(effect, ErrorCode.not_leader_or_follower)
        assert world.deadline_ms is not None
        waited.append(world.deadline_ms - world.elapsed_ms)
        world.wait(waited[-1])
        effect = world.markers.pop()
    assert waited[:4] == [20, 40, 80, 160]
    assert waited[-3:] == [5_000] * 3


def test_what_is_on_its_way_is_not_sent_twice() -> None:
    world, effect = prepared()
    world.report(effect, ErrorCode.not_leader_or_follower, of=[ONE])
    world.wait(60_000)
    assert [each.partitions for each in world.markers] == [{ONE}]


def test_a_coordinator_that_takes_over_sends_all_markers_with_its_epoch() -> None:
    world, effect = prepared()
    world.report(effect, of=[ONE])
    world.fail_over()
    assert world.markers == [effect._replace(coordinator_epoch=2)]


# -- deadlines, loading ----------------------------------------------------------------------------------------------


def loaded(value: Transaction, elapsed_ms: int = 0, wall_ms: int = WALL_MS) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(TransactionConfig())
    coordinator.replay(*encoding.encode(TransactionRecord("a", value)))
    coordinator.loaded(1, Instant(elapsed_ms, wall_ms))
    return coordinator


ONGOING = Transaction(
    producer_id=1,
    producer_epoch=0,
    timeout_ms=10_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({ONE}),
    updated_ms=WALL_MS,
    started_ms=WALL_MS,
)


@pytest.mark.parametrize(
    ("wall_ms", "deadline_ms"),
    [(WALL_MS + 4_000, 6_100), (WALL_MS + 10_000, 100), (WALL_MS + 10**9, 100), (WALL_MS - 10**9, 10_100)],
    ids=["some is left", "it is over", "long ago", "the wall clock went back"],
)
def test_the_time_that_is_left_after_a_takeover(wall_ms: int, deadline_ms: int) -> None:
    coordinator = loaded(ONGOING, 100, wall_ms)
    assert coordinator.tick(Instant(deadline_ms - 1, wall_ms)).effects == ()
    assert coordinator.tick(Instant(deadline_ms, wall_ms)).effects != ()


def test_a_transaction_that_ended_leaves_no_deadline_behind() -> None:
    world, effect = prepared()
    world.report(effect)
    assert len(world.coordinator._shard.timers) == 1, "only the look for expired ids"


def test_a_log_of_kafka_does_not_say_whose_answer_was_lost() -> None:
    """A retry across a migration from Kafka is rejected. The client gets a new epoch; fenced producers stay fenced."""
    done = replace(ONGOING, state=TransactionState.COMPLETE_COMMIT, partitions=frozenset(), producer_epoch=1)
    coordinator = loaded(replace(done, client_version=2, previous_producer_id=1))
    request = EndTransaction(
        transactional_id="a", producer_id=1, producer_epoch=0, is_commit=True, transaction_version=2
    )
    (answer,) = coordinator.handle(1, request, Instant(0, WALL_MS)).answers
    assert answer.reply == EndTransactionReply(ErrorCode.producer_fenced)


def test_an_epoch_that_cannot_be_raised_is_aborted_all_the_same() -> None:
    coordinator = loaded(replace(ONGOING, producer_epoch=EPOCH_MAX), wall_ms=WALL_MS + 20_000)
    (effect,) = coordinator.tick(Instant(0, WALL_MS + 20_000)).effects
    assert isinstance(effect, WriteMarkers)
    assert (effect.producer_epoch, effect.transaction_version, effect.is_commit) == (EPOCH_MAX, 0, False)


def test_expired_ids_go_in_batches() -> None:
    coordinator = TransactionCoordinator(TransactionConfig(id_expiration_ms=1_000))
    idle = replace(ONGOING, state=TransactionState.EMPTY, partitions=frozenset(), started_ms=-1)
    for number in range(EXPIRED_PER_STEP + 3):
        coordinator.replay(*encoding.encode(TransactionRecord(f"id-{number}", idle)))
    coordinator.loaded(1, Instant(0, WALL_MS))
    later = Instant(3_600_000, WALL_MS + 3_600_000)
    first = coordinator.tick(later)
    assert (len(first.records), first.deadline_ms) == (EXPIRED_PER_STEP, later.elapsed_ms)
    assert len(coordinator.tick(later).records) == 3
    assert coordinator.tables == {}


def test_a_ticket_that_waits_is_counted() -> None:
    world = Coordinated()
    world.has_producer_ids = False
    world.send(InitProducer(transactional_id="a", timeout_ms=1))
    assert world.coordinator.waiting == 1
    world.allocate()
    assert world.coordinator.waiting == 0


def test_a_producer_id_that_nobody_needs_any_more_is_not_given_to_the_next() -> None:
    world = Coordinated()
    world._take(world.coordinator.producer_id_allocated("a", 5, world.now))
    assert init(world).producer_id == 1000


def test_deadlines_that_moved_or_ended_do_not_pile_up() -> None:
    timers = Timers()
    for number in range(1_000):
        timers.set(TimerName(TimerKind.TIMEOUT, "a"), 10_000 + number)
        timers.cancel(TimerName(TimerKind.TIMEOUT, "a"))
    timers.set(TimerName(TimerKind.MARKERS, "b"), 5)
    assert len(timers) == 1
    assert len(timers._heap) < 100
    assert timers.next_ms() == 5
    assert timers.pop_due(4) is None
    assert timers.pop_due(5) == TimerName(TimerKind.MARKERS, "b")
    assert timers.next_ms() is None
