"""Plans for moving replicas: the properties that an operator would check before accepting one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ottla.client.admin.replica_plans import (
    Assignment,
    BrokerPlacement,
    NoPlanError,
    Plan,
    plan_balance,
    plan_drain,
    plan_leaders_away,
)
from ottla.client.consumer.types import TopicPartition


def topic(name: str, *replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition(name, index): each for index, each in enumerate(replicas)}


def alone(*broker_ids: int) -> list[BrokerPlacement]:
    """Brokers on separate machines."""
    return [BrokerPlacement(broker_id, f"machine-{broker_id}") for broker_id in broker_ids]


def after(assignment: Assignment, plan: Plan) -> dict[TopicPartition, tuple[int, ...]]:
    return {**assignment, **plan}


def replicas_of(assignment: Assignment) -> Counter[int]:
    return Counter(broker_id for replicas in assignment.values() for broker_id in replicas)


def leaders_of(assignment: Assignment) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignment.values())


def random_world(chance: random.Random) -> tuple[dict[TopicPartition, tuple[int, ...]], list[BrokerPlacement]]:
    count = chance.randint(1, 8)
    seats = [
        BrokerPlacement(number, f"machine-{chance.randint(1, count)}", chance.choice([None, "a", "b"]))
        for number in range(1, count + 1)
    ]
    assignment: dict[TopicPartition, tuple[int, ...]] = {}
    for number in range(chance.randint(1, 5)):
        factor = chance.randint(1, min(3, count))
        rows = [tuple(chance.sample(range(1, count + 1), factor)) for _ in range(chance.randint(1, 12))]
        assignment |= topic(f"topic-{number}", *rows)
    return assignment, seats


def shared(replicas: tuple[int, ...], seats: list[BrokerPlacement]) -> int:
    machines = {seat.broker_id: seat.machine for seat in seats}
    return len(replicas) - len({machines[broker_id] for broker_id in replicas})


def test_a_drained_broker_has_nothing_and_the_others_share_it() -> None:
    assignment = topic("orders", (4, 1, 2), (4, 2, 3), (1, 2, 3), (3, 4, 1), (4, 3, 1), (2, 3, 4))
    plan = plan_drain(assignment, alone(1, 2, 3, 4, 5), 4)
    new = after(assignment, plan)
    assert set(plan) == {at for at, replicas in assignment.items() if 4 in replicas}
    assert sorted(replicas_of(new).values()) == [4, 4, 5, 5]
    assert 4 not in leaders_of(new)
    assert max(leaders_of(new).values()) <= 2
    for at, replicas in plan.items():
        assert len(set(replicas)) == 3
        assert len(set(replicas) - set(assignment[at])) == 1, "only what has to move moves"


def test_a_drain_keeps_replicas_on_different_machines() -> None:
    seats = [
        BrokerPlacement(1, "a"),
        BrokerPlacement(2, "b"),
        BrokerPlacement(3, "c"),
        BrokerPlacement(4, "a"),
        BrokerPlacement(5, "c"),
    ]
    plan = plan_drain(topic("orders", (1, 2, 3), (2, 3, 1)), seats, 3)
    assert {at: set(replicas) for at, replicas in plan.items()} == {
        TopicPartition("orders", 0): {1, 2, 5},
        TopicPartition("orders", 1): {2, 5, 1},
    }


def test_a_broker_that_is_gone_for_good_is_drained() -> None:
    assert plan_drain(topic("orders", (9, 1)), alone(1, 2), 9) == topic("orders", (1, 2))


def test_too_few_brokers_for_a_drain() -> None:
    assignment = {**topic("orders", *[(1, 2, 3)] * 5), **topic("small", (3,))}
    with pytest.raises(NoPlanError) as refused:
        plan_drain(assignment, alone(1, 2, 3), 3)
    assert str(refused.value) == (
        "broker 3 cannot be drained: orders-0, orders-1, orders-2 and 2 more with 3 replicas need as many brokers, but"
        " only 2 would be available. Start another broker first, or give these topics fewer replicas with `ottla"
        " cluster reassign`"
    )


def test_leaders_go_to_replicas_in_sync() -> None:
    assignment = topic("orders", (1, 2, 3), (1, 3, 2), (2, 1, 3), (1, 2, 3))
    in_sync = dict(zip(assignment, [{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1}], strict=True))
    plan = plan_leaders_away(assignment, in_sync, 1)
    assert set(plan) == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert {at: set(replicas) for at, replicas in plan.items()} == {at: {1, 2, 3} for at in plan}
    assert all(replicas[-1] == 1 for replicas in plan.values())
    assert leaders_of(after(assignment, plan)) in ({1: 1, 2: 1, 3: 2}, {1: 1, 2: 2, 3: 1})


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    assignment = topic("orders", *[(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 4)
    plan = plan_balance(assignment, alone(1, 2, 3, 4))
    new = after(assignment, plan)
    assert replicas_of(new) == {1: 9, 2: 9, 3: 9, 4: 9}
    assert leaders_of(new) == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(len(set(new[at]) - set(assignment[at])) for at in assignment) == 9


def test_what_shares_a_machine_goes_apart() -> None:
    seats = [BrokerPlacement(1, "a"), BrokerPlacement(2, "a"), BrokerPlacement(3, "b"), BrokerPlacement(4, "b")]
    assignment = topic("orders", (1, 2), (3, 4))
    new = after(assignment, plan_balance(assignment, seats))
    assert [shared(replicas, seats) for replicas in new.values()] == [0, 0]


def test_racks_come_after_machines() -> None:
    seats = [BrokerPlacement(1, "a", "x"), BrokerPlacement(2, "b", "x"), BrokerPlacement(3, "c", "y")]
    new = after(topic("orders", (1, 2)), plan_balance(topic("orders", (1, 2)), seats))
    assert 3 in new[TopicPartition("orders", 0)]


def test_balance_on_some_brokers_only() -> None:
    assignment = topic("orders", (1, 2), (2, 3), (3, 1), (9, 1))
    new = after(assignment, plan_balance(assignment, alone(1, 2, 3, 4), only=[1, 2, 4]))
    assert set(replicas_of(new)) == {1, 2, 4}
    with pytest.raises(NoPlanError, match="broker 8 is not in the cluster, or is offline"):
        plan_balance(assignment, alone(1, 2, 3), only=[1, 8])
    with pytest.raises(NoPlanError, match="the brokers 1 are too few"):
        plan_balance(assignment, alone(1, 2, 3), only=[1])


def test_replicas_of_a_broker_that_is_away_stay() -> None:
    assignment = topic("orders", (1, 9), (2, 9), (1, 2), (2, 1))
    new = after(assignment, plan_balance(assignment, alone(1, 2)))
    assert [9 in replicas for replicas in new.values()] == [True, True, False, False]


@pytest.mark.parametrize("number", range(150))
def test_balance_of_anything(seed: int, number: int) -> None:
    assignment, seats = random_world(random.Random(f"{seed} {number} balance"))
    new = after(assignment, plan_balance(assignment, seats))
    for at, replicas in assignment.items():
        assert len(set(new[at])) == len(replicas)
        assert shared(new[at], seats) <= shared(replicas, seats)
    assert plan_balance(new, seats) == {}, "what is balanced stays"
    if all(seat.machine == seats[0].machine and seat.rack == seats[0].rack for seat in seats):
        counts = [replicas_of(new)[seat.broker_id] for seat in seats]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("number", range(150))
def test_drain_of_anything(seed: int, number: int) -> None:
    chance = random.Random(f"{seed} {number} drain")
    assignment, seats = random_world(chance)
    leaving = chance.choice(seats).broker_id
    factor = (
        max(len(replicas) for replicas in assignment.values() if leaving in replicas)
        if any(leaving in replicas for replicas in assignment.values())
        else 0
    )
    if factor > len(seats) - 1:
        with pytest.raises(NoPlanError):
            plan_drain(assignment, seats, leaving)
        return
    plan = plan_drain(assignment, seats, leaving)
    for at, replicas in assignment.items():
        new = plan.get(at, replicas)
        assert leaving not in new
        assert len(set(new)) == len(replicas)
        assert (at in plan) == (leaving in replicas)
