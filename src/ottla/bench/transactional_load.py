"""The load of `transactions`: producers that write and commit as fast as they get replies, all in one process."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from dataclasses import dataclass, field

from ottla.bench.group_members import connect
from ottla.bench.processes import cpu_seconds
from ottla.bench.quotients import rate
from ottla.bench.transactional_producer import ConcurrentTransactionsError, TransactionalProducer, batch_of

RECORD_BYTES = 1024
RECORDS_A_BATCH = 15
"""The number of records that fit into 16 KB, the Java client's default batch size."""
WARM_UP = 0.3
"""The warm-up as a share of the measured time."""


@dataclass(slots=True)
class TransactionResult:
    """Results of the measured time only, except for `offsets_taken`. It ends when the last transaction ends."""

    records: int = 0
    seconds: float = 0.0
    broker_cpu_s: float = 0.0
    driver_cpu_s: float = 0.0
    latencies: Counter[int] = field(default_factory=Counter)
    """Latencies of whole transactions, in microseconds."""
    offsets_taken: int = 0
    """Offsets that records and markers have taken in partition 0, including the warm-up."""

    @property
    def records_per_s(self) -> float:
        """The rate of committed records over the measured time."""
        return rate(self.records, self.seconds)


class Meter:
    """Measures between two moments."""

    def __init__(self, broker_pid: int) -> None:
        self.measured = TransactionResult()
        self._pid = broker_pid
        self._began = (time.perf_counter(), cpu_seconds(broker_pid), time.process_time())

    def committed(self, records: int, began_s: float) -> None:
        """Counts a committed transaction that began at this time."""
        self.measured.records += records
        self.measured.latencies[int((time.perf_counter() - began_s) * 1e6)] += 1

    def end(self, offsets_taken: int) -> TransactionResult:
        """Ends the measurement and returns its result."""
        began_s, broker_cpu_s, driver_cpu_s = self._began
        self.measured.seconds = time.perf_counter() - began_s
        self.measured.broker_cpu_s = cpu_seconds(self._pid) - broker_cpu_s
        self.measured.driver_cpu_s = time.process_time() - driver_cpu_s
        self.measured.offsets_taken = offsets_taken
        return self.measured


def drive(bootstrap: str, pid: int, topic: str, size: int, producers: int, seconds: float) -> TransactionResult:
    """Runs the load. A `size` of 0 means plain idempotent producers."""
    port = int(bootstrap.rpartition(":")[2])
    return asyncio.run(Load(port, pid, topic, size).run(producers, seconds))


class Load:
    """The producers of one measurement."""

    def __init__(self, port: int, pid: int, topic: str, size: int) -> None:
        self._port = port
        self._pid = pid
        self._topic = topic
        self._size = size
        now_ms = int(time.time() * 1000)
        value = os.urandom(RECORD_BYTES)
        counts = batch_sizes(size) if size else [RECORDS_A_BATCH]
        made = {count: batch_of(value, count, now_ms, transactional=size > 0) for count in set(counts)}
        self._prepared = [(count, made[count]) for count in counts]

    async def run(self, producers: int, seconds: float) -> TransactionResult:
        """Starts the producers, warms up, and measures."""
        made = [await self._begin(partition) for partition in range(producers)]
        try:
            for each_s in (seconds * WARM_UP, seconds):
                meter = Meter(self._pid)
                work = self._commit_on if self._size else self._write_on
                end_s = time.perf_counter() + each_s
                await asyncio.gather(*(work(producer, meter, end_s) for producer in made))
                measured = meter.end(made[0].offsets_taken)
        finally:
            for producer in made:
                producer.close()
        return measured

    async def _begin(self, partition: int) -> TransactionalProducer:
        name = f"{self._topic}-{partition}" if self._size else None
        producer = TransactionalProducer(await connect(self._port), self._topic, partition, name)
        await producer.begin()
        return producer

    async def _commit_on(self, producer: TransactionalProducer, meter: Meter, end_s: float) -> None:
        """Commits transactions until the time is over, but at least one."""
        while True:
            began_s = time.perf_counter()
            while not await self._write_all(producer):
                await producer.begin_again()
            await producer.commit()
            meter.committed(self._size, began_s)
            if time.perf_counter() >= end_s:
                return

    async def _write_all(self, producer: TransactionalProducer) -> bool:
        """Writes the batches of a transaction and returns whether they were accepted."""
        try:
            for count, batch in self._prepared:
                await producer.write(batch, count)
            await producer.settle()
        except ConcurrentTransactionsError:
            return False
        return True

    async def _write_on(self, producer: TransactionalProducer, meter: Meter, end_s: float) -> None:
        """Writes batches without transactions until the time is over, but at least one."""
        ((count, batch),) = self._prepared
        while True:
            await producer.write(batch, count)
            meter.measured.records += count
            if time.perf_counter() >= end_s:
                break
        await producer.settle()


def batch_sizes(size: int) -> list[int]:
    """Splits a transaction of this many records into batches."""
    full, rest = divmod(size, RECORDS_A_BATCH)
    return [RECORDS_A_BATCH] * full + ([rest] if rest else [])
