"""Placement of replicas, and rejected assignments."""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.machines.controller.assignment import Replicas, check_manual, place
from ottla.machines.controller.broker_requests import start_draining
from ottla.machines.controller.writes import Write
from ottla.protocol.model.errors import ErrorCode, Refused
from tests.support.controller_store import Store, partition


def placed(store: Store, count: int, factor: int, seed: int = 0, *, shared: bool = False) -> list[Replicas]:
    found = place(store.image(), range(count), factor, seed, allow_shared_machine=shared)
    assert not isinstance(found, Refused)
    return found


def brokers(count: int, *, per_machine: int = 1, racks: int = 0) -> Store:
    store = Store()
    for broker_id in range(count):
        rack = f"rack-{broker_id % racks}" if racks else None
        store.add_broker(broker_id, machine=f"machine-{broker_id // per_machine}", rack=rack)
    return store


def drain(store: Store, broker_id: int) -> None:
    write = start_draining(store.image(), broker_id)
    assert isinstance(write, Write)
    store.commit(write)


def test_replicas_and_leaders_are_spread_evenly() -> None:
    found = placed(brokers(5), 20, 3)
    assert set(Counter(broker for replicas in found for broker in replicas).values()) == {12}
    assert max(Counter(replicas[0] for replicas in found).values()) <= 5


def test_the_same_seed_gives_the_same_places_and_another_one_others() -> None:
    assert placed(brokers(7), 30, 3, seed=1) == placed(brokers(7), 30, 3, seed=1)
    assert placed(brokers(7), 30, 3, seed=1) != placed(brokers(7), 30, 3, seed=2)


def test_partitions_do_not_share_their_replicas_pair_by_pair() -> None:
    """The load of a dead broker is spread over all others."""
    found = placed(brokers(6), 60, 2)
    beside = {broker: {other for replicas in found if broker in replicas for other in replicas} for broker in range(6)}
    assert all(len(others) >= 5 for others in beside.values())


def test_no_two_replicas_on_one_machine() -> None:
    found = placed(brokers(6, per_machine=2), 30, 3)
    assert all(len({broker // 2 for broker in replicas}) == 3 for replicas in found)


def test_unless_it_is_allowed_and_needed() -> None:
    store = brokers(4, per_machine=2)
    refused = place(store.image(), range(1), 3, 0)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_replication_factor
    assert refused.message is not None
    assert "2 machine(s)" in refused.message
    found = placed(store, 20, 3, shared=True)
    assert all(len(set(replicas)) == 3 for replicas in found)
    assert all({broker // 2 for broker in replicas} == {0, 1} for replicas in found)
    pairs = placed(store, 20, 2, shared=True)
    assert all({broker // 2 for broker in replicas} == {0, 1} for replicas in pairs)


def test_replicas_are_spread_over_racks() -> None:
    found = placed(brokers(9, racks=3), 27, 3)
    assert all({broker % 3 for broker in replicas} == {0, 1, 2} for replicas in found)
    assert set(Counter(broker for replicas in found for broker in replicas).values()) == {9}
    found = placed(brokers(8, racks=2), 16, 3)
    assert all({broker % 2 for broker in replicas} == {0, 1} for replicas in found)


def test_machines_come_before_racks() -> None:
    store = Store()
    store.add_broker(1, machine="a", rack="x")
    store.add_broker(2, machine="a", rack="y")
    store.add_broker(3, machine="b", rack="x")
    assert all(3 in replicas for replicas in placed(store, 10, 2))


def test_brokers_with_fewer_replicas_come_first() -> None:
    store = brokers(4)
    store.add_topic([partition("0 1", "0"), partition("1 2", "1"), partition("2 0", "2")])
    (replicas,) = placed(store, 1, 1)
    assert replicas == (3,)


def test_a_topic_is_spread_evenly_even_if_a_broker_is_new() -> None:
    store = brokers(4)
    store.add_topic([partition("0 1 2", "0")] * 20)
    assert set(Counter(replicas[0] for replicas in placed(store, 8, 1)).values()) == {2}


def test_new_partitions_go_where_the_topic_has_the_fewest() -> None:
    store = brokers(3)
    store.add_topic([partition("0", "0"), partition("1", "1")])
    beside = [found.value for _, found in store.image().partitions()]
    assert place(store.image(), range(2, 3), 1, 0, beside=beside) == [(2,)]


def test_draining_brokers_get_no_new_replicas() -> None:
    store = brokers(4)
    drain(store, 2)
    assert not any(2 in replicas for replicas in placed(store, 12, 3))
    refused = place(store.image(), range(1), 4, 0)
    assert isinstance(refused, Refused)
    assert refused.message is not None
    assert "draining" in refused.message


@pytest.mark.parametrize(("factor", "words"), [(0, "larger than 0"), (-5, "larger than 0"), (4, "only 3 broker(s)")])
def test_factors_that_cannot_be(factor: int, words: str) -> None:
    refused = place(brokers(3).image(), range(1), factor, 0)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_replication_factor
    assert refused.message is not None
    assert words in refused.message


# -- manual assignments ---------------------------------------------------------------------------------------------


def test_manual_assignments() -> None:
    store = brokers(4, per_machine=2)
    image = store.image()
    assert check_manual(image, [0, 2]) is None
    assert check_manual(image, [0, 2], 2) is None
    assert check_manual(image, [0, 1], allow_shared_machine=True) is None


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ([], "empty replica list"),
        ([0, 9], "includes broker 9, but no such broker is registered"),
        ([0, 2, 0], "includes the broker 0 more than once"),
        ([0, 2], "2 replica(s), but this is not consistent with previous partitions, which have 1 replica(s)"),
        ([0, 1], "both on the machine 'machine-0'"),
        ([0, 3], "broker 3, but this broker is draining"),
    ],
)
def test_manual_assignments_that_are_refused(replicas: list[int], words: str) -> None:
    store = brokers(4, per_machine=2)
    drain(store, 3)
    refused = check_manual(store.image(), replicas, 1 if "consistent" in words else None)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.invalid_replica_assignment
    assert refused.message is not None
    assert words in refused.message


def test_replicas_that_are_there_may_stay_where_they_are() -> None:
    store = brokers(3)
    drain(store, 2)
    assert check_manual(store.image(), [2, 7, 0], had=(2, 7)) is None
