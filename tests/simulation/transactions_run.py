"""A simulated cluster as in `cluster_run`, in which transactional producers write to several topics.

    run = TransactionsRun(seed)
    run.execute()             # a `Violation`, or any other error, is a fault of the brokers
    run.check()

The producers are those of `transactions_producers` and, with odd seeds, half of them Ottla's own
(`transactions_clients`); the readers of both isolation levels are Ottla's consumers. The faults are those of
`cluster_plan`. `transactions_history` checks what clients observe; inside the brokers, all of `cluster_checks` and
`transactions_checks` is checked, also for `__transaction_state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Literal

from ottla.broker.coordinators.led_shard import State
from ottla.broker.storage.batch_effects import marker_in
from ottla.broker.transactions.settings import STATE_TOPIC
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import CorruptBatchError
from ottla.machines.controller.state import PartitionKey
from ottla.machines.groups import encoding
from ottla.machines.groups.placement import OFFSETS_TOPIC
from ottla.machines.groups.records import OffsetRecord
from ottla.machines.transactions.records import TransactionState
from ottla.protocol.model.durability import Durability
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.record import decode_batch
from ottla.sim.hosts import SimHost
from tests.simulation.cluster_clients import METADATA_AGE_MS, started
from tests.simulation.cluster_plan import CONSUMERS, OPERATOR, PRODUCERS, ClusterPlan, PlannedTopic, RunOptions
from tests.simulation.cluster_run import PROPERTIES, ClusterRun
from tests.simulation.transactions_anomalies import check_anomalies
from tests.simulation.transactions_checks import TransactionChecks
from tests.simulation.transactions_clients import ClientWorker
from tests.simulation.transactions_history import Outcome, TransactionHistory, Truth
from tests.simulation.transactions_producers import Places, Worker
from tests.simulation.transactions_wire import Wire
from tests.simulation.violations import Violation

TOPICS = {"orders": 2, "payments": 2}
WORKERS = 4
STROKE_SHARE = 0.05
CALM_S = 2.0
"""Time without faults at the start."""
ACTIONS = ("reassign", "prefer leaders")
Isolation = Literal["read_committed", "read_uncommitted"]
READERS: dict[str, Isolation] = {"consumer-1": "read_committed", "consumer-2": "read_uncommitted"}


class TransactionsRun(ClusterRun):
    checks_type = TransactionChecks
    checks: TransactionChecks
    properties: Mapping[str, str] = {**PROPERTIES, "min.insync.replicas": "2"}

    def __init__(self, seed: int, options: RunOptions | None = None) -> None:
        super().__init__(seed, options)
        self.transactions = TransactionHistory()
        self.truth = Truth()
        hosts = [self.world.hosts[name] for name in PRODUCERS]
        places = Places(list(self.plan.brokers), TOPICS, hosts, self._leader_of)
        self.workers: list[Worker | ClientWorker] = []
        for number in range(1, WORKERS + 1):
            is_our_client = seed % 2 == 1 and number > WORKERS // 2
            kind = ClientWorker if is_our_client else Worker
            self.workers.append(kind(f"worker-{number}", seed, self.world, self.transactions, places))
        self._is_over = False
        self._strokes = Random(f"{seed}/strokes")
        self._strokes_left = self._strokes.choice((0, 2, 5))

    def _drawn_plan(self) -> ClusterPlan:
        plan = ClusterPlan.drawn(self.seed, self.options)
        counts = {**TOPICS, STATE_TOPIC: 2, OFFSETS_TOPIC: 2}
        topics = tuple(PlannedTopic(name, Durability.DISK, count, 3, 2) for name, count in counts.items())
        return replace(plan, topics=topics, actions=tuple(each for each in plan.actions if each[1] in ACTIONS))

    @property
    def acknowledged(self) -> int:
        return self.transactions.count(Outcome.COMMITTED)

    def _leader_of(self, topic: str, index: int) -> str | None:
        """The leader according to the store: metadata requests return this or a slightly older state."""
        for key, found in self.checks.image.partitions():
            if key.partition == index and self._name_of(key.topic_id) == topic:
                return self.plan.brokers[found.value.leader - 1] if found.value.has_leader else None
        return None

    # -- the run ---------------------------------------------------------------------------------------------------

    def _execute(self) -> None:
        world = self.world
        world.boot_all()
        world.run(self.operator.create_topics(), timeout_s=30)
        for worker in self.workers:
            worker.start()
        reading = [world.hosts[name].spawn(self._read(name, isolation)) for name, isolation in READERS.items()]
        auditing = [world.hosts[CONSUMERS[0]].spawn(work) for work in (self._audit(), self._read_again_and_again())]
        operating = world.hosts[OPERATOR].spawn(self.operator.work())
        world.run_for(CALM_S)
        self._start_faults()
        self.checks.on_step = self._on_step
        world.run_for(self.plan.ends_s)
        self.checks.on_step = None
        before = self.acknowledged
        self._eventually("transactions are committed again", lambda: self.acknowledged > before, 60)
        for worker in self.workers:
            worker.is_over = True
        self._eventually("the operator's work ends", operating.done, 30)
        self._eventually("all partitions have a leader", self._all_are_led, 30)
        self._eventually("all producers end", lambda: all(worker.is_done for worker in self.workers), 90)
        self._eventually("every transaction ends", self._is_all_ended, 60)
        self._eventually("all replicas are in sync", self._is_whole, 60)
        self.truth = self._read_logs()
        self._eventually("readers get everything", self._is_all_read, 30)
        self._is_over = True
        self._driven("offsets are read", self._read_last_offsets())
        self._driven("all is read from the beginning", self._read_from_the_beginning())
        for task in reading:
            task.cancel()
        self._eventually("readers end", lambda: all(task.done() for task in (*reading, *auditing)), 60)
        self._compare_replicas()
        self._listen_to_silence()

    def _on_step(self, what: str, key: PartitionKey) -> None:
        """Sometimes kills a leader right after it has appended a decision or a marker, the most critical time."""
        found, rng = self.checks.image.partition(key), self._strokes
        if found is None or self._strokes_left == 0 or rng.random() > STROKE_SHARE:
            return
        host = self.world.hosts[self.plan.brokers[found.value.leader - 1]]
        self._strokes_left -= 1
        self.world.after(rng.choice((0.0, 0.001, 0.01)), self._strike, host, host.incarnation, what)

    def _strike(self, host: SimHost, incarnation: int, what: str) -> None:
        if host.is_running and host.incarnation == incarnation and not host.is_paused:
            self.world.note(f"{host.name} is killed at a {what}")
            self.fault_counts[f"kill at a {what}"] += 1
            host.kill()
            self.world.after(self._strokes.uniform(0.2, 3.0), lambda: None if host.is_running else host.boot())

    def _is_all_ended(self) -> bool:
        if self.checks.open_transactions():
            return False
        states = [
            transaction.state
            for name, program in self.programs.items()
            if self.world.hosts[name].is_running and program.broker is not None
            for shard in program.broker.transactions._shards.values()
            if shard.state is State.SERVING
            for transaction in shard.machine.tables.values()
        ]
        return not any(state is TransactionState.ONGOING or state.is_prepared for state in states)

    def _is_all_read(self) -> bool:
        return not any(self._unread(name) for name in READERS)

    def _unread(self, name: str) -> object:
        is_committed_only = READERS[name] == "read_committed"
        return self.transactions.unseen(self.truth, name, committed_only=is_committed_only)

    def _state_text(self) -> str:
        lines = [super()._state_text()]
        lines += [f"open in {where}: {producers}" for where, producers in self.checks.open_transactions().items()]
        for name, program in self.programs.items():
            if self.world.hosts[name].is_running and program.broker is not None:
                for index, shard in program.broker.transactions._shards.items():
                    known = shard.machine.tables.items()
                    lines += [f"{name} {STATE_TOPIC}-{index} {shard.state.name}: {each[0]} {each[1]}" for each in known]
        lines += [f"{name} has not read {self._unread(name)}" for name in READERS]
        return "\n".join(lines)

    def check(self) -> None:
        if self.checks.losses:
            raise Violation("losses", f"nothing here may be lost: {self.checks.losses}")
        self.transactions.check(self.truth)
        check_anomalies(
            self.transactions, self.truth, {name: level == "read_committed" for name, level in READERS.items()}
        )

    # -- readers ---------------------------------------------------------------------------------------------------

    async def _read(self, name: str, isolation: Isolation) -> None:
        consumer = await self._consumer(isolation)
        try:
            while True:
                await self._read_some(name, consumer, committed_only=isolation == "read_committed")
        finally:
            await consumer.close()

    async def _read_again_and_again(self) -> None:
        """Reads from the beginning repeatedly: an old decision must hold for every reader, also after a restart."""
        rng = Random(f"{self.seed}/again")
        times = 0
        while not self._is_over:
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            times += 1
            consumer = await self._consumer("read_committed")
            for _ in range(8):
                await self._read_some(f"late-{times}", consumer, committed_only=True)
            await consumer.close()

    async def _read_from_the_beginning(self) -> None:
        consumer = await self._consumer("read_committed")
        while self.transactions.unseen(self.truth, "last", committed_only=True):
            await self._read_some("last", consumer, committed_only=True)
        await consumer.close()

    async def _consumer(self, isolation: Isolation) -> Consumer:
        consumer = await started(
            partial(
                Consumer,
                self.server,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                request_timeout_ms=3000,
                connect_timeout_ms=2000,
                metadata_max_age_ms=METADATA_AGE_MS,
            )
        )
        consumer.subscribe(list(TOPICS))
        return consumer

    async def _read_some(self, name: str, consumer: Consumer, *, committed_only: bool) -> None:
        try:
            records = await consumer.fetch_records(100, timeout_ms=500)
        except CorruptBatchError:
            if not self.checks.survivors.damaged.total():
                raise
            await asyncio.sleep(0.5)  # a leader that finds damage reports an error and resigns
            return
        for record in records:
            assert record.value is not None
            place = record.topic, record.partition, record.offset
            self.transactions.saw(name, place, record.value, committed_only=committed_only)

    async def _audit(self) -> None:
        """Reads the offsets that transactions committed."""
        rng = Random(f"{self.seed}/audit")
        wires = {worker.name: Wire(worker.name, self.plan.brokers, self._leader_of, rng) for worker in self.workers}
        while not self._is_over:
            await asyncio.sleep(rng.choice((0.1, 0.5, 1.0)))
            name = rng.choice(list(wires))
            await self._read_offset(name, wires[name])
        for wire in wires.values():
            wire.end()

    async def _read_offset(self, name: str, wire: Wire) -> int | None:
        sent_s = self.world.now_s
        answer = await wire.stable_offset(name, next(iter(TOPICS)))
        if answer.error is not ErrorCode.none:
            return None
        self.transactions.read_offset(name, None if answer.body < 0 else answer.body, sent_s)
        return int(answer.body)

    async def _read_last_offsets(self) -> None:
        for worker in self.workers:
            wire = Wire(worker.name, self.plan.brokers, self._leader_of, worker.rng)
            found = None
            while found is None:
                await asyncio.sleep(0.1)
                found = await self._read_offset(worker.name, wire)
            wire.end()
            wanted = self.transactions.last_offset(worker.name, self.truth)
            if found != (-1 if wanted is None else wanted):
                raise Violation("offsets", f"{worker.name} has {found} in the end, not {wanted}")

    # -- simple scan of the logs -----------------------------------------------------------------------------------

    def _read_logs(self) -> Truth:
        """Reads the logs as the checks recorded them, since everything is committed and disks may be damaged."""
        truth = Truth()
        for topic, index, batches in self.checks.committed_batches():
            if topic in (*TOPICS, OFFSETS_TOPIC):
                _read_log((topic, index), batches, truth)
        return truth


def _read_log(where: tuple[str, int], batches: Iterable[bytes], truth: Truth) -> None:
    unended: dict[int, list[bytes]] = {}
    for batch in batches:
        header = read_header(memoryview(batch))
        marker = marker_in(header, memoryview(batch)) if header.is_control else None
        if marker is not None:
            for content in unended.pop(header.producer_id, []):
                _note(where, content, truth, is_committed=marker.is_commit)
        elif header.is_transactional:
            unended.setdefault(header.producer_id, []).append(batch)
    if unended:
        raise Violation("every one ends", f"{where}: {sorted(unended)} are open")


def _note(where: tuple[str, int], batch: bytes, truth: Truth, *, is_committed: bool) -> None:
    for record in decode_batch(memoryview(batch)):
        assert record.value is not None
        if where[0] != OFFSETS_TOPIC:
            (truth.committed if is_committed else truth.aborted)[*where, record.offset] = bytes(record.value)
            continue
        assert record.key is not None
        found = encoding.decode(bytes(record.key), bytes(record.value))
        assert isinstance(found, OffsetRecord)
        assert found.value is not None
        at = found.group, found.value.offset
        truth.offsets[at] = truth.offsets.get(at, False) or is_committed
