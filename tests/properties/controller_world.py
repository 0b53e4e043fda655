"""A small cluster on a versioned store: brokers with logs, images that lag, a controller that may be outdated.

A log is a list of record numbers. Records that a leader has committed, as acknowledged under acks=all, must be in every
later leader as long as a replica that has them survives: that is the purpose of all the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.coordination.port import Committed, LeaseId, Outcome, Revision
from ottla.machines.controller.broker_requests import (
    BrokerStart,
    RegistrationWrite,
    become_controller,
    register_broker,
    report_failures,
    resume_registration,
    start_draining,
    stop_draining,
)
from ottla.machines.controller.election import View, is_alive
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.isr import isr_change
from ottla.machines.controller.partition_requests import (
    ControllerContext,
    ElectionType,
    TopicPartitionName,
    elect_leaders,
    reassign,
)
from ottla.machines.controller.plan import plan
from ottla.machines.controller.planner import Planner
from ottla.machines.controller.rules import RuleBook, TopicRules, may_advance_watermark
from ottla.machines.controller.state import (
    ControllerEntry,
    FailedLogs,
    Member,
    PartitionState,
    Registration,
    TopicState,
    Versioned,
)
from ottla.machines.controller.topic_requests import Creation, alter_topic_configs, create_topic
from ottla.machines.controller.writes import Limits, Write
from ottla.protocol.model.durability import Durability
from tests.support.controller_store import P0, TOPIC, Store

LIMITS = Limits(operations_max=16)
EVENTS = TopicPartitionName("events", 0)


@dataclass
class Broker:
    broker_id: int
    directory: int = 0
    process: Registration | None = None
    """The incarnation that this process believes to be; None if there is no process."""
    lease: LeaseId | None = None
    position: int = 0
    """The length of the history that its image reflects."""
    image: ClusterImage = field(default_factory=ClusterImage)
    planner: Planner = field(default_factory=lambda: Planner(RuleBook()))
    log: list[int] = field(default_factory=list)
    reports: dict[int, tuple[int, Member, int]] = field(default_factory=dict)
    """As a leader, the last report of each follower: its leader epoch, incarnation and end."""
    proposed: tuple[Revision, tuple[Member, ...]] | None = None
    """An ISR that this leader wrote, and its revision: it counts from the time it was sent."""


@dataclass(frozen=True)
class Facts:
    """Which replicas had everything when a write was applied."""

    survivors: list[Member]
    """All members that may still have it, running or not."""
    alive: set[int]

    @classmethod
    def of(cls, view: View, state: PartitionState) -> Facts:
        survivors = [member for member in (*state.isr, *state.eligible) if not view.is_lost(member)]
        return cls(survivors, {member.broker_id for member in survivors if view.is_alive(member)})


class World:
    """One partition of one topic, on three of the brokers at first; more partitions would show nothing new."""

    def __init__(self, brokers: int, durability: Durability, min_insync: int | None) -> None:
        self.durability = durability
        self.book = RuleBook()
        self.store = Store()
        self.brokers = {broker_id: Broker(broker_id) for broker_id in range(1, brokers + 1)}
        self.paused: list[Broker] = []
        """Processes that do not know that their broker was started again elsewhere."""
        self.leases = 0
        self.records = 0
        self.committed: list[int] = []
        self.allows_unclean = False
        self.is_lossy = False
        """Whether an unclean election took place, so that committed records may be lost."""
        self.leaders: dict[int, Member] = {}
        self._truth, self._truth_position = ClusterImage(), 0
        for broker_id in self.brokers:
            self.start(broker_id)
        self._create_topic(min_insync)
        for broker_id in self.brokers:
            self.catch_up(broker_id)

    def _create_topic(self, min_insync: int | None) -> None:
        configs = {"ottla.durability": self.durability.value}
        if min_insync is not None:
            configs["min.insync.replicas"] = str(min_insync)
        topic = TopicState(TOPIC, "events", 1, configs, 0)
        creation = create_topic(self.store.image(), topic, [tuple(self.brokers)[:3]], Member(1, 1), LeaseId(1))
        assert isinstance(creation, Creation)
        assert isinstance(self.store.commit(creation.first), Committed)
        self.leaders[0] = self.store.state().leader_member

    @property
    def truth(self) -> ClusterImage:
        """The current state of the store."""
        for batch in self.store.history[self._truth_position :]:
            self._truth.apply(batch.changes)
        self._truth_position = len(self.store.history)
        return self._truth

    @property
    def state(self) -> PartitionState:
        found = self.truth.partition(P0)
        assert found is not None
        return found.value

    # -- brokers --------------------------------------------------------------------------------------------------

    def start(self, broker_id: int, *, wiped: bool = False, rebooted: bool = False) -> None:
        """Starts a new process. `wiped` has a new directory; `rebooted` lost data that only the page cache had."""
        broker = self.brokers[broker_id]
        start = BrokerStart(
            broker_id=broker_id,
            host="127.0.0.1",
            port=9000 + broker_id,
            machine=f"machine-{broker_id}",
            directory_id=f"{broker_id}-{broker.directory + wiped}",
            boot_id=f"boot-{self.leases}" if rebooted else f"boot-of-{broker_id}",
        )
        self.leases += 1
        registering = register_broker(self.truth, start, LeaseId(self.leases))
        if not isinstance(registering, RegistrationWrite):
            return
        assert isinstance(self.store.commit(registering.write), Committed)
        if wiped and broker.process is not None:
            self.paused.append(broker)
        elif broker.lease is not None and not wiped:
            # The lease of the previous process continues until it expires.
            broker.lease = None
        match self.durability:
            case Durability.DISK:
                is_lost = wiped
            case Durability.CACHE:
                is_lost = wiped or rebooted
            case Durability.MEMORY:
                is_lost = True
        self.brokers[broker_id] = Broker(
            broker_id,
            broker.directory + wiped,
            registering.registration,
            LeaseId(self.leases),
            log=[] if is_lost else list(broker.log),
        )
        self.catch_up(broker_id)

    def resume(self, broker_id: int) -> None:
        """The same process, whose lease expired, registers again."""
        broker = self.brokers[broker_id]
        if broker.process is None or broker.lease is not None:
            return
        self.leases += 1
        write = resume_registration(self.truth, broker.process, LeaseId(self.leases))
        if isinstance(write, Write) and isinstance(self.commit(write), Committed):
            broker.lease = LeaseId(self.leases)

    def stop(self, broker_id: int) -> None:
        """Ends the process and its lease."""
        self.expire(broker_id)
        broker = self.brokers[broker_id]
        broker.process = broker.proposed = None

    def expire(self, broker_id: int) -> None:
        """Ends the lease. The process, if there is one, is not notified."""
        broker = self.brokers[broker_id]
        if broker.lease is not None:
            self.store.end_lease(broker.lease)
            broker.lease = None

    def catch_up(self, broker_id: int, batches: int | None = None) -> None:
        broker = self.brokers[broker_id]
        end = len(self.store.history) if batches is None else min(broker.position + batches, len(self.store.history))
        for batch in self.store.history[broker.position : end]:
            broker.planner.observe(broker.image, broker.image.apply(batch.changes))
        broker.position = end

    def set_draining(self, broker_id: int, draining: bool) -> None:
        image = self.truth
        write = start_draining(image, broker_id) if draining else stop_draining(image, broker_id)
        if isinstance(write, Write):
            self.commit(write)

    def fail_log(self, broker_id: int, failed: bool) -> None:
        """Makes the log fail, or work again with everything that is committed."""
        broker = self.brokers[broker_id]
        if broker.process is None or broker.lease is None or broker.log[: len(self.committed)] != self.committed:
            return
        logs = FailedLogs(broker.process.epoch, partitions=frozenset({P0} if failed else ()))
        self.commit(report_failures(broker.image, broker_id, logs, broker.lease))

    # -- the leader -----------------------------------------------------------------------------------------------

    def leading(self, broker: Broker) -> PartitionState | None:
        """Returns the partition as this broker sees it, if it believes to lead."""
        found = broker.image.partition(P0)
        if broker.process is None or found is None or found.value.leader_member != broker.process.member:
            return None
        return found.value

    def rules(self, image: ClusterImage) -> TopicRules:
        topic = image.topic(TOPIC)
        assert topic is not None
        return self.book.of(image, topic)

    def produce(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if self.leading(broker) is not None:
            self.records += 1
            broker.log.append(self.records)

    def replicate(self, leader_id: int, follower_id: int) -> None:
        """The follower fetches everything from its leader, and truncates what the leader does not have."""
        leader, follower = self.brokers[leader_id], self.brokers[follower_id]
        state = self.leading(leader)
        if state is not None and leader_id != follower_id and self.follows(follower, state):
            follower.log = list(leader.log)
            assert follower.process is not None
            leader.reports[follower_id] = state.leader_epoch, follower.process.member, len(follower.log)

    def follows(self, follower: Broker, state: PartitionState) -> bool:
        found = follower.image.partition(P0)
        return (
            follower.process is not None
            and found is not None
            and found.value.leader_member == state.leader_member
            and found.value.leader_epoch == state.leader_epoch
        )

    def move_watermark(self, leader_id: int) -> None:
        """Moves the high watermark to the lowest end of the ISR, in the confirmed and the proposed state."""
        leader = self.brokers[leader_id]
        state = self.leading(leader)
        if state is None or not may_advance_watermark(self.rules(leader.image), state):
            return
        counted = set(state.isr)
        found = leader.image.partition(P0)
        if leader.proposed is not None and found is not None and found.version < leader.proposed[0]:
            counted |= set(leader.proposed[1])
        end = min(self.acknowledged(leader, state, member) for member in counted)
        if self.is_lossy:
            return
        both = min(end, len(self.committed))
        assert leader.log[:both] == self.committed[:both], "two histories were committed"
        self.committed = max(self.committed, leader.log[:end], key=len)

    def acknowledged(self, leader: Broker, state: PartitionState, member: Member) -> int:
        """Returns the member's end as reported in this leader epoch by an incarnation that kept its data."""
        if member.broker_id == leader.broker_id:
            return len(leader.log)
        epoch, reporter, end = leader.reports.get(member.broker_id, (-1, member, 0))
        registration = leader.image.registration(member.broker_id)
        is_member = reporter == member or (
            registration is not None
            and registration.member == reporter
            and is_alive(member, registration, self.durability)
        )
        return end if is_member and epoch == state.leader_epoch else 0

    def change_isr(self, leader: Broker, wanted: set[int]) -> None:
        """The leader adds the replicas that reported its own end."""
        state = self.leading(leader)
        if state is None or leader.process is None:
            return
        isr = [leader.process.member]
        for broker_id in state.replicas:
            epoch, reporter, end = leader.reports.get(broker_id, (-1, Member(0, 0), 0))
            was = [member for member in state.isr if member.broker_id == broker_id]
            if broker_id == leader.broker_id or broker_id not in wanted:
                continue
            if was:
                isr += was
            elif epoch == state.leader_epoch and end == len(leader.log):
                isr.append(reporter)
        write = isr_change(leader.image, self.rules(leader.image), P0, leader.process.member, isr)
        if isinstance(write, Write):
            outcome = self.commit(write)
            if isinstance(outcome, Committed):
                leader.proposed = outcome.revision, tuple(isr)

    def change_paused_isrs(self, wanted: set[int]) -> None:
        for broker in self.paused:
            self.change_isr(broker, wanted)

    # -- the controller -------------------------------------------------------------------------------------------

    def take_control(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.process is not None and broker.lease is not None:
            write = become_controller(broker.image, broker.process.member, broker.lease)
            if write is not None and isinstance(self.commit(write), Committed):
                broker.planner.start_over()

    def controlling(self, broker_id: int) -> Versioned[ControllerEntry] | None:
        """Returns None unless the broker believes to be the controller."""
        broker = self.brokers[broker_id]
        found = broker.image.controller
        if broker.process is None or found is None or found.value != ControllerEntry(*broker.process.member):
            return None
        return found

    def named(self, number: int) -> int:
        """Returns a broker by its id; 0 is the stored leader, and one beyond the last the controller."""
        if number in self.brokers:
            return number
        controller = self.truth.controller
        found = self.state.leader if number == 0 else controller and controller.value.broker_id
        return found if found in self.brokers else 1

    def plan(self, broker_id: int, most: int | None = None) -> None:
        """Commits the planned writes, or the first few of them."""
        self.take_control(broker_id)
        me, broker = self.controlling(broker_id), self.brokers[broker_id]
        if me is None:
            return
        writes = broker.planner.plan(broker.image, me, LIMITS)
        assert writes == plan(broker.image, me, RuleBook(), LIMITS)
        for write in writes[:most]:
            self.commit(write)

    def reassign(self, broker_id: int, target: list[int] | None) -> None:
        me = self.controlling(broker_id)
        if me is not None:
            controlling = ControllerContext(self.brokers[broker_id].image, me, self.book, LIMITS)
            for write in reassign(controlling, {EVENTS: target}).writes:
                self.commit(write)

    def elect(self, broker_id: int, election_type: ElectionType) -> None:
        me = self.controlling(broker_id)
        if me is not None:
            controlling = ControllerContext(self.brokers[broker_id].image, me, self.book, LIMITS)
            self.allows_unclean = election_type is ElectionType.UNCLEAN
            for write in elect_leaders(controlling, None, election_type).writes:
                self.commit(write)
            self.allows_unclean = False

    def set_min_insync(self, number: int) -> None:
        image = self.truth
        topic = image.topic(TOPIC)
        assert topic is not None
        write = alter_topic_configs(image, TOPIC, {**topic.configs, "min.insync.replicas": str(number)})
        if isinstance(write, Write):
            self.commit(write)

    # -- invariants -----------------------------------------------------------------------------------------------

    def commit(self, write: Write) -> Outcome:
        assert max(len(write.operations), len(write.conditions)) <= LIMITS.operations_max
        before, rules = self.state, self.rules(self.truth)
        facts = Facts.of(View(self.truth, P0, rules), before)
        outcome = self.store.commit(write)
        if isinstance(outcome, Committed) and self.state != before:
            self.check_write(before, self.state, facts)
        return outcome

    def check_write(self, before: PartitionState, after: PartitionState, facts: Facts) -> None:
        in_sync = [member.broker_id for member in after.isr]
        eligible = [member.broker_id for member in after.eligible]
        assert in_sync, "the last member is never removed"
        assert len(set(in_sync + eligible)) == len(in_sync + eligible)
        assert set(in_sync + eligible) <= set(after.replicas)
        assert after.leader_epoch >= before.leader_epoch
        if after.leader_member != before.leader_member:
            assert after.leader_epoch > before.leader_epoch, "another leader has another epoch"
        had, have = {*before.isr, *before.eligible}, {*after.isr, *after.eligible}
        if not after.has_leader:
            assert had == have, "those who had everything are remembered"
            return
        assert after.leader_member in after.isr
        assert self.leaders.setdefault(after.leader_epoch, after.leader_member) == after.leader_member
        if after.leader_member == before.leader_member and had <= have:
            return
        if after.leader in facts.alive:
            log = self.brokers[after.leader].log
            assert self.is_lossy or log[: len(self.committed)] == self.committed, "a leader lacks what was committed"
            return
        assert not facts.alive, f"brokers {facts.alive} have everything, and {after} leads"
        assert self.allows_unclean or not facts.survivors, f"{facts.survivors} may have everything, and {after} leads"
        self.is_lossy = True

    def check(self) -> None:
        """Checks that every replica that counts as complete is complete."""
        if self.is_lossy:
            return
        state = self.state
        view = View(self.truth, P0, self.rules(self.truth))
        for member in (*state.isr, *state.eligible):
            if not view.is_lost(member):
                log = self.brokers[member.broker_id].log
                assert log[: len(self.committed)] == self.committed, f"{member} of {state} lacks what was committed"

    def calm(self) -> None:
        """All images are updated, and the controller plans."""
        for broker_id in self.brokers:
            self.catch_up(broker_id)
            self.take_control(broker_id)
            self.catch_up(broker_id)
        for broker_id in self.brokers:
            self.plan(broker_id)
            self.catch_up(broker_id)

    def traffic(self, followers: list[int]) -> None:
        """Replicates a record from the leader to some followers."""
        leader = self.named(0)
        self.produce(leader)
        for broker_id in followers:
            self.replicate(leader, broker_id)
        self.move_watermark(leader)

    def settle(self) -> PartitionState:
        """Without further faults: all images are updated, and one broker controls and plans once."""
        self.calm()
        image = self.truth
        if image.controller is not None:
            assert plan(image, image.controller, RuleBook(), LIMITS) == []
            if self.state.has_leader and self.state.eligible:
                assert len(self.state.isr) < self.rules(image).min_insync(self.state)
        return self.state


def in_common(one: list[int], other: list[int]) -> int:
    """Returns the length of the common prefix of the two logs."""
    for position, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return position
    return min(len(one), len(other))
