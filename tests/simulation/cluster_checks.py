"""Invariants inside the brokers of a simulated cluster, checked on every relevant event.

    checks = ClusterChecks(world, store, programs)
    with checks.watching():       # wraps role, high watermark and append methods of all brokers
        ...
    checks.violations             # the first ends the run

Each check has a name, with which its violation begins:

    one leader an epoch     no two processes lead a partition in one epoch
    election                a new leader was in sync or eligible, and still has its data
    watermark               never decreases within an epoch, and no member of the stored ISR is behind it, by its class
    holders                 enough logs hold the records below the high watermark, whatever the stored ISR is
    survivors               no record counts as lost while a living log that was in sync holds all of them
    joining                 a replica that joins an ISR has everything below the high watermark
    acknowledged            a record acknowledged to a producer is below the high watermark
    committed               records below a high watermark are present, byte for byte, in every later leader
    one history an epoch    an offset of an epoch has the same content in every replica
    goes on above           a `memory` log that lost everything restarts above all its earlier offsets
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

from ottla.broker.partition.follower_partition import FollowerPartition
from ottla.broker.partition.partition import Partition
from ottla.broker.storage.any_log import AnyLog
from ottla.broker.storage.file_log import FileLog
from ottla.broker.storage.memory_log import MemoryLog
from ottla.coordination.port import Batch
from ottla.machines.controller import keys
from ottla.machines.controller.image import ClusterImage
from ottla.machines.controller.rules import rules_of
from ottla.machines.controller.state import Member, PartitionKey, PartitionState, Registration
from ottla.machines.replication import LeaderReplication
from ottla.protocol.model.durability import Durability
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.produce_run import ProduceRun
from ottla.sim.cluster_host import ClusterProgram
from ottla.sim.coordination import SimCoordination
from ottla.sim.hosts import SimHost
from ottla.sim.world import SimWorld
from tests.simulation.committed import Committed
from tests.simulation.holders import Holders
from tests.simulation.survivors import Survivors
from tests.simulation.violations import Violation


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a durability class was allowed to lose, because no replica had them any more."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    at_s: float

    def covers(self, topic: str, partition: int, offset: int) -> bool:
        return (topic, partition) == (self.topic, self.partition) and self.first_offset <= offset < self.end_offset


class ClusterChecks:
    def __init__(
        self,
        world: SimWorld,
        store: SimCoordination,
        programs: Mapping[str, ClusterProgram],
        defaults: Mapping[str, str],
    ) -> None:
        self._world = world
        self._store = store
        self._programs = programs
        self._defaults = defaults
        self.image = ClusterImage()
        """The current state of the store, which brokers may not have seen yet."""
        self.survivors = Survivors()
        self.holders = Holders(world, programs)
        self.violations: list[Violation] = []
        self.losses: list[Loss] = []
        self.epochs_led: dict[PartitionKey, set[int]] = {}
        self._leaders: dict[tuple[PartitionKey, int], str] = {}
        self._newest: dict[PartitionKey, tuple[int, AnyLog, str]] = {}
        """The latest epoch that has a leader, with that leader's log."""
        self._may_lose: dict[tuple[PartitionKey, int], bool] = {}
        self._watermarks: dict[tuple[str, PartitionKey, int], int] = {}
        self._risen: dict[tuple[str, PartitionKey], tuple[int, int]] = {}
        """The high watermark of each process, and the epoch in which it reached that value."""
        self._lost: dict[PartitionKey, list[tuple[int, int]]] = {}
        """Permitted losses: (epoch of the first leader without the records, first lost offset)."""
        self._committed: dict[PartitionKey, Committed] = {}
        self._contents: dict[tuple[PartitionKey, int, int], bytes] = {}
        self._names = dict(enumerate(programs, 1))
        self._in_sync_at_commit: dict[PartitionKey, set[Member]] = {}
        self._lagged: dict[PartitionKey, set[Member]] = {}
        """Members that a leader has removed from the ISR since the last commit."""
        store.observers.append(self._on_transaction)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, hook in self._hooks():
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, hook(original))
            yield

    def _hooks(self) -> list[tuple[type, str, Callable[..., Any]]]:
        """The methods that are watched, each with the function that wraps it."""
        return [
            (Partition, "lead", self._around_lead),
            (Partition, "on_watermark", self._before_watermark),
            (FollowerPartition, "_follow_marks", self._around_marks),
            (FollowerPartition, "_give_up_from", self._around_marks),
            (FileLog, "append", self._around_append),
            (MemoryLog, "append", self._around_append),
            (FileLog, "append_run", self._around_append_run),
            (MemoryLog, "append_run", self._around_append_run),
            (SimHost, "_bury", self.holders.around_bury),
            (SimHost, "cut_power", self.holders.around_cut_power),
        ]

    def durability_of(self, key: PartitionKey) -> Durability:
        topic = self.image.topic(key.topic_id)
        return Durability.DISK if topic is None else rules_of(topic.configs, self._defaults).durability

    def _committed_of(self, key: PartitionKey) -> Committed:
        found = self._committed.get(key)
        if found is None:
            found = self._committed[key] = self._new_committed(key)
        return found

    def _new_committed(self, key: PartitionKey) -> Committed:
        return Committed()

    def has_losses(self, topic: str, partition: int) -> bool:
        return any((loss.topic, loss.partition) == (topic, partition) for loss in self.losses)

    def _violated(self, checker: str, key: PartitionKey, text: str) -> None:
        topic = self.image.topic(key.topic_id)
        name = topic.name if topic is not None else key.topic_id.hex
        text = f"{name}-{key.partition} at {self._world.now_s:.6f} s: {text}"
        self.violations.append(Violation(checker, text))
        self._world.fail(self._process(), f"{checker}: {text}", None)

    def _process(self) -> str:
        running = self._world.running
        return "nobody" if running is None else f"{running.host.name}/{running.host.incarnation}"

    def _may_be_damaged(self, process: str) -> bool:
        return bool(self.survivors.damaged[process.partition("/")[0]])

    # -- the store ---------------------------------------------------------------------------------------------

    def _on_transaction(self, batch: Batch) -> None:
        before: dict[PartitionKey, PartitionState] = {}
        for change in batch.changes:
            key = keys.read_partition(change.key.removeprefix("partitions/"))
            found = self.image.partition(key) if key is not None else None
            if key is not None and found is not None:
                before[key] = found.value
        self.image.apply(batch.changes)
        for change in batch.changes:
            registered = _registered(self.image, change.key)
            if registered is not None and change.entry is not None and change.entry.lease is not None:
                self.survivors.on_registered(registered, self._store.holder_of(change.entry.lease).name)
        for key, old in before.items():
            found = self.image.partition(key)
            if found is not None and found.value.leader_epoch != old.leader_epoch:
                self._on_election(key, old, found.value)
            elif found is not None:
                self._on_isr(key, old, found.value)

    def _on_isr(self, key: PartitionKey, old: PartitionState, new: PartitionState) -> None:
        """Checks that a new ISR member has everything below the high watermark: from now on it may be elected."""
        self._lagged.setdefault(key, set()).update(set(old.isr) - set(new.isr))
        known = {member.broker_id for member in old.isr}
        committed = self._committed_of(key)
        for member in new.isr:
            replica = self._replica_of(key, member) if member.broker_id not in known else None
            if replica is not None and replica.log.acknowledged_end < committed.end:
                text = f"{member} joins the ISR with {replica.log.acknowledged_end} of {committed.end}"
                self._violated("joining", key, text)

    def _on_election(self, key: PartitionKey, old: PartitionState, new: PartitionState) -> None:
        if new.leader_epoch < old.leader_epoch:
            self._violated("election", key, f"epoch {new.leader_epoch} follows {old.leader_epoch}")
        durability = self.durability_of(key)
        survivors = self.survivors.certain(old, durability)
        # Records lost before an epoch in which no leader started are found missing in a later epoch.
        is_lost = self._may_lose.get((key, old.leader_epoch), False) and not self._was_led(key, old.leader_epoch)
        self._may_lose[key, new.leader_epoch] = (is_lost or not survivors) and durability is not Durability.DISK
        candidates = {member.broker_id for member in self.survivors.possible(old, durability)}
        # A dead incarnation may be elected until its lease expires. It never starts to lead.
        is_same = new.leader_member in (*old.isr, *old.eligible)
        if new.has_leader and survivors and new.leader not in candidates and not is_same:
            text = f"broker {new.leader} leads in epoch {new.leader_epoch}; all is with {survivors} of {old}"
            self._violated("election", key, text)

    def _was_led(self, key: PartitionKey, epoch: int) -> bool:
        return epoch in self.epochs_led.get(key, ())

    # -- roles and watermarks ------------------------------------------------------------------------------------

    def _around_lead(self, original: Callable[..., None]) -> Callable[..., None]:
        def lead(partition: Partition, leading: LeaderReplication, leader_epoch: int) -> None:
            original(partition, leading, leader_epoch)
            self._on_lead(partition, leader_epoch)

        return lead

    def _on_lead(self, partition: Partition, epoch: int) -> None:
        key, process = _key_of(partition), self._process()
        first = self._leaders.setdefault((key, epoch), process)
        if first != process:
            self._violated("one leader an epoch", key, f"{first} and {process} both lead in epoch {epoch}")
        self.epochs_led.setdefault(key, set()).add(epoch)
        if key in self._newest and self._newest[key][0] > epoch:
            return  # deposed before it started: it may act as leader until it learns of that, but commits nothing
        self._newest[key] = epoch, partition.log, process
        committed = self._committed_of(key)
        missing = committed.first_missing(partition.log, may_be_damaged=self._may_be_damaged(process))
        if missing is not None:
            self._on_missing(partition, epoch, committed, *missing)

    def _on_missing(self, partition: Partition, epoch: int, committed: Committed, offset: int, why: str) -> None:
        key = _key_of(partition)
        if not self._may_lose.get((key, epoch), False):
            text = f"{self._process()} leads in epoch {epoch} without offset {offset} of those below {committed.end}"
            batch = committed.batches.get(offset)
            of_epoch = f", which was written in epoch {batch.epoch}" if batch is not None else ""
            self._violated("committed", key, f"{text}{of_epoch}: {why}")
            return
        self._look_for_holder(partition, committed)
        self.losses.append(Loss(partition.topic.name, key.partition, offset, committed.end, self._world.now_s))
        self._world.note(f"{self.losses[-1]}")
        self._lost.setdefault(key, []).append((epoch, offset))
        if self.durability_of(key) is not Durability.MEMORY:
            committed.forget_from(offset)
            return
        if partition.log.start_offset < committed.end:
            text = f"epoch {epoch} goes on at {partition.log.end_offset}, and offsets up to {committed.end} were there"
            self._violated("goes on above", key, text)
        committed.begin_again(partition.log.start_offset)

    def _look_for_holder(self, partition: Partition, committed: Committed) -> None:
        """Nothing is lost while a living log holds all of it, of a broker that was in sync when the last of it was
        committed. A broker that has registered again since, or that a leader has taken out for its lag, does not count:
        nobody can know what it has."""
        key = _key_of(partition)
        counting = self._in_sync_at_commit.get(key, set()) - self._lagged.get(key, set())
        names = [self._names[number] for number in partition.placement.replicas]
        for name, other in self.holders.living(key, names):
            registration = self.image.registration(other._node_id)
            is_whole = other is not partition and other.log.acknowledged_end >= committed.end > 0
            counts = registration is not None and registration.member in counting
            if is_whole and counts and committed.first_missing(other.log) is None:
                text = f"{self._process()} leads in epoch {partition.leader_epoch} without what {name} holds"
                self._violated("survivors", key, f"{text}, up to {committed.end}")

    def _before_watermark(self, original: Callable[[Partition], None]) -> Callable[[Partition], None]:
        def on_watermark(partition: Partition) -> None:
            if partition.leading is not None:
                self._on_watermark(partition)
                self._on_committed(partition)
            original(partition)

        return on_watermark

    def _around_marks(
        self, original: Callable[[FollowerPartition, Any], None]
    ) -> Callable[[FollowerPartition, Any], None]:
        """Checks a follower's high watermark when it adopts the leader's or lowers its own for a truncation."""

        def change_mark(following: FollowerPartition, argument: Any) -> None:
            original(following, argument)
            self._on_watermark(cast("Partition", following._partition))

        return change_mark

    def probe(self, partition: Partition, process: str) -> None:
        """Called periodically, for state that no event reveals."""
        self._note_watermark(partition, process)

    def _on_watermark(self, partition: Partition) -> None:
        self._note_watermark(partition, self._process())

    def _note_watermark(self, partition: Partition, process: str) -> None:
        key, epoch, watermark = _key_of(partition), partition.leader_epoch, partition.high_watermark
        before = self._watermarks.get((process, key, epoch), 0)
        if watermark < before and not self._may_go_back(partition, process, before):
            self._violated("watermark", key, f"of {process} went back from {before} to {watermark} in epoch {epoch}")
        self._watermarks[process, key, epoch] = watermark
        if watermark != self._risen.get((process, key), (-1, -1))[0]:
            self._risen[process, key] = watermark, epoch

    def _may_go_back(self, partition: Partition, process: str, watermark: int) -> bool:
        """Returns whether a follower may lower its high watermark: it was away during a permitted loss, or its log is
        damaged and is copied again from the leader. In both cases it serves no reader before it is in sync."""
        if partition.following is None or self._is_in_sync(partition):
            return False
        if isinstance(partition.log, FileLog) and partition.log.damages:
            return True
        key = _key_of(partition)
        since = self._risen[process, key][1]
        return any(since < epoch <= partition.leader_epoch and at < watermark for epoch, at in self._lost.get(key, ()))

    def _is_in_sync(self, partition: Partition) -> bool:
        """As the store has it: an ISR may still name an earlier incarnation of the broker, which had the data."""
        found, registration = self.image.partition(_key_of(partition)), self.image.registration(partition._node_id)
        return found is not None and registration is not None and registration.member in found.value.isr

    def _on_committed(self, partition: Partition) -> None:
        """Called when a leader's high watermark may have moved, before anybody is notified."""
        key, epoch, watermark = _key_of(partition), partition.leader_epoch, partition.high_watermark
        committed = self._committed_of(key)
        if watermark <= max(committed.end, partition.log.start_offset):
            return  # nothing new is below it
        found = self.image.partition(key)
        if found is None:
            return  # deleted
        if found.value.leader_epoch == epoch:
            for member in found.value.isr:
                self._compare_end(partition, member, watermark)
        newest_epoch, log, process = self._newest[key]
        before = committed.end
        committed.extend(partition.log, watermark)
        if found.value.leader_epoch == epoch:
            self._in_sync_at_commit[key] = set(found.value.isr)
            self._lagged.pop(key, None)
            self._count_holders(partition, found.value, max(before, partition.log.start_offset))
        if newest_epoch > epoch:
            missing = committed.first_missing(log, may_be_damaged=self._may_be_damaged(process))
            if missing is not None:
                text = f"{self._process()} moved it to {watermark} in epoch {epoch}, but {process} leads in epoch"
                self._violated("committed", key, f"{text} {newest_epoch} without offset {missing[0]}: {missing[1]}")

    def _count_holders(self, partition: Partition, state: PartitionState, begin: int) -> None:
        """Looks into the logs themselves: enough of them hold what is committed, whatever the stored ISR is."""
        key, durability = _key_of(partition), self.durability_of(_key_of(partition))
        topic = self.image.topic(key.topic_id)
        names = [name for name in (self._names[number] for number in state.replicas) if name in self._programs]
        if topic is None or self.holders.has_lost(names, durability):
            return
        wanted = rules_of(topic.configs, self._defaults).min_insync(state)
        found = self.holders.count(key, names, begin, self._committed_of(key))
        if found < wanted:
            text = f"{self._committed_of(key).end} in epoch {partition.leader_epoch}: {found} logs hold what is below"
            self._violated("holders", key, f"{text}, and min.insync.replicas is {wanted}")

    def on_acknowledged(self, topic: str, partition: int, offset: int) -> None:
        """Called when a producer gets an acknowledgement under acks=all."""
        found = next((each for each in self.image.topics() if each.name == topic), None)
        if found is None or self.has_losses(topic, partition):
            return
        key = PartitionKey(found.id, partition)
        end = self._committed_of(key).end
        if offset >= end:
            self._violated("acknowledged", key, f"offset {offset}, and the watermark has never been above {end}")

    def _compare_end(self, partition: Partition, member: Member, watermark: int) -> None:
        replica = self._replica_of(_key_of(partition), member)
        if replica is not None and replica.log.acknowledged_end < watermark:
            end, epoch = replica.log.acknowledged_end, partition.leader_epoch
            text = f"{watermark} in epoch {epoch} is above {end}, the end of {member} of the stored ISR"
            self._violated("watermark", _key_of(partition), text)

    def _replica_of(self, key: PartitionKey, member: Member) -> Partition | None:
        """Returns the member's replica if its process runs. A dead process keeps what its class keeps."""
        if not self.survivors.is_running(member):
            return None
        process = self.survivors.process_of(member)
        assert process is not None
        broker = self._programs[process.host.name].broker
        topic = broker.topics.by_id(key.topic_id) if broker is not None else None
        return topic.partition(key.partition) if topic is not None else None

    # -- appends -----------------------------------------------------------------------------------------------

    def _around_append(self, original: Callable[..., None]) -> Callable[..., None]:
        def append(log: AnyLog, header: Any, batch: Any) -> None:
            self._on_appended(log, batch)
            original(log, header, batch)

        return append

    def _around_append_run(self, original: Callable[..., None]) -> Callable[..., None]:
        def append_run(log: AnyLog, run: ProduceRun) -> None:
            for batch in run.batches:
                self._on_appended(log, batch)
            original(log, run)

        return append_run

    def _on_appended(self, log: AnyLog, batch: Any) -> None:
        header = read_header(batch)
        key = PartitionKey(log.key.topic_id, log.key.partition)
        content = blake2b(batch, digest_size=8).digest()
        first = self._contents.setdefault((key, header.leader_epoch, header.base_offset), content)
        if first != content:
            text = f"{self._process()} writes other bytes at offset {header.base_offset} of epoch {header.leader_epoch}"
            self._violated("one history an epoch", key, text)


def _key_of(partition: Partition) -> PartitionKey:
    return PartitionKey(partition.topic.id, partition.index)


def _registered(image: ClusterImage, key: str) -> Registration | None:
    return next((found for found in image.registrations() if keys.broker(found.broker_id) == key), None)
