"""Runs real brokers and real clients on simulated hosts while brokers are killed, lose power, are paused and isolated,
disks fail, fill up and are replaced, replicas move, and the coordination store is down, slow or loses replies.

    run = ClusterRun(seed)
    run.execute()             # a `Violation`, or any other error, is a fault of the brokers
    run.check()
    run.plan, run.history, run.world.now_s, run.fault_counts

Inside the brokers, `cluster_checks` checks each change of a role, a high watermark or a log. The guarantees to clients
are checked at the end: each record acknowledged under acks=all is present once, at its acknowledged offset and in
order; every record that a consumer ever read remains; a class loses only what it may lose (`survivors`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from random import Random
from typing import Any, TypeVar

from ottla.broker.partition.partition import Partition
from ottla.machines.controller.state import PartitionState
from ottla.protocol.model.durability import Durability
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.disk_fault_plan import SYNCED_QUEUES, ActiveDiskFaults, DiskFaultHooks, DiskFaultKind, PlannedDiskFault
from ottla.sim.fault_plan import PlannedFault
from ottla.sim.hosts import Program, SimHost
from ottla.sim.world import SimulationError, SimWorld, VirtualTimeoutError
from tests.simulation.cluster_checks import ClusterChecks
from tests.simulation.cluster_clients import Clients, History, Place
from tests.simulation.cluster_operator import Operator
from tests.simulation.cluster_plan import CONSUMERS, OPERATOR, PRODUCERS, ClusterPlan, RunOptions, StoreTrouble
from tests.simulation.committed import DamagedLogError, UnreadableLogError, read_batches
from tests.simulation.state_faults import SEEDS_FROM, StateFaults
from tests.simulation.violations import Violation

__all__ = ["ClusterRun", "RunOptions", "Violation"]

T = TypeVar("T")
PROBE_S = 0.5
QUIET_S = 2.0
QUIET_EVENTS_MAX = 60
PROPERTIES = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "log.retention.ms": "-1",
    "broker.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "2000",
}


class ClusterRun:
    """One seed."""

    properties: Mapping[str, str] = PROPERTIES
    checks_type: type[ClusterChecks] = ClusterChecks

    def __init__(self, seed: int, options: RunOptions | None = None) -> None:
        self.seed = seed
        self.options = options or RunOptions()
        self.plan = self._drawn_plan()
        self.world = SimWorld(seed)
        self.fault_counts: Counter[str] = Counter()
        """How often each fault was injected."""
        self.log: dict[Place, bytes] = {}
        """The records in the logs at the end."""
        self.server = ",".join(f"{name}:9092" for name in self.plan.brokers)
        self._troubles: ActiveDiskFaults | None = None
        self._set_up_brokers(Random(f"{seed}/setup"))
        self.state_faults = StateFaults(seed, self.world, self.programs, self.fault_counts, self.checks.survivors)
        counts = {topic.name: topic.partitions for topic in self.plan.topics}
        damaged = self.checks.survivors.damaged
        self.clients = Clients(
            seed,
            self.server,
            counts,
            self.checks.has_losses,
            may_be_damaged=lambda: damaged.total() > 0,
            on_acknowledged=self.checks.on_acknowledged,
        )
        self.operator = Operator(seed, self.server, self.plan, self.clients)

    def _drawn_plan(self) -> ClusterPlan:
        return ClusterPlan.drawn(self.seed, self.options)

    @property
    def history(self) -> History:
        return self.clients.history

    @property
    def acknowledged(self) -> int:
        return len(self.history.acknowledged)

    @property
    def leader_changes(self) -> int:
        """How often a partition got a new leader, or the same one in another epoch."""
        return sum(len(epochs) - 1 for epochs in self.checks.epochs_led.values())

    def _set_up_brokers(self, rng: Random) -> None:
        plan, world = self.plan, self.world
        self.store = SimCoordination(world.clock, seed=self.seed)
        faults = self.store.faults
        faults.delay_ms, faults.watch_lag_ms = plan.store_delay_ms, plan.watch_lag_ms
        faults.break_share, faults.expiry_slack_ms = plan.break_share, plan.expiry_slack_ms
        self.programs = {
            name: ClusterProgram(self.store, number, self._properties_of(number), on_disk=self._on_boot)
            for number, name in enumerate(plan.brokers, 1)
        }
        self.checks = self.checks_type(world, self.store, self.programs, self.properties)
        skews = Random(f"{self.seed}/skew")
        for name, program in self.programs.items():
            skew_ms = skews.choice((0, 0, 1, -1)) * skews.uniform(0, 5000)
            world.host(name, program=self._restarting(program), skew_ms=skew_ms, drift_ppm=rng.uniform(-100, 100))
        for name in plan.clients:
            world.host(name, skew_ms=rng.uniform(-500, 500), drift_ppm=rng.uniform(-100, 100))
        world.after(PROBE_S, self._probe)

    def _properties_of(self, number: int) -> Mapping[str, str]:
        return self.properties

    # -- a broker's process --------------------------------------------------------------------------------------

    def _restarting(self, program: ClusterProgram) -> Program:
        """Runs a broker. If its disk prevents the start, the process exits and is restarted a second later."""

        async def run(host: SimHost) -> None:
            try:
                await program(host)
            except OSError as error:
                if self._troubles is None or not self._troubles.is_bad(host):
                    raise
                self.world.note(f"{host.name} cannot start: {error}")
                self.fault_counts["could not start"] += 1
                self.world.after(0.0, self._end_process, host, host.incarnation)

        return run

    def _end_process(self, host: SimHost, incarnation: int) -> None:
        if host.is_running and host.incarnation == incarnation:
            host.kill()
            self.world.after(1.0, lambda: None if host.is_running else host.boot())

    def _on_boot(self, host: SimHost) -> None:
        self.checks.survivors.on_boot(host)
        self._set_speed(host)
        if self._troubles is not None:
            self._troubles.apply_to(host)

    def _set_speed(self, host: SimHost) -> None:
        for queue in SYNCED_QUEUES:
            host.disk.slow_down(queue, self.plan.sync_ms)

    # -- the run -------------------------------------------------------------------------------------------------

    def execute(self) -> None:
        with self.checks.watching(), self.state_faults.observing():
            try:
                with self.world:
                    self._execute()
            except SimulationError as error:
                if self.checks.violations:
                    raise self.checks.violations[0] from None
                if isinstance(error.__cause__, Violation):
                    raise error.__cause__ from None
                raise

    def _execute(self) -> None:
        world = self.world
        world.boot_all()
        world.run(self.operator.create_topics(), timeout_s=30)
        clients = self.clients
        producing = [world.hosts[name].spawn(clients.produce(name, self.plan.acks[name])) for name in PRODUCERS]
        consuming = [world.hosts[name].spawn(clients.consume(name)) for name in CONSUMERS]
        operating = world.hosts[OPERATOR].spawn(self.operator.work())
        self._start_faults()
        world.run_for(self.plan.ends_s)
        clients.is_over = True
        self._eventually("the operator's work ends", operating.done, 30)
        self._eventually("all partitions have a leader", self._all_are_led, 30, meanwhile=self._give_up_what_is_lost)
        self._eventually("all is delivered or given up", lambda: all(task.done() for task in producing), 45)
        self._eventually("all replicas are in sync", self._is_whole, 30)
        self.log = self._driven("all can be read", clients.read_all())
        self._driven("what was deleted is gone", self.operator.check_deleted())
        self._eventually("consumers get everything", self._all_is_seen, 30)
        for task in consuming:
            task.cancel()
        self._eventually("consumers end", lambda: all(task.done() for task in consuming), 60)
        self._compare_replicas()
        self._listen_to_silence()

    def _listen_to_silence(self) -> None:
        """Checks that an idle cluster is quiet: no work without a reason."""
        self.world.run_for(1.0)
        before = self.world.event_count
        self.world.run_for(QUIET_S)
        rate = (self.world.event_count - before) / QUIET_S / len(self.plan.brokers) ** 2
        if rate > QUIET_EVENTS_MAX:
            raise Violation("quiet", f"{rate:.0f} events a second for each pair of brokers, when nothing happens")

    def _eventually(
        self,
        what: str,
        is_reached: Callable[[], bool],
        timeout_s: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        deadline_s = self.world.now_s + timeout_s
        while not is_reached():
            if self.world.now_s > deadline_s:
                raise Violation("liveness", f"not within {timeout_s} s after the faults: {what}\n{self._state_text()}")
            if meanwhile is not None:
                meanwhile()
            self.world.run_for(0.25)

    def _driven(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self.world.run(work, timeout_s=60)
        except VirtualTimeoutError as error:
            raise Violation("liveness", f"{what}: {error}\n{self._state_text()}") from None

    # -- faults --------------------------------------------------------------------------------------------------

    def _start_faults(self) -> None:
        surroundings = DiskFaultHooks(
            may_destroy=self._may_destroy,
            on_destroyed=self._on_destroyed,
            on_struck=self._on_disk_struck,
            may_flip_in=self._has_a_disk_log,
            set_speed=self._set_speed,
        )
        if self.has_state_faults:
            self.state_faults.ends_s = self.world.now_s + self.plan.ends_s
        self.plan.faults.start(self.world, self._on_struck)
        self._troubles = self.state_faults.disks = self.plan.disk_faults.start(self.world, surroundings)
        for trouble in self.plan.store_troubles:
            self.world.after(trouble.at_s, self._trouble_store, trouble)

    @property
    def has_state_faults(self) -> bool:
        return self.seed >= SEEDS_FROM

    def _on_struck(self, fault: PlannedFault) -> None:
        self.fault_counts[fault.kind.value] += 1

    def _on_disk_struck(self, fault: PlannedDiskFault) -> None:
        self.fault_counts[fault.kind.value] += 1

    def _on_destroyed(self, fault: PlannedDiskFault) -> None:
        self.checks.holders.on_disk_lost(fault.host)
        if fault.kind is DiskFaultKind.WIPED_DISK:
            self.checks.survivors.wiped[fault.host] += 1
            self.programs[fault.host].directory += 1
        else:
            self.checks.survivors.damaged[fault.host] += 1

    def _has_a_disk_log(self, path: str) -> bool:
        disk_topics = [topic.name for topic in self.plan.topics if topic.durability is Durability.DISK]
        return any(topic.id.hex in path for topic in self.checks.image.topics() if topic.name in disk_topics)

    def _trouble_store(self, trouble: StoreTrouble) -> None:
        self.world.note(f"store: {trouble}")
        self.fault_counts[trouble.kind] += 1
        store = self.store
        client = self.programs[trouble.host].client if trouble.host else None
        match trouble.kind:
            case "store outage":
                store.stop()
                self.world.after(trouble.duration_s, store.start)
            case "forgotten history":
                store.forget_history()
                store.break_watches()
            case "store cut off" if client is not None:
                store.cut_off(client)
                self.world.after(trouble.duration_s, store.reconnect, client)
            case "lost lease":
                number = self.plan.brokers.index(trouble.host) + 1
                entry = self.checks.image.registration_entry(number)
                if entry is not None and entry.lease is not None:
                    store.lose_lease(entry.lease)

    def _may_destroy(self) -> bool:
        """Returns whether every partition has all its copies, so that one may be destroyed."""
        return self._all_are_in_sync() and not any(self._is_damaged(*each) for each in self._partitions())

    def _is_damaged(self, name: str, partition: Partition) -> bool:
        """Returns whether the log is damaged, also where nothing was read since."""
        if not self.checks.survivors.damaged[name]:
            return False
        try:
            for _ in read_batches(partition.log, partition.log.start_offset, partition.high_watermark):
                pass
        except UnreadableLogError:
            return True
        return False

    def _all_are_in_sync(self) -> bool:
        """Returns whether all replicas are in sync according to the store."""
        return all(self._is_in_sync(found.value) for _, found in self.checks.image.partitions())

    def _is_in_sync(self, state: PartitionState) -> bool:
        return (
            state.has_leader
            and not state.is_reassigning
            and {member.broker_id for member in state.isr} == set(state.replicas)
            and all(self.checks.survivors.is_running(member) for member in state.isr)
        )

    # -- inside the brokers --------------------------------------------------------------------------------------

    def _partitions(self) -> Iterator[tuple[str, Partition]]:
        for name, program in self.programs.items():
            if self.world.hosts[name].is_running and program.broker is not None:
                for partition in program.broker.context.partitions():
                    yield name, partition

    def _probe(self) -> None:
        for name, partition in self._partitions():
            self.checks.probe(partition, f"{name}/{self.world.hosts[name].incarnation}")
        self.world.after(PROBE_S, self._probe)

    def _all_are_led(self) -> bool:
        return all(found.value.has_leader for _, found in self.checks.image.partitions())

    def _give_up_what_is_lost(self) -> None:
        """Declares lost `cache` records as lost. `memory` partitions recover by themselves."""
        lost = []
        for key, found in self.checks.image.partitions():
            durability = self.checks.durability_of(key)
            is_lost = not self.checks.survivors.possible(found.value, durability)
            topic = self.checks.image.topic(key.topic_id)
            if durability is Durability.CACHE and not found.value.has_leader and is_lost and topic is not None:
                lost.append((topic.name, key.partition))
        if lost:
            self.world.run(self.operator.give_up(lost), timeout_s=30)

    def _is_whole(self) -> bool:
        """Returns whether all replicas are in sync, in the store and in fact, and have the same end."""
        if not self._all_are_in_sync():
            return False
        found: dict[tuple[object, int], list[Partition]] = {}
        for _, partition in self._partitions():
            found.setdefault((partition.topic.id, partition.index), []).append(partition)
        for key, state in self.checks.image.partitions():
            replicas = found.get((key.topic_id, key.partition), [])
            ends = {end for p in replicas for end in (p.log.end_offset, p.high_watermark, p.log.acknowledged_end)}
            is_led = sum(p.leading is not None for p in replicas) == 1
            if len(replicas) != len(state.value.replicas) or len(ends) > 1 or not is_led:
                return False
        return True

    def _state_text(self) -> str:
        lines = [f"{topic.name} {topic.id.hex}" for topic in self.checks.image.topics()]
        lines += [f"{key.topic_id.hex}-{key.partition}: {found.value}" for key, found in self.checks.image.partitions()]
        for name, p in self._partitions():
            ends = f"{p.log.start_offset} to {p.log.end_offset}, acknowledged {p.log.acknowledged_end}"
            where = f"{name} {p.topic.name}-{p.index}: {p.role.name} in epoch {p.leader_epoch}"
            lines.append(f"{where}, {ends}, watermark {p.high_watermark}, failed {p.log.failed}")
        return "\n".join(lines)

    def _all_is_seen(self) -> bool:
        ends: dict[tuple[str, int], int] = {}
        for topic, partition, offset in self.log:
            ends[topic, partition] = max(offset, ends.get((topic, partition), 0))
        for seen in self.history.seen.values():
            if any((topic, partition, last) not in seen for (topic, partition), last in ends.items()):
                return False
        return True

    def _compare_replicas(self) -> None:
        contents: dict[tuple[str, int], tuple[str, list[bytes]]] = {}
        for name, partition in self._partitions():
            try:
                found = read_batches(partition.log, partition.log.start_offset, partition.high_watermark)
                content = [batch for _, batch in found]
            except DamagedLogError:
                if not self.checks.survivors.damaged[name]:
                    raise
                continue  # no read there since
            first, known = contents.setdefault((partition.topic.name, partition.index), (name, content))
            if known != content:
                raise Violation("replicas", f"{partition.topic.name}-{partition.index} of {first} and {name} differ")

    # -- guarantees to clients -------------------------------------------------------------------------------------

    def check(self) -> None:
        history, log = self.history, self.log
        if len(history.acknowledged) <= 20:
            raise Violation("liveness", f"only {len(history.acknowledged)} records were acknowledged")
        self._check_once()
        lost = {value: place for value, place in history.acknowledged.items() if log.get(place) != value}
        lost = {value: place for value, place in lost.items() if not self._may_be_lost(place)}
        if lost:
            raise Violation("acknowledged", f"not where the producer was told: {lost}")
        self._check_weakly_acknowledged()
        for name, seen in history.seen.items():
            gone = {place: value for place, value in seen.items() if log.get(place) != value}
            gone = {place: value for place, value in gone.items() if not self._may_be_lost(place)}
            if gone:
                raise Violation("seen", f"{name} saw what is not there: {gone}")
            missed = {place for place in log.keys() - seen.keys() if not self.checks.has_losses(*place[:2])}
            if missed:
                raise Violation("seen", f"{name} did not see {sorted(missed)}")

    def _may_be_lost(self, place: Place) -> bool:
        return any(loss.covers(*place) for loss in self.checks.losses)

    def _check_once(self) -> None:
        """Checks that idempotent producers have no duplicate records and all of them in order."""
        values = set(self.log.values())
        if unknown := values - self.history.known:
            raise Violation("written", f"nobody sent these, or was told that they are not written: {unknown}")
        numbers: dict[tuple[bytes, str, int], list[int]] = {}
        for (topic, partition, _), value in sorted(self.log.items()):
            producer, _, number = value[:-1].split()
            numbers.setdefault((producer, topic, partition), []).append(int(number))
        for (producer, topic, partition), found in numbers.items():
            if self.plan.acks[producer.decode().partition("/")[0]] != "all":
                continue
            if len(set(found)) < len(found):
                raise Violation("once", f"{producer!r} has records twice in {topic}-{partition}: {found}")
            if found != sorted(found):
                raise Violation("order", f"{producer!r} is out of order in {topic}-{partition}: {found}")

    def _check_weakly_acknowledged(self) -> None:
        """Checks that acks=1 holds like acks=all as long as the leader does not change."""
        led_once = {key for key, epochs in self.checks.epochs_led.items() if len(epochs) == 1}
        names = {(self._name_of(key.topic_id), key.partition) for key in led_once}
        for value, (topic, partition, offset) in self.history.weakly_acknowledged.items():
            if offset >= 0 and (topic, partition) in names and self.log.get((topic, partition, offset)) != value:
                raise Violation("acks=1", f"{value!r} is not at {topic}-{partition}, {offset}, and nobody else led")

    def _name_of(self, topic_id: object) -> str:
        return next((topic.name for topic in self.checks.image.topics() if topic.id == topic_id), "")
