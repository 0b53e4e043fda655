"""When a follower was last heard of."""

from __future__ import annotations

from ottla.broker.partition.fetch_sessions import IDLE_MS, FetchSessions
from ottla.broker.partition.follower_sessions import NEVER, FollowerSessions
from ottla.protocol.wire.fetch import FetchRequest


class Clock:
    now_ms = 0.0


def request(session_id: int, epoch: int, replica: tuple[int, int]) -> FetchRequest:
    return FetchRequest(replica[0], 500, 1, 1 << 20, 0, session_id, epoch, [], [], replica_epoch=replica[1])


def test_it_is_the_last_request_in_any_session_of_the_incarnation() -> None:
    clock, followers, ids = Clock(), FollowerSessions(), iter(range(1, 10))
    sessions = FetchSessions(10, lambda: clock.now_ms, lambda: next(ids), followers)
    assert followers.heard_ms(2, 20) == NEVER
    live = sessions.plan(request(0, 0, (2, 20)), by_topic_id=True).session_id
    clock.now_ms = 5.0
    sessions.plan(request(0, 0, (2, 20)), by_topic_id=True)
    clock.now_ms = 7.0
    sessions.plan(request(0, 0, (2, 21)), by_topic_id=True)
    assert (followers.heard_ms(2, 20), followers.heard_ms(2, 21), followers.heard_ms(3, 20)) == (5.0, 7.0, NEVER)
    clock.now_ms = 9.0
    sessions.plan(request(live, 1, (2, 20)), by_topic_id=True)
    assert followers.heard_ms(2, 20) == 9.0


def test_a_session_that_has_ended_is_forgotten() -> None:
    clock, followers, ids = Clock(), FollowerSessions(), iter(range(1, 10))
    sessions = FetchSessions(1, lambda: clock.now_ms, lambda: next(ids), followers)
    sessions.plan(request(0, 0, (2, 20)), by_topic_id=True)
    clock.now_ms = IDLE_MS + 1
    sessions.plan(request(0, 0, (3, 30)), by_topic_id=True)  # takes its slot
    assert (followers.heard_ms(2, 20), followers.heard_ms(3, 30)) == (NEVER, clock.now_ms)


def test_a_consumer_is_no_follower() -> None:
    followers = FollowerSessions()
    FetchSessions(1, lambda: 1.0, lambda: 1, followers).plan(request(0, 0, (-1, -1)), by_topic_id=True)
    assert followers.heard_ms(-1, -1) == NEVER
