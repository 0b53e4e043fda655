"""Fetch sessions (KIP-227): cases that `tests/scenarios/fetch_sessions` does not cover."""

from __future__ import annotations

from uuid import UUID

from ottla.broker.partition.fetch_sessions import EPOCH_MAX, IDLE_MS, FetchPlan, FetchSessions
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.wire.produce import TopicKey


def wanted(partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition, -1, offset, -1, -1, 1000)


class Sessions:
    def __init__(self, slots: int = 10, ids: tuple[int, ...] = ()) -> None:
        self.now_ms = 0.0
        self._ids = list(ids) or list(range(1, 1000))
        self.sessions = FetchSessions(slots, lambda: self.now_ms, lambda: self._ids.pop(0))

    def fetch(
        self,
        session_id: int,
        epoch: int,
        *partitions: tuple[TopicKey, int],
        forget: tuple[tuple[TopicKey, int], ...] = (),
        by_topic_id: bool = False,
    ) -> FetchPlan:
        request = FetchRequest(
            -1,
            500,
            1,
            1 << 20,
            0,
            session_id,
            epoch,
            [(topic, [wanted(index)]) for topic, index in partitions],
            [(topic, [index]) for topic, index in forget],
        )
        return self.sessions.plan(request, by_topic_id=by_topic_id)


def test_the_epoch_wraps_to_one() -> None:
    """0 and -1 have special meanings."""
    sessions = Sessions()
    session = sessions.fetch(0, 0, ("t", 0)).session
    assert session is not None
    session.next_epoch = EPOCH_MAX
    assert sessions.fetch(1, EPOCH_MAX).error is ErrorCode.none
    assert sessions.fetch(1, 0 + 1).error is ErrorCode.none
    assert session.next_epoch == 2


def test_an_id_is_never_zero_and_never_taken() -> None:
    sessions = Sessions(ids=(5, 0, 5, 6))
    assert sessions.fetch(0, 0, ("t", 0)).session_id == 5
    assert sessions.fetch(0, 0, ("t", 0)).session_id == 6


def test_no_slots_no_sessions() -> None:
    plan = Sessions(slots=0).fetch(0, 0, ("t", 0))
    assert plan.session_id == 0
    assert plan.partitions == [("t", wanted(0))]
    assert not plan.is_incremental


def test_an_error_reads_nothing() -> None:
    plan = Sessions().fetch(9, 3, ("t", 0))
    assert plan.partitions == []
    assert plan.error is ErrorCode.fetch_session_id_not_found


def test_a_final_request_without_a_session_is_a_plain_read() -> None:
    plan = Sessions().fetch(0, -1, ("t", 0), ("t", 1))
    assert [partition.partition for _, partition in plan.partitions] == [0, 1]
    assert plan.session_id == 0


def test_topics_by_id() -> None:
    topic = UUID(int=7)
    sessions = Sessions()
    sessions.fetch(0, 0, (topic, 0), by_topic_id=True)
    assert sessions.fetch(1, 1).error is ErrorCode.fetch_session_topic_id_error
    plan = sessions.fetch(1, 1, by_topic_id=True)
    assert plan.partitions == [(topic, wanted(0))]


def test_a_changed_partition_is_read_as_it_is_now() -> None:
    sessions = Sessions()
    sessions.fetch(0, 0, ("t", 0), ("t", 1))
    request = FetchRequest(-1, 500, 1, 1 << 20, 0, 1, 1, [("t", [wanted(1, offset=40)])], [])
    plan = sessions.sessions.plan(request, by_topic_id=False)
    assert plan.partitions == [("t", wanted(0)), ("t", wanted(1, offset=40))]


def test_forgetting_and_asking_again() -> None:
    sessions = Sessions()
    sessions.fetch(0, 0, ("t", 0))
    assert sessions.fetch(1, 1, forget=(("t", 0), ("u", 5))).partitions == []
    plan = sessions.fetch(1, 2, ("t", 0))
    data = PartitionData(0, 0, 5, 5, 0)
    assert plan.trimmed([("t", data)]) == [("t", data)], "it is new again: told even if nothing changed"


def test_a_new_log_start_is_told() -> None:
    sessions = Sessions()
    plan = sessions.fetch(0, 0, ("t", 0))
    plan.trimmed([("t", PartitionData(0, 0, 5, 5, 0))])
    moved = PartitionData(0, 0, 5, 5, 3)
    assert sessions.fetch(1, 1).trimmed([("t", moved)]) == [("t", moved)]
    assert sessions.fetch(1, 2).trimmed([("t", moved)]) == []


def test_what_was_forgotten_while_a_request_waited_is_not_answered() -> None:
    sessions = Sessions()
    sessions.fetch(0, 0, ("t", 0), ("t", 1))
    waiting = sessions.fetch(1, 1)
    sessions.fetch(1, 2, forget=(("t", 1),))
    answers: list[tuple[TopicKey, PartitionData]] = [
        ("t", PartitionData(index, 0, 9, 9, 0, records_size=5)) for index in range(2)
    ]
    assert [data.partition for _, data in waiting.trimmed(answers)] == [0]


def test_a_session_that_is_used_is_not_evicted() -> None:
    sessions = Sessions(slots=1)
    sessions.fetch(0, 0, ("t", 0))
    for epoch in range(1, 20):
        sessions.now_ms += IDLE_MS / 2
        assert sessions.fetch(1, epoch).error is ErrorCode.none
        assert sessions.fetch(0, 0, ("u", 0)).session_id == 0
    sessions.now_ms += IDLE_MS
    assert sessions.fetch(0, 0, ("u", 0)).session_id == 2
    assert len(sessions.sessions) == 1


def test_another_replica_to_read_from_is_told_although_nothing_else_is_new() -> None:
    sessions = Sessions()
    data = PartitionData(0, 0, 5, 5, 0)
    first = sessions.fetch(0, 0, ("t", 0))
    first.trimmed([("t", data)])
    silent = sessions.fetch(first.session_id, 1)
    assert silent.trimmed([("t", data)]) == []
    told = sessions.fetch(first.session_id, 2)
    named = data._replace(preferred_read_replica=3)
    assert told.trimmed([("t", named)]) == [("t", named)]
