"""Produce requests that wait for acknowledgements, by themselves."""

from __future__ import annotations

from ottla.broker.partition.produce_waits import ProduceWaits
from ottla.protocol.model.errors import ErrorCode


class Bench:
    def __init__(self) -> None:
        self.waits = ProduceWaits()
        self.settled: list[tuple[str, ErrorCode]] = []

    def add(self, name: str, end_offset: int, *, local: bool = False) -> None:
        waits = self.waits.local if local else self.waits.replicated
        waits.append((end_offset, lambda error: self.settled.append((name, error))))


def test_requests_are_settled_in_order_up_to_the_watermark() -> None:
    bench = Bench()
    for name, end_offset in (("a", 2), ("b", 5), ("c", 7)):
        bench.add(name, end_offset)
    bench.waits.settle_replicated(6)
    assert bench.settled == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    bench.waits.settle_replicated(7)
    assert [name for name, _ in bench.settled] == ["a", "b", "c"]


def test_a_duplicate_waits_behind_an_earlier_request() -> None:
    bench = Bench()
    bench.add("new", 5)
    bench.add("duplicate", 2)
    bench.waits.settle_replicated(4)
    assert bench.settled == []
    bench.waits.settle_replicated(5)
    assert [name for name, _ in bench.settled] == ["new", "duplicate"]


def test_a_local_acknowledgement_settles_local_waits_only() -> None:
    bench = Bench()
    bench.add("all", 3)
    bench.add("one", 3, local=True)
    bench.waits.settle_local(3)
    assert bench.settled == [("one", ErrorCode.none)]


def test_too_few_replicas_leave_local_waits_alone() -> None:
    bench = Bench()
    bench.add("all", 3)
    bench.add("one", 3, local=True)
    bench.waits.fail_replicated(ErrorCode.not_enough_replicas_after_append)
    assert bench.settled == [("all", ErrorCode.not_enough_replicas_after_append)]


def test_a_request_that_is_added_while_all_fail_keeps_waiting() -> None:
    bench = Bench()
    bench.add("one", 1, local=True)
    bench.waits.replicated.append((1, lambda _: bench.add("retry", 2)))
    bench.waits.fail_all(ErrorCode.not_leader_or_follower)
    assert bench.settled == [("one", ErrorCode.not_leader_or_follower)]
    bench.waits.settle_replicated(2)
    assert bench.settled[-1] == ("retry", ErrorCode.none)
