"""How the sink decides and finishes a batch, driven as by Spark, on a real broker.

There is no JVM, so that a crash can be placed between any two steps. `test_sink_kills` does the same to real drivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from ottla.client import Admin, PreparedTransaction, PreparedTransactions
from ottla.client.errors import ClientError, ProducerFencedError
from ottla.client.transactions import coordinator as asking
from ottla.spark.options_text import OptionError
from ottla.spark.sink.commit import SinkCommit, SinkError, TaskWrite, end_all
from ottla.spark.sink.decisions import Decision, DecisionLog
from ottla.spark.sink.options import SinkOptions, read_sink_options
from ottla.spark.sink.task import TaskIdentity, write_in_transaction
from ottla.spark.sink.writers import write_task
from ottla.testing import Cluster
from tests.spark.topics import NewTopic, produce, values_of, with_admin

ROOT = Path(__file__).resolve().parents[2]
_queries = itertools.count(1)
ROWS = [b"%04d" % number for number in range(200)]
STEPS = ["written", "before record", "after record", "after one", "before done", "after done"]


class DiedError(Exception):
    """Simulates the end of the driver's process."""


class DyingCommit(SinkCommit):
    """Dies at one step, the first time it is reached."""

    def __init__(self, options: SinkOptions, query: str, run: str, dies: str | None = None) -> None:
        super().__init__(options, query, run)
        self.dies = dies

    def reached(self, step: str) -> None:
        if step == self.dies:
            raise DiedError(step)

    async def record(self, decisions: DecisionLog, decision: Decision) -> None:
        self.reached("before record")
        await super().record(decisions, decision)
        self.reached("after record")

    async def end_one(self, open_transactions: PreparedTransactions, each: PreparedTransaction) -> None:
        await super().end_one(open_transactions, each)
        self.reached("after one")

    async def record_done(self, decisions: DecisionLog) -> None:
        self.reached("before done")
        await super().record_done(decisions)
        self.reached("after done")


class Query:
    """One streaming query with one checkpoint; each of its runs has its own id."""

    def __init__(self, cluster: Cluster, topic: str, **options: str) -> None:
        self.servers, self.topic = cluster.bootstrap_servers, topic
        self.name = f"query-{next(_queries)}-of-{topic}"
        self.given = {"kafka.bootstrap.servers": self.servers, "topic": topic, **options}
        self.options = read_sink_options(self.given, streaming=True)
        self._runs = itertools.count(1)
        self.start()

    def start(self) -> None:
        """The driver starts, or restarts."""
        self.run = f"{next(self._runs):08d}-run"

    def write(self, batch: int, tasks: Sequence[Sequence[bytes]], attempt: int = 0) -> list[TaskWrite]:
        return [self.write_one(batch, number, rows, attempt) for number, rows in enumerate(tasks)]

    def write_one(self, batch: int, task: int, rows: Sequence[bytes], attempt: int = 0) -> TaskWrite:
        place = TaskIdentity(self.name, self.run, batch, task, attempt)
        columns = pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.binary())})
        return write_task(self.options, self.committing(), place, iter([columns]))

    def committing(self, dies: str | None = None) -> DyingCommit:
        return DyingCommit(self.options, self.name, self.run, dies)

    def commit(self, batch: int, writes: list[TaskWrite], dies: str | None = None) -> None:
        asyncio.run(self.committing(dies).commit(batch, writes))

    def abort(self, batch: int, writes: list[TaskWrite]) -> None:
        asyncio.run(self.committing().abort(batch, writes))

    def output(self) -> list[bytes]:
        return sorted(values_of(self.servers, self.topic))


def spread(rows: Sequence[bytes], tasks: int, seed: int) -> list[list[bytes]]:
    """Distributes rows over tasks, differently for each seed, as after a shuffle."""
    chance = random.Random(seed)
    found: list[list[bytes]] = [[] for _ in range(tasks)]
    for row in rows:
        chance.choice(found).append(row)
    return found


@pytest.fixture
def query(cluster: Cluster, new_topic: NewTopic) -> Query:
    return Query(cluster, new_topic(2))


@pytest.mark.parametrize("version", [1, 2], ids=["version-1", "version-2"])
@pytest.mark.parametrize("dies", STEPS)
def test_a_driver_that_dies_at_any_step(query: Query, dies: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is retried with its rows in other tasks, and more or fewer of them."""
    if version == 1:
        monkeypatch.setattr(asking, "TRANSACTION_VERSION", "none")
    query.commit(4, query.write(4, spread(ROWS[:50], 2, 0)))
    writes = query.write(5, spread(ROWS[50:150], 2, 1))
    if dies != "written":
        with pytest.raises(DiedError):
            query.commit(5, writes, dies)
    query.start()
    query.commit(5, query.write(5, spread(ROWS[50:150], 3, 2)))
    query.commit(6, query.write(6, spread(ROWS[150:], 1, 3)))
    assert query.output() == ROWS


@pytest.mark.parametrize("dies", STEPS[1:])
def test_a_process_that_is_killed_at_any_step(query: Query, dies: str) -> None:
    """SIGKILL: nothing is closed."""
    writes = query.write(0, spread(ROWS, 2, 1))
    plan = {
        "options": query.given,
        "query": query.name,
        "run": query.run,
        "batch": 0,
        "die.at": dies,
        "writes": [list(each.transaction or ()) for each in writes],
    }
    command = [sys.executable, "-m", "tests.spark.dying_commit", json.dumps(plan)]
    assert subprocess.run(command, cwd=ROOT, start_new_session=True, check=False).returncode == -signal.SIGKILL
    query.start()
    query.commit(0, query.write(0, spread(ROWS, 3, 2)))
    assert query.output() == ROWS


@pytest.mark.parametrize("dies", STEPS[1:])
def test_an_abort_never_undoes_what_was_decided(query: Query, dies: str) -> None:
    """Spark calls abort when a commit raises, and the batch is retried."""
    writes = query.write(0, spread(ROWS, 3, 1))
    with pytest.raises(DiedError):
        query.commit(0, writes, dies)
    query.abort(0, writes)
    query.start()
    query.commit(0, query.write(0, spread(ROWS, 2, 2)))
    assert query.output() == ROWS


def test_an_aborted_batch_is_not_there(query: Query) -> None:
    query.abort(0, query.write(0, spread(ROWS, 2, 1)))
    assert query.output() == []


def test_a_decided_batch_is_not_written_again(query: Query) -> None:
    query.commit(0, query.write(0, spread(ROWS, 2, 1)))
    query.start()
    again = query.write(0, spread(ROWS, 2, 2))
    assert all(each.skipped and each.transaction is None for each in again)
    query.commit(0, again)
    query.commit(0, again)
    assert query.output() == ROWS


def test_deaths_one_after_another(query: Query, seed: int) -> None:
    """Six deaths in a row, of one batch and the next."""
    chance = random.Random(seed)
    half = len(ROWS) // 2
    for batch, rows in enumerate((ROWS[:half], ROWS[half:])):
        for _ in range(3):
            writes = query.write(batch, spread(rows, chance.randint(1, 4), chance.random().__hash__()))
            with contextlib.suppress(DiedError):  # a batch that was decided before has nothing more to record
                query.commit(batch, writes, chance.choice(STEPS[1:]))
            query.start()
        query.commit(batch, query.write(batch, spread(rows, 2, 9)))
    assert query.output() == ROWS


def test_a_commit_that_outlives_its_driver_decides_nothing(query: Query) -> None:
    """The JVM is dead, but its commit's process has read the decisions; the next run starts; then it decides."""
    old = query.committing()
    writes = query.write(0, spread(ROWS, 2, 1))

    async def slow_commit() -> None:
        async with old.log() as decisions:
            query.start()
            await asyncio.to_thread(begin_again)
            await old.record(decisions, Decision(0, old._run, tuple(each.transaction for each in writes)))  # type: ignore[misc] # each has one

    again: list[TaskWrite] = []

    def begin_again() -> None:
        again.extend(query.write(0, spread(ROWS, 3, 2)))

    with pytest.raises(ProducerFencedError):
        asyncio.run(slow_commit())
    query.commit(0, again)
    assert query.output() == ROWS


def test_a_commit_that_outlives_its_driver_and_was_faster(query: Query) -> None:
    """It decides before the next run's tasks check: they write nothing, and the decided batch is finished."""
    writes = query.write(0, spread(ROWS, 2, 1))
    with pytest.raises(DiedError):
        query.commit(0, writes, "after record")
    query.start()
    again = query.write(0, spread(ROWS, 3, 2))
    query.committing().dies = None
    query.commit(0, writes)  # the old one continues beside the new one
    query.commit(0, again)
    assert query.output() == ROWS


def test_a_driver_that_comes_late_is_told(query: Query) -> None:
    query.commit(3, query.write(3, [ROWS]))
    with pytest.raises(SinkError, match=r"another run of query .* has advanced"):
        query.commit(2, query.write(2, [ROWS]))


def test_what_a_dead_run_left_open_is_aborted(query: Query) -> None:
    """Also transactions of tasks that the next run does not have: it does not wait for their timeout."""
    query.write(0, spread(ROWS, 4, 1))
    query.start()
    query.commit(0, query.write(0, [ROWS]))
    produce(query.servers, query.topic, [b"after"])
    assert query.output() == [*ROWS, b"after"]
    assert open_transactions(query.servers, query.name) == []


def open_transactions(servers: str, name: str) -> list[str]:
    states = with_admin(servers, lambda admin: admin.list_transactions(states=["Ongoing"]))
    return [each.transactional_id for each in states if name in each.transactional_id]


@pytest.mark.parametrize(("dead", "alive"), [(0, 1), (1, 0)], ids=["task tried again", "stage tried again"])
def test_what_a_dead_attempt_left_open_is_aborted(query: Query, dead: int, alive: int) -> None:
    """Its executor dies afterwards. A retried stage counts its attempts from 0."""
    query.write_one(0, 0, ROWS[:10], attempt=dead)
    query.commit(0, [query.write_one(0, 0, ROWS, attempt=alive)])
    assert open_transactions(query.servers, query.name) == [], "readers of committed records would wait for it"
    assert query.output() == ROWS


def test_a_commit_that_outlives_its_driver_leaves_the_next_run_alone(query: Query) -> None:
    """At its last step, where it aborts transactions left by its own run, the next run is writing the next batch."""
    old, writes = query.committing(), query.write(0, [ROWS[:100]], attempt=1)
    with pytest.raises(DiedError):
        query.commit(0, writes, "before done")
    query.start()
    query.commit(0, query.write(0, [ROWS[:100]]))
    next_writes = query.write(1, [ROWS[100:]])
    asyncio.run(old.commit(0, writes))
    query.commit(1, next_writes)
    assert query.output() == ROWS


@pytest.mark.parametrize("commit", [True, False])
def test_a_write_without_a_name_leaves_nothing_open(query: Query, commit: bool) -> None:
    place = TaskIdentity(query.name, query.run, 0, 0, 0)
    columns = pa.RecordBatch.from_pydict({"value": pa.array(ROWS, pa.binary())})
    write_in_transaction(query.options, place.transactional_id, [columns])  # its executor dies afterwards
    place = replace(place, attempt=1)
    rows, transaction = write_in_transaction(query.options, place.transactional_id, [columns])
    write = TaskWrite(query.name, query.run, 0, 1, rows, False, transaction)
    asyncio.run(end_all(query.options, query.name, [write], commit=commit))
    assert open_transactions(query.servers, query.name) == []
    assert query.output() == (ROWS if commit else [])


def fence(query: Query, writes: Sequence[TaskWrite]) -> None:
    """Does what the coordinator does when a transaction times out."""
    for each in writes:
        assert each.transaction is not None
        with_admin(query.servers, partial(Admin.fence_producer, transactional_id=each.transaction.transactional_id))


def test_a_transaction_that_is_gone_is_not_decided(query: Query) -> None:
    writes = query.write(0, spread(ROWS, 2, 1))
    fence(query, writes[:1])
    with pytest.raises(SinkError, match=r"is no longer open.*the batch will be retried"):
        query.commit(0, writes)
    query.abort(0, writes)
    query.start()
    query.commit(0, query.write(0, spread(ROWS, 2, 2)))
    assert query.output() == ROWS


def wait_for_time_outs(query: Query, count: int) -> None:
    """Waits until the coordinator has aborted that many transactions."""

    async def aborted(admin: Admin) -> int:
        listed = await admin.list_transactions(states=["CompleteAbort"])
        return sum(1 for each in listed if query.name in each.transactional_id)

    while with_admin(query.servers, aborted) < count:
        pass


def test_a_decided_batch_whose_transactions_timed_out(cluster: Cluster, new_topic: NewTopic) -> None:
    """All of them timed out: nothing is written, so the batch can be written again, which takes one more start."""
    query = Query(cluster, new_topic(2), **{"kafka.transaction.timeout.ms": "3000"})
    with pytest.raises(DiedError):
        query.commit(0, query.write(0, spread(ROWS, 2, 1)), "after record")
    wait_for_time_outs(query, 2)
    query.start()
    with pytest.raises(SinkError, match=r"nothing of batch 0 .* was written"):
        query.commit(0, query.write(0, spread(ROWS, 2, 2)))
    query.start()
    query.commit(0, query.write(0, spread(ROWS, 3, 3)))
    assert query.output() == ROWS


@pytest.mark.parametrize("accept", [False, True])
def test_a_batch_that_is_there_in_part_is_told(cluster: Cluster, new_topic: NewTopic, accept: bool) -> None:
    options = {"kafka.transaction.timeout.ms": "2000", "ottla.lost.transactions": "accept" if accept else "fail"}
    query = Query(cluster, new_topic(2), **options)
    with pytest.raises(DiedError):
        query.commit(0, query.write(0, [ROWS[:100], ROWS[100:]]), "after one")
    wait_for_time_outs(query, 1)
    query.start()
    again = query.write(0, [ROWS])
    if accept:
        query.commit(0, again)
        query.commit(1, query.write(1, [[b"next"]]))
        assert query.output() == [*ROWS[:100], b"next"]
        return
    with pytest.raises(SinkError, match=r"is only partly written: .*ottla\.lost\.transactions=accept"):
        query.commit(0, again)
    with pytest.raises(SinkError, match="is only partly written"):
        query.write(1, [[b"next"]])
    assert query.output() == ROWS[:100]


def test_an_unfinished_batch_is_finished_by_the_next(query: Query) -> None:
    """Spark does not retry it if everything that it read was deleted meanwhile."""
    with pytest.raises(DiedError):
        query.commit(0, query.write(0, spread(ROWS[:100], 2, 1)), "after record")
    query.start()
    query.commit(1, query.write(1, spread(ROWS[100:], 2, 1)))
    assert query.output() == ROWS


def test_a_batch_without_rows_leaves_nothing(query: Query) -> None:
    query.commit(0, query.write(0, [[], []]))
    assert query.output() == []
    query.commit(1, query.write(1, [ROWS, []]))
    assert query.output() == ROWS


def test_the_last_decision_is_found_behind_many(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there are only markers near the end."""
    monkeypatch.setattr("ottla.spark.sink.decisions.TAIL_OFFSETS", 1)
    for batch in range(4):
        query.commit(batch, query.write(batch, [[b"%04d" % batch]]))

    async def last() -> Decision | None:
        async with query.committing().log() as decisions:
            return decisions.last

    found = asyncio.run(last())
    assert found is not None
    assert (found.batch, found.done) == (3, True)


def test_a_transaction_that_would_take_too_long(cluster: Cluster, new_topic: NewTopic) -> None:
    query = Query(cluster, new_topic(), **{"kafka.transaction.timeout.ms": "900000000"})
    with pytest.raises(OptionError, match=r"is larger than the brokers' transaction\.max\.timeout\.ms"):
        query.write(0, [ROWS])


def test_a_topic_that_is_not_there(ottla_cluster_factory: Callable[..., Cluster]) -> None:
    """With brokers that do not create topics automatically."""
    strict = ottla_cluster_factory(config={"auto.create.topics.enable": "false"})
    query = Query(strict, "nowhere")
    with pytest.raises(ClientError, match='topic "nowhere"'):
        query.write(0, [ROWS])
