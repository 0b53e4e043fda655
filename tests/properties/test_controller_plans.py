"""Plans of any image converge at once, keep to the limits and follow the election rules; placements are balanced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordination.port import Committed, LeaseId, Put
from ottla.machines.controller import encoding, keys
from ottla.machines.controller.assignment import place
from ottla.machines.controller.broker_requests import start_draining
from ottla.machines.controller.election import View
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.plan import plan
from ottla.machines.controller.preferred_leaders import imbalanced
from ottla.machines.controller.rules import RuleBook
from ottla.machines.controller.state import (
    NO_BROKER_EPOCH,
    NO_LEADER,
    ControllerEntry,
    FailedLogs,
    Member,
    PartitionKey,
    PartitionState,
    RetainedSince,
    TopicState,
    Versioned,
)
from ottla.machines.controller.topic_requests import Creation, create_partitions, create_topic
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import Refused
from ottla.protocol.model.ids import TopicId
from tests.support.controller_store import Store

BROKERS = range(1, 6)


@st.composite
def partition_states(draw: st.DrawFn) -> PartitionState:
    """Any possible state of a partition, and impossible ones: members of any epoch, missing leaders."""
    replicas = tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=5, unique=True)))
    epochs = st.integers(1, 3)
    in_order = draw(st.permutations(replicas))
    cut = draw(st.integers(1, len(in_order)))
    isr = tuple(Member(broker_id, draw(epochs)) for broker_id in in_order[:cut])
    eligible = tuple(Member(broker_id, draw(epochs)) for broker_id in in_order[cut:] if draw(st.booleans()))
    leader = draw(st.sampled_from([*isr, Member(NO_LEADER, NO_BROKER_EPOCH)]))
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    if draw(st.integers(0, 3)) == 0:
        adding = tuple(broker_id for broker_id in replicas[1:] if draw(st.booleans()))
        removing = tuple(broker_id for broker_id in replicas[1:] if draw(st.booleans()))
    return PartitionState(replicas, *leader, draw(st.integers(0, 5)), isr, eligible, adding, removing)


@st.composite
def stores(draw: st.DrawFn) -> Store:
    store = Store()
    for broker_id in BROKERS:
        epoch = draw(st.integers(1, 3))
        since = st.integers(1, epoch)
        store.add_broker(broker_id, epoch, kept=RetainedSince(draw(since), draw(since), epoch))
        failed = draw(st.sampled_from([None, None, None, FailedLogs(epoch, all_disk=True), FailedLogs(1)]))
        if failed is not None:
            store.put(keys.failures(broker_id), encoding.encode_failures(failed), LeaseId(broker_id))
        fate = draw(st.sampled_from(["stays", "stays", "drains", "is gone"]))
        if fate == "drains":
            write = start_draining(store.image(), broker_id)
            assert isinstance(write, Write)
            store.commit(write)
        elif fate == "is gone":
            store.end_lease(LeaseId(broker_id))
    for number in range(draw(st.integers(1, 3))):
        add_topic(draw, store, number)
    return store


def add_topic(draw: st.DrawFn, store: Store, number: int) -> None:
    topic_id = TopicId(UUID(int=100 + number))
    configs = {"unclean.leader.election.enable": draw(st.sampled_from(["false", "false", "true"]))}
    if draw(st.booleans()):
        configs["min.insync.replicas"] = str(draw(st.integers(1, 4)))
    states = draw(st.lists(partition_states(), min_size=1, max_size=6))
    store.add_topic(
        states, topic_id=topic_id, name=f"t{number}", durability=draw(st.sampled_from(Durability)), configs=configs
    )
    if draw(st.integers(0, 3)) == 0:
        store.set_partition(draw(partition_states()), PartitionKey(topic_id, len(states)))


def carry_out(store: Store, me: Versioned[ControllerEntry], limits: Limits, preferred: set[PartitionKey]) -> None:
    for write in plan(store.image(), me, RuleBook(), limits, preferred=preferred):
        assert max(len(write.operations), len(write.conditions)) <= limits.operations_max
        assert isinstance(store.commit(write), Committed), "no write of a plan is in the way of another"


@given(stores(), st.sampled_from([16, 20, 128]), st.booleans())
def test_a_plan_leaves_nothing_to_do(store: Store, operations_max: int, prefer: bool) -> None:
    me = store.add_controller()
    preferred = imbalanced(store.image(), 0) if prefer else set()
    before = store.image()
    carry_out(store, me, Limits(operations_max), preferred)
    after = store.image()
    assert plan(after, me, RuleBook(), preferred=preferred) == []
    assert not list(after.left_over())
    for key, found in before.partitions():
        now = after.partition(key)
        assert now is not None
        check_change(before, key, found.value, now.value)


def check_change(image: ClusterImage, key: PartitionKey, old: PartitionState, new: PartitionState) -> None:
    topic = image.topic(key.topic_id)
    assert topic is not None
    view = View(image, key, RuleBook().of(image, topic))
    in_sync = [member.broker_id for member in old.isr if view.is_alive(member)]
    eligible = [member.broker_id for member in old.eligible if view.is_alive(member)]
    assert new.leader_epoch - old.leader_epoch in (0, 1)
    if new.leader_member != old.leader_member:
        assert new.leader_epoch > old.leader_epoch
    if not new.has_leader:
        assert not in_sync
        assert not eligible
        assert (new.isr, new.eligible) == (old.isr, old.eligible)
        return
    assert new.leader in (in_sync or eligible or new.replicas)
    assert new.leader_member == view.current(new.leader)
    assert new.leader_member in new.isr
    stayed = {member.broker_id for member in new.isr}
    if in_sync:
        assert stayed == set(in_sync) & set(new.replicas), "the alive stay, the dead leave"
    else:
        assert stayed == {new.leader}
        had_its_disk = any(view.has_its_disk(member) for member in old.isr + old.eligible)
        lost_its_pages = view.rules.durability is Durability.CACHE and had_its_disk
        assert eligible or view.rules.unclean or view.rules.goes_on_empty or lost_its_pages


# -- placement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    brokers: int
    per_machine: int
    racks: int

    def store(self) -> Store:
        store = Store()
        for broker_id in range(self.brokers):
            rack = f"rack-{broker_id // self.per_machine % self.racks}" if self.racks else None
            store.add_broker(broker_id, machine=f"machine-{broker_id // self.per_machine}", rack=rack)
        return store


sites = st.builds(Site, st.integers(1, 12), st.integers(1, 3), st.integers(0, 4))


@given(sites, st.integers(1, 5), st.integers(1, 60), st.integers(0, 2**32), st.booleans())
def test_replicas_are_on_machines_and_racks_of_their_own(
    site: Site, factor: int, count: int, seed: int, shared: bool
) -> None:
    image = site.store().image()
    placed = place(image, range(count), factor, seed, allow_shared_machine=shared)
    machines = {registration.machine for registration in image.registrations()}
    if isinstance(placed, Refused):
        assert factor > (site.brokers if shared else len(machines))
        return
    assert len(placed) == count
    racks = {registration.rack for registration in image.registrations()}
    for replicas in placed:
        found = [registration for broker in replicas if (registration := image.registration(broker)) is not None]
        assert len(set(replicas)) == factor
        assert len({registration.machine for registration in found}) == min(factor, len(machines))
        if site.per_machine == 1:
            assert len({registration.rack for registration in found}) == min(factor, len(racks))


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 100), st.integers(0, 2**32))
def test_replicas_and_leaders_are_balanced(brokers: int, factor: int, count: int, seed: int) -> None:
    placed = place(Site(brokers, 1, 0).store().image(), range(count), min(factor, brokers), seed)
    assert not isinstance(placed, Refused)
    replicas = Counter(broker for each in placed for broker in each)
    leaders = Counter(each[0] for each in placed)
    assert max(replicas.values()) - min(replicas[broker] for broker in range(brokers)) <= 1
    assert max(leaders.values()) - min(leaders[broker] for broker in range(brokers)) <= 2


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([16, 40, 128]), st.integers(0, 12))
def test_a_creation_that_stops_anywhere_leaves_all_or_nothing(
    first_count: int, added: int, operations_max: int, stops_after: int
) -> None:
    store, limits = Site(3, 1, 0).store(), Limits(operations_max)
    me, topic_id = store.add_controller(0), TopicId(UUID(int=5))
    assignment = place(store.image(), range(max(first_count, added)), 2, 1)
    assert not isinstance(assignment, Refused)
    creator, lease = Member(1, 1), LeaseId(1)
    wanted = TopicState(topic_id, "events", first_count, {}, 0)
    carried = 0
    for count in (first_count, added):
        creation = (
            create_topic(store.image(), wanted, assignment[:count], creator, lease, limits)
            if carried == 0
            else create_partitions(store.image(), topic_id, assignment[:count], creator, lease, limits)
        )
        assert isinstance(creation, Creation)
        outcome = store.commit(creation.first)
        assert isinstance(outcome, Committed)
        rest = creation.rest(outcome.revision)
        for write in rest[:stops_after]:
            assert isinstance(store.commit(write), Committed)
        if len(rest) > stops_after:
            store.end_lease(lease)
            break
        carried += count
    carry_out(store, me, limits, set())
    image = store.image()
    assert len(image.partitions_of(topic_id)) == carried
    assert sum(1 for key in store.entries if key.startswith("partitions/")) == carried
    assert (image.topic_named("events") is not None) == (carried > 0)


# -- a large failover -----------------------------------------------------------------------------------------------


def test_a_failover_of_ten_thousand_partitions() -> None:
    store = Site(4, 1, 0).store()
    members = {broker_id: Member(broker_id, 1) for broker_id in range(4)}
    states = []
    for index in range(10_000):
        replicas = (0, 1 + index % 3, 1 + (index + 1) % 3)
        states.append(PartitionState(replicas, 0, 1, 0, tuple(members[broker_id] for broker_id in replicas)))
    store.add_topic(states)
    me = store.add_controller()
    image = store.image()
    store.end_lease(LeaseId(0))
    image.apply(store.history[-1].changes)
    writes = plan(image, me, RuleBook())
    assert sum(isinstance(operation, Put) for write in writes for operation in write.operations) == 10_000
    assert len(writes) <= 83, "few writes, because partitions with the same new leader stand together"
    for write in writes:
        store.commit(write)
        image.apply(store.history[-1].changes)
    assert plan(image, me, RuleBook()) == []
    leaders = Counter(found.value.leader for _, found in image.partitions())
    assert set(leaders) == {1, 2, 3}
    assert max(leaders.values()) - min(leaders.values()) <= 1
