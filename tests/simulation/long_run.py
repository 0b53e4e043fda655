"""A simulated cluster as in `cluster_run`, whose logs are long: segments roll every few records, expire after seconds,
are compacted and trimmed, while brokers fail, replicas move and transactions stay open.

    run = LongRun(seed)
    run.execute()             # a `Violation`, or any other error, is a fault of the brokers
    run.check()

Checked inside the brokers: `long_checks`. Checked of clients: `long_history`, and lookups by time against the records
that the leader's log holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from ottla.broker.partition.partition import Partition
from ottla.protocol.records.record import Record
from tests.simulation import long_plan
from tests.simulation.cluster_plan import CONSUMERS, OPERATOR, PRODUCERS, ClusterPlan, RunOptions
from tests.simulation.cluster_run import PROPERTIES, ClusterRun
from tests.simulation.committed import DamagedLogError, read_batches
from tests.simulation.compacted import written_batch
from tests.simulation.long_checks import LongChecks
from tests.simulation.long_clients import Isolation, LongClients
from tests.simulation.long_history import LongHistory, Sent
from tests.simulation.long_history import Partition as Place
from tests.simulation.long_operator import LongOperator
from tests.simulation.long_plan import BOTH, LATEST, RACKS
from tests.simulation.state_faults import SEEDS_FROM
from tests.simulation.violations import Violation

CALM_S = 1.0
TIMES = 6
ATTEMPTS = 5
COLD = {"ottla.tail.cache.bytes": "2048"}
"""Lets most reads go to the disk."""
READERS: dict[str, Isolation] = {CONSUMERS[0]: "read_committed", CONSUMERS[1]: "read_uncommitted"}
TRANSACTIONAL_IDS = ("first", "second")


class LongRun(ClusterRun):
    checks_type = LongChecks
    checks: LongChecks
    properties: Mapping[str, str] = {
        **PROPERTIES,
        "log.cleaner.backoff.ms": "400",
        "log.retention.check.interval.ms": "500",
        "ottla.flush.interval.ms": "700",
        "transaction.state.log.segment.bytes": "2048",
        "transaction.state.log.num.partitions": "2",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }

    def __init__(self, seed: int, options: RunOptions | None = None) -> None:
        super().__init__(seed, options)
        self.long_history = LongHistory(self.checks.has_losses)
        counts = self.clients.partition_counts
        damaged = self.checks.survivors.damaged
        self.long_clients = LongClients(
            seed,
            self.server,
            counts,
            self.long_history,
            passed=lambda at: self.checks.passed.get(at, 0),
            may_be_damaged=lambda: damaged.total() > 0,
            on_acknowledged=self.checks.on_acknowledged,
        )
        self.operator = LongOperator(seed, self.server, self.plan, self.clients, checks=self.checks)
        self._starts: dict[Place, int] = {}
        self._found: dict[Place, dict[int, Sent]] = {}

    def _drawn_plan(self) -> ClusterPlan:
        return long_plan.drawn_plan(self.seed, self.options)

    def _properties_of(self, number: int) -> Mapping[str, str]:
        cold = COLD if self.seed >= SEEDS_FROM and self.seed % 2 else {}
        return {**self.properties, **cold, "broker.rack": RACKS[number % len(RACKS)]}

    @property
    def has_state_faults(self) -> bool:
        return True

    @property
    def acknowledged(self) -> int:
        return self.long_history.acknowledged

    # -- the run ---------------------------------------------------------------------------------------------------

    def _execute(self) -> None:
        world, clients, hosts = self.world, self.long_clients, self.world.hosts
        world.boot_all()
        world.run(self.operator.create_topics(), timeout_s=30)
        writing = [hosts[name].spawn(clients.produce(hosts[name], self.plan.acks[name])) for name in PRODUCERS]
        writing += [
            hosts[host].spawn(clients.transact(hosts[host], name))
            for host, name in zip(PRODUCERS, TRANSACTIONAL_IDS, strict=False)
        ]
        racks = Random(f"{self.seed}/racks")
        reading = [
            hosts[name].spawn(clients.read(name, isolation, racks.choice(("", *RACKS))))
            for name, isolation in READERS.items()
        ]
        asking = hosts[CONSUMERS[0]].spawn(clients.look_up(hosts[CONSUMERS[0]]))
        operating = hosts[OPERATOR].spawn(self.operator.work())
        world.run_for(CALM_S)
        self._start_faults()
        world.run_for(self.plan.ends_s)
        clients.is_over = True
        self._eventually("the operator's work ends", operating.done, 30)
        self._eventually("all partitions have a leader", self._all_are_led, 30, meanwhile=self._give_up_what_is_lost)
        self._eventually("all is delivered or given up", lambda: all(task.done() for task in writing), 90)
        self._eventually("every transaction ends", lambda: not self.checks.open_transactions(), 60)
        self._eventually("all replicas are in sync", self._is_whole, 60)
        self._eventually("lookups end", asking.done, 30)
        self._found, self._starts = self._driven("all can be read", clients.read_all())
        self._driven("times can be looked up", self._compare_times())
        self._eventually("readers get everything", self._is_all_read, 30)
        for task in reading:
            task.cancel()
        self._eventually("readers end", lambda: all(task.done() for task in reading), 60)
        self._compare_replicas()
        self._listen_to_silence()

    def _is_all_read(self) -> bool:
        return all(
            not records or max(records) in seen.get(at, {})
            for seen in self.long_history.seen.values()
            for at, records in self._found.items()
        )

    def _leading(self) -> dict[Place, Partition]:
        found = {(p.topic.name, p.index): p for _, p in self._partitions() if p.leading is not None}
        return {at: partition for at, partition in found.items() if at[0] in self.clients.partition_counts}

    async def _compare_times(self) -> None:
        """The reference: the first record of the leader's log, in the order of offsets, that is not older."""
        rng = Random(f"{self.seed}/times")
        for at, partition in self._leading().items():
            try:
                records = records_of(partition)
            except DamagedLogError:
                continue
            times = [rng.choice(records).timestamp_ms + rng.randint(-1, 1) for _ in range(TIMES)] if records else []
            for asked_ms in times:
                await self._compare_time(at, partition, asked_ms)

    async def _compare_time(self, at: Place, partition: Partition, asked_ms: int) -> None:
        """Asks again if retention or a compaction has changed the log meanwhile: the reply may be about either log."""
        for _ in range(ATTEMPTS):
            records = records_of(partition)
            answer = await self.long_clients.offset_for(at, asked_ms)
            if records != records_of(partition):
                continue
            wanted = next(((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= asked_ms), None)
            if answer != wanted:
                raise Violation("times", f"{at}: {asked_ms} is at {answer}, not at {wanted}")
            return

    def _compare_replicas(self) -> None:
        """From where the last of them begins. Of compacted topics each replica keeps what it must."""
        replicas: dict[Place, list[tuple[str, Partition]]] = {}
        for name, partition in self._partitions():
            replicas.setdefault((partition.topic.name, partition.index), []).append((name, partition))
        for at, found in replicas.items():
            start = max(partition.log.start_offset for _, partition in found)
            contents: dict[str, list[bytes]] = {}
            for name, partition in found:
                try:
                    end = partition.high_watermark
                    if self.checks.is_compacted(at[0]):
                        self.checks.compare_compacted(partition, name)
                        continue
                    contents[name] = [each for _, each in read_batches(partition.log, start, end)]
                except DamagedLogError:
                    if not self.checks.survivors.damaged[name]:
                        raise
            if len({tuple(content) for content in contents.values()}) > 1:
                raise Violation("replicas", f"{at} differ in {sorted(contents)} from {start} on")

    # -- what clients are promised ---------------------------------------------------------------------------------

    def check(self) -> None:
        if self.acknowledged <= 20:
            raise Violation("liveness", f"only {self.acknowledged} records were acknowledged")
        self.long_history.check(self._found, self._starts, {LATEST, BOTH})
        for topic, partition in self._found:
            trimmed = self.checks.trimmed.get((topic, partition), 0)
            is_forgotten = self._starts[topic, partition] < trimmed
            if is_forgotten and not self.checks.may_forget_start(topic, partition, self.programs):
                text = f"{topic}-{partition} begins at {self._starts[topic, partition]}, and {trimmed} was reported"
                raise Violation("deleted records", text)
        self._check_lookups()

    def _check_lookups(self) -> None:
        """What was answered while all went on: the record at that offset has that time."""
        times = self.checks.timestamps()
        for at, asked_ms, offset, timestamp_ms in self.long_history.looked_up:
            if self.checks.has_losses(*at) or offset not in times.get(at, {}):
                continue
            if timestamp_ms < asked_ms or times[at][offset] != timestamp_ms:
                text = f"{at}: asked for {asked_ms}, told {timestamp_ms} at {offset}, which has {times[at][offset]}"
                raise Violation("times", text)


def records_of(partition: Partition) -> list[Record]:
    """Returns the records of a partition from its start to its high watermark, as its log holds them."""
    start, end = partition.log.start_offset, partition.high_watermark
    batches = [written_batch(*each) for each in read_batches(partition.log, start, end)]
    return [record for batch in batches for record in batch.records if record.offset >= start]
