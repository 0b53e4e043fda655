"""A simulated cluster as in `cluster_run`, in which groups of both protocols share a topic and commit offsets.

    run = GroupsRun(seed)
    run.execute()             # a `Violation`, or any other error, is a fault of the brokers
    run.check()

With an even seed the members are models that speak Kafka's protocol over the simulated network and restart, leave and
change their protocol; `groups_members` and `groups_commits` have their checks. With an odd seed they are Ottla's own
consumers and process the records of its producer: see `groups_readers`. The faults are those of `cluster_plan`; inside
the brokers all of `cluster_checks` is checked, also for `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ottla.broker.groups.led_shard import State
from ottla.client.groups.settings import GroupProtocol
from ottla.machines.controller.state import PartitionKey
from ottla.machines.groups.placement import OFFSETS_TOPIC, partition_of
from ottla.machines.groups.tables import Tables
from ottla.protocol.model.durability import Durability
from tests.properties.groups_clients import ClassicClient, Client, ConsumerClient
from tests.simulation.cluster_clients import Clients, Place
from tests.simulation.cluster_plan import CONSUMERS, OPERATOR, PRODUCERS, ClusterPlan, PlannedTopic, RunOptions
from tests.simulation.cluster_run import PROPERTIES, ClusterRun
from tests.simulation.groups_expiry import ExpiringOffsets
from tests.simulation.groups_members import TOPIC, MemberGroup
from tests.simulation.groups_readers import ReaderGroup
from tests.simulation.state_faults import SEEDS_FROM
from tests.simulation.violations import Violation

PARTITIONS = 6
OFFSETS_PARTITIONS = 3
CALM_S = 4.0
"""Time without faults at the start, for the groups to form."""
ACTIONS = ("reassign", "prefer leaders")
KINDS: dict[str, list[type[Client]]] = {
    "classic": [ClassicClient] * 4,
    "modern": [ConsumerClient] * 4,
    "moving": [ClassicClient, ConsumerClient, ClassicClient],
}


class GroupsRun(ClusterRun):
    properties: Mapping[str, str] = {
        **PROPERTIES,
        "group.initial.rebalance.delay.ms": "500",
        "group.consumer.session.timeout.ms": "10000",
        "min.insync.replicas": "2",
    }

    def __init__(self, seed: int, options: RunOptions | None = None) -> None:
        super().__init__(seed, options)
        servers = list(self.plan.brokers)
        damaged = self.checks.survivors.damaged
        self.producers = Clients(
            seed,
            self.server,
            {TOPIC: PARTITIONS},
            self.checks.has_losses,
            may_be_damaged=lambda: damaged.total() > 0,
            on_acknowledged=self.checks.on_acknowledged,
        )
        self.expiring = ExpiringOffsets(self.world, servers, TOPIC, PARTITIONS, seed) if seed >= SEEDS_FROM else None
        protocols: tuple[GroupProtocol, ...] = ("classic", "consumer")
        self.readers = [ReaderGroup(each, each, self.server, seed, 4) for each in protocols] if seed % 2 else []
        self.groups = [
            MemberGroup(name, list(kinds), self.world, servers, PARTITIONS, self._tables_of, seed)
            for name, kinds in (() if seed % 2 else KINDS.items())
        ]

    def _properties_of(self, number: int) -> Mapping[str, str]:
        if self.seed < SEEDS_FROM:
            return self.properties
        return {**self.properties, "offsets.retention.check.interval.ms": "1000"}

    def _drawn_plan(self) -> ClusterPlan:
        plan = ClusterPlan.drawn(self.seed, self.options)
        topics = (
            PlannedTopic(TOPIC, Durability.DISK, PARTITIONS, 3, 2),
            PlannedTopic(OFFSETS_TOPIC, Durability.DISK, OFFSETS_PARTITIONS, 3, 2),
        )
        return replace(plan, topics=topics, actions=tuple(each for each in plan.actions if each[1] in ACTIONS))

    @property
    def acknowledged(self) -> int:
        return len(self.producers.history.acknowledged) + sum(group.acknowledged for group in self.groups)

    def _execute(self) -> None:
        world = self.world
        world.boot_all()
        world.run(self.operator.create_topics(), timeout_s=30)
        hosts = [world.hosts[name] for name in (*PRODUCERS, *CONSUMERS)]
        for group in self.groups:
            group.topic_id = next(topic.id for topic in self.checks.image.topics() if topic.name == TOPIC)
            group.start(hosts)
        producing = []
        if self.readers:
            producing = [world.hosts[PRODUCERS[0]].spawn(self.producers.produce(PRODUCERS[0], "all"))]
        for readers in self.readers:
            readers.start(hosts)
        expiring = [world.hosts[OPERATOR].spawn(self.expiring.run())] if self.expiring is not None else []
        operating = world.hosts[OPERATOR].spawn(self.operator.work())
        world.run_for(CALM_S)
        self._start_faults()
        world.run_for(self.plan.ends_s)
        self._eventually("the operator's work ends", operating.done, 30)
        self._eventually("all partitions have a leader", self._all_are_led, 30)
        self._end("is_quiet")
        self.producers.is_over = True
        self._eventually("all is delivered or given up", lambda: all(task.done() for task in producing), 60)
        self._eventually("all members have their share", lambda: all(group.is_settled for group in self.groups), 90)
        world.run_for(3.0)  # every member reads once more
        self._eventually("all is processed", self._is_all_processed, 60)
        self._end("is_over")
        self._eventually("offsets expire", lambda: all(task.done() for task in expiring), 60)
        self._eventually("all replicas are in sync", self._is_whole, 60)
        self._compare_replicas()
        self._listen_to_silence()

    def _end(self, what: str) -> None:
        for group in (*self.groups, *self.readers, *([self.expiring] if self.expiring is not None else [])):
            setattr(group, what, True)

    def _is_all_processed(self) -> bool:
        return not any(self._unprocessed(readers) for readers in self.readers)

    def _unprocessed(self, readers: ReaderGroup) -> dict[bytes, Place]:
        acknowledged = self.producers.history.acknowledged
        return {value: place for value, place in acknowledged.items() if readers.processed.get(place) != value}

    def _state_text(self) -> str:
        lines = [super()._state_text(), *(group.state_text() for group in self.groups)]
        lines += [
            f"{each.name}: {len(each.processed)} processed in {each.lives} lives, not {self._unprocessed(each)}"
            for each in self.readers
        ]
        return "\n".join(lines)

    def check(self) -> None:
        if self.checks.losses:
            raise Violation("losses", f"nothing here may be lost: {self.checks.losses}")
        if self.acknowledged <= 5:
            raise Violation("liveness", f"only {self.acknowledged} commits or records were acknowledged")

    def _tables_of(self, group: str) -> Tables | None:
        """Returns the tables of the group's coordinator, if one is active."""
        topic = next((each for each in self.checks.image.topics() if each.name == OFFSETS_TOPIC), None)
        found = self.checks.image.partition(PartitionKey(topic.id, partition_of(group, 3))) if topic else None
        if found is None or not found.value.has_leader:
            return None
        name = self.plan.brokers[found.value.leader - 1]
        broker = self.programs[name].broker
        if broker is None or not self.world.hosts[name].is_running:
            return None
        shard = broker.groups._shards.get(partition_of(group, OFFSETS_PARTITIONS))
        is_led = shard is not None and shard.partition.leader_epoch == found.value.leader_epoch
        return shard.machine.tables if shard is not None and is_led and shard.state is State.SERVING else None
